"""The files that a report is made from, found beside the logs that it is asked for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.compare.side import files_of
from retinanet.errors import InputError

LOGS, TRACES, COUNTERS, ENVIRONMENT = "onednn", "trace", "perf", "environment.json"
OF_A_RUN = ("config.yaml", "metrics.jsonl", LOGS)
"""Any of these in a folder: a run of ours."""
RANK = re.compile(r"rank(\d+)\.")


@dataclass(frozen=True)
class Inputs:
    """Paths; None or empty where there is nothing."""

    logs: tuple[Path, ...]
    trace: Path | None
    environment: Path | None
    counters: tuple[Path, ...]


def find_inputs(asked: Sequence[Path], *, trace: Path | None, environment: Path | None) -> Inputs:
    """What there is for a report.

    Args:
        asked: Logs, folders of logs, and folders of runs.
        trace: As it was given; None: as it is found.
        environment: The same.

    Raises:
        InputError: A folder has no log.
    """
    environments, traces, counters = [], [], []
    for path in asked:
        if run := run_of(path):
            environments.append(run / ENVIRONMENT)
            traces += of_same_rank(path, files_by_rank(run / TRACES, (".json", ".json.gz")))
            counters += of_same_rank(path, files_by_rank(run / COUNTERS, (".json",)))
        elif not path.is_dir():
            environments.append(path.parent / ENVIRONMENT)
    found = next((file for file in environments if file.is_file()), None)
    return Inputs(
        logs=tuple(log for path in asked for log in logs_of(path)),
        trace=trace or next(iter(traces), None),
        environment=environment or found,
        counters=tuple(dict.fromkeys(counters)),
    )


def of_same_rank(path: Path, files: list[Path]) -> list[Path]:
    """All of them for a folder; for one rank's log that rank's."""
    return files if path.is_dir() else [file for file in files if rank_of(file) == rank_of(path)]


def run_of(path: Path) -> Path | None:
    """The run's folder that a path is, or is the folder of logs of."""
    if not path.is_dir():
        return (
            path.parent.parent if path.parent.name == LOGS and is_run(path.parent.parent) else None
        )
    if is_run(path):
        return path
    return path.parent if path.name == LOGS and is_run(path.parent) else None


def is_run(folder: Path) -> bool:
    """Whether a training wrote it."""
    return any((folder / name).exists() for name in OF_A_RUN)


def logs_of(path: Path) -> list[Path]:
    """A log as it is, or a folder's.

    Raises:
        InputError: There is none.
    """
    if not path.is_dir() or not is_run(path):
        return files_of(path)
    logs = files_by_rank(path / LOGS, (".log", ".log.gz"))
    if not logs:
        raise InputError(
            f"{path}: this run has written no log of oneDNN; train with profile.onednn.steps=20-22"
        )
    return logs


def files_by_rank(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """`rank<N>` files of a folder, in order of N; others after them."""
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if file.name.endswith(endings)]
    files = [file for file in files if not file.name.startswith(".")]
    return sorted(files, key=lambda file: (rank_of(file) is None, rank_of(file) or 0, file.name))


def rank_of(file: Path) -> int | None:
    """The rank in a file's name."""
    found = RANK.match(file.name)
    return int(found[1]) if found else None
