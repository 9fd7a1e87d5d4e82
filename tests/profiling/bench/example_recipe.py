"""A recipe without torch, for tests of workers; its option selects how it fails."""

import os
import signal
import sys
import time

from common.errors import InputError
from profiling.bench.variant import Prepared, Workload


def prepare(workload: Workload, *, behaviour: str) -> Prepared:
    if behaviour == "is not prepared":
        raise ValueError("no such thing\nsecond line")
    runs: list[float] = []

    def run() -> dict[str, float]:
        print("not an answer")
        runs.append(0.0)
        if behaviour == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "exits":
            sys.stderr.write("Traceback\nlibrary: cannot go on\n")
            sys.stderr.flush()
            os._exit(7)
        if behaviour == "raises":
            raise ArithmeticError("loss nan")
        if behaviour == "refuses":
            raise InputError("0.jpg: damaged image")
        time.sleep(0.001)
        return {"runs": len(runs), "images": workload.images}

    return Prepared(run, {"process": os.getpid()})
