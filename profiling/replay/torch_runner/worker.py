"""Runs problems in a process of its own: `python -m profiling.replay.torch_runner.worker SHARE`.

The argument is a `Share` as JSON. Each line on standard input is a problem to run, and is answered
by a line of JSON on what was standard output at the start: how often it ran, or why it did not.
oneDNN's log of it is in the file that the question names. The process ends with its input.
"""

import json
import os
import sys

from launch.host.allowance import read_allowance
from launch.pinning.memory_policy import prefer_memory
from profiling.peaks.cores import check_cores, take_cores
from profiling.peaks.worker import share_of


def main() -> None:
    """Take the cores, then answer until there are no more questions."""
    share = share_of(json.loads(sys.argv[1]))
    notes = take_cores(share)  # may start this command again: pipes are still where they were
    lost = prefer_memory(share.nodes, allowed=read_allowance().memory_nodes)
    notes += [lost] if lost else []
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    notes += check_cores(share)
    # torch had to wait for the cores.
    from profiling.replay.torch_runner.answer import answer  # noqa: PLC0415
    from profiling.replay.torch_runner.measured_runs import flusher  # noqa: PLC0415

    flush = flusher()
    answers.write(json.dumps({"notes": notes}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line), flush)) + "\n")


if __name__ == "__main__":
    main()
