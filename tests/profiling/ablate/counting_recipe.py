"""A recipe without torch that counts its runs."""

import time

from profiling.bench.variant import Prepared, Workload


def prepare(workload: Workload, *, wait: float = 0.0, fails_at: int = 0) -> Prepared:
    count = 0

    def run() -> dict[str, float]:
        nonlocal count
        count += 1
        if count == fails_at:
            raise ArithmeticError("loss nan")
        time.sleep(wait)
        return {"runs": count, "seed": workload.seed}

    return Prepared(run, {"image_size": workload.image_size})
