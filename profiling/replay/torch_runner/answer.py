"""One question to the worker: run a problem. Loads torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from profiling.replay.replay_file import problem_of
from profiling.replay.torch_runner.measured_runs import measure
from profiling.replay.torch_runner.operators.all import prepare
from profiling.replay.torch_runner.operators.reaching import NotReachedError

REFUSALS = (RuntimeError, ValueError, TypeError, MemoryError)
"""What torch raises where it does not like its arguments; the next problem can still be run."""


def answer(question: dict[str, Any], flush: Callable[[], object]) -> dict[str, Any]:
    """Run a problem: `{"hot": 20, "cold": 20}` tells how often, `{"why_not": "…"}` why it did not.

    Args:
        question: `problem`, `log`, `repeats` and `cold`, as `TorchWorker.run` sends them.
        flush: Drives everything out of the caches.
    """
    try:
        with torch.no_grad():
            runs = measure(
                prepare(problem_of(question["problem"])),
                Path(question["log"]),
                repeats=question["repeats"],
                flush=flush if question["cold"] else None,
            )
    except NotReachedError as error:
        return {"why_not": str(error)}
    except REFUSALS as error:
        first_line = (str(error).strip() or type(error).__name__).split("\n", maxsplit=1)[0]
        return {"why_not": f"torch: {first_line}"}
    return {"hot": runs.hot, "cold": runs.cold}
