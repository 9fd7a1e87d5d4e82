"""A contestant's own process: `python -m profiling.bench.worker SPECIFICATION`.

The specification is JSON. Questions come as lines on standard input; each is answered by a line of
JSON on what was standard output at the start. It ends with its input, so that it never outlives
the benchmark.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

from launch.pinning.allocator import set_allocator
from launch.resources import page_faults, peak_resident_mb, resident_mb
from profiling.bench.recipe import Prepared
from profiling.bench.workload import Workload
from retinanet.errors import InputError


def main() -> None:
    """Prepare the contestant, then answer until there are no more questions."""
    specification = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)

    def answer(content: object) -> None:
        answers.write(json.dumps(content) + "\n")

    try:
        # It may start this command again, so that the pipes must still be where they were.
        set_allocator(specification["allocator"])
        os.dup2(2, 1)  # what libraries print must not mix with the answers
        # Recipes load torch, which has to wait for the memory policy.
        recipe = importlib.import_module(specification["recipe"])
        prepared = recipe.prepare(Workload(**specification["workload"]), **specification["options"])
        answer({"facts": dict(prepared.facts)})
        for question in sys.stdin:
            answer(QUESTIONS[question.strip()](prepared))
    except Exception as error:  # told to the parent, which ends the benchmark with it
        first_line = str(error).strip().split("\n", maxsplit=1)[0]
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        answer({"error": kind + first_line})
        raise


def run(prepared: Prepared) -> dict[str, Any]:
    """Time one run; the fields of `profiling.bench.run.Run`."""
    faults = page_faults()
    start = time.perf_counter()
    details = prepared.run()
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "page_faults": page_faults() - faults,
        "rss_mb": resident_mb(),
        "peak_rss_mb": peak_resident_mb(),
        "details": dict(details),
    }


def primitives(prepared: Prepared) -> dict[str, Any]:
    """Seconds of one run inside each kind of oneDNN primitive, in our convolutions, and in all."""
    from profiling.bench.onednn_seconds import onednn_seconds
    from profiling.bench.operator_seconds import winograd_seconds

    by_kind: dict[str, float] = {}
    seconds = 0.0

    def timed_run() -> None:
        nonlocal seconds  # of the run alone: the profiler takes as long again to start and to end
        start = time.perf_counter()
        prepared.run()
        seconds = time.perf_counter() - start

    winograd = winograd_seconds(lambda: by_kind.update(onednn_seconds(timed_run)))
    return {"seconds": seconds, "primitives": by_kind, "winograd": winograd}


def operators(prepared: Prepared) -> dict[str, Any]:
    """Seconds of one run in each of torch's operators, without what they call."""
    from profiling.bench.operator_seconds import operator_seconds

    return {"operators": operator_seconds(prepared.run)}


QUESTIONS = {"run": run, "primitives": primitives, "operators": operators}

if __name__ == "__main__":
    main()
