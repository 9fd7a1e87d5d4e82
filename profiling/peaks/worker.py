"""Measure peaks in a process of its own: `python -m profiling.peaks.worker SHARE`.

The argument is a `Share` as JSON. Lines of JSON on what was standard output at the start tell what
is being done, and at the end what was found.
"""

import json
import os
import sys
from typing import Any

from common.machine import environment
from launch.pinning import check_cores, take_cores
from launch.shares import Share
from profiling.bench.results import background_load
from profiling.peaks.peaks import memory_buffer_bytes


def main() -> None:
    """Take the cores, measure, tell."""
    share = share_of(json.loads(sys.argv[1]))
    notes = take_cores(share)  # may start this command again: pipes are still where they were
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers

    def advance(percent: int, what: str) -> None:
        answers.write(json.dumps({"percent": percent, "next": what}) + "\n")

    notes += check_cores(share)
    # torch had to wait for the cores.
    from profiling.peaks.measure import measure_bandwidths, measure_rates, prepare_works, versions  # noqa: PLC0415

    with background_load() as others:
        advance(0, "which types there are")
        works, left_out = prepare_works()
        rates = measure_rates(works, advance)
        bandwidths = measure_bandwidths(buffer_bytes=memory_buffer_bytes())
    found = {
        "matrix_gflop_per_s": {name: max(works.values()) for name, works in rates.items()},
        "bandwidth_gb_per_s": max(bandwidths.values()),
        "threads": share.threads,
        "cpus": list(share.cpus),
        "cpu": str(environment()["cpu"]),
        "versions": versions(),
        "rates": rates,
        "bandwidths": bandwidths,
        "left_out": left_out,
        "other_cores": others.cores,
        "notes": notes,
    }
    answers.write(json.dumps({"found": found}) + "\n")


def share_of(fields: dict[str, Any]) -> Share:
    """A share from its fields as JSON has them."""
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Share(**{**fields, **lists})


if __name__ == "__main__":
    main()
