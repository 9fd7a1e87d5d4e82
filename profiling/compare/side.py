"""One of the two logs that are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiling.directions import direction_name
from profiling.onednn_log.dimensions import product_sizes
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.problem import Problem
from retinanet.errors import InputError


@dataclass(frozen=True)
class Side:
    """A log, or the logs of a run's ranks."""

    name: str
    log: OneDnnLog
    calls: Mapping[Problem, Calls]
    divisor: int
    """Calls and times are divided by it: steps that the log has, over all ranks; else 1."""


def files_of(path: Path) -> list[Path]:
    """A log, or all logs of a folder, such as `runs/coco/onednn`.

    Raises:
        InputError: The folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith((".log", ".log.gz")))
    if not files:
        raise InputError(f"{path}: holds no *.log and no *.log.gz; give a log, or a folder of logs")
    return files


def side_of(name: str, log: OneDnnLog, *, by_step: bool) -> Side:
    """One side: all of a log, or its steps, on average."""
    return Side(
        name,
        log,
        calls=log.calls(lambda where: where.step is not None or not by_step),
        divisor=marked_steps(log) if by_step else 1,
    )


def marked_steps(log: OneDnnLog) -> int:
    """Steps that the log tells apart, each rank's counted."""
    return len({(where.rank, where.step) for where in log.executions if where.step is not None})


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of oneDNN; not how it was done, and not for training or inference."""

    kind: str
    direction: str
    """`forward`, `backward data`, …; empty where a kind has none."""
    shape: str
    types: str
    """Empty where types do not matter."""
    algorithm: str


def question_of(problem: Problem, *, with_types: bool) -> Question:
    """The question that a problem answers."""
    return Question(
        kind=problem.kind,
        direction=direction_name(problem.direction),
        shape=shape_of(problem),
        types=problem.types if with_types else "",
        algorithm=problem.algorithm,
    )


def shape_of(problem: Problem) -> str:
    """The shape in the spelling of 3.x: earlier versions name a matrix product's result too."""
    if problem.kind != "matmul":
        return problem.shape
    try:
        batch, rows, columns, inner = product_sizes(problem.shape)
    except (ValueError, KeyError, IndexError):
        return problem.shape
    if problem.shape[:1].isdigit():
        return ":".join(problem.shape.split(":")[:2])
    lead = f"{batch}x" if batch > 1 else ""
    return f"{lead}{rows}x{inner}:{lead}{inner}x{columns}"
