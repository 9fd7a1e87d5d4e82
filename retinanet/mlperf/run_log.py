"""A finished run's `mlperf.log`: where it is, and what it says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from retinanet.errors import InputError
from retinanet.mlperf.log_lines import LogLine, damaged_lines, log_lines, number_of, texts_of
from retinanet.mlperf.rules import RULES, Rules, benchmark_name

NAME = "mlperf.log"
RESULT = re.compile(r"result_([0-9]{1,9})\.txt")
"""Names of logs in a submission's folder."""


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """What the log of one run says."""

    file: Path
    lines: tuple[LogLine, ...]
    damaged: tuple[int, ...] = ()
    """Numbers of lines that were left out, such as one cut short."""

    def value(self, key: str) -> Any:
        """The first value of a key; None where it was never said."""
        return next((line.value for line in self.lines if line.key == key), None)

    def last(self, key: str) -> LogLine | None:
        """The last line of a key."""
        return next((line for line in reversed(self.lines) if line.key == key), None)

    @property
    def status(self) -> str:
        """`success`, `aborted`, or `running` of a run that has not said its end."""
        stop = self.last(constants.RUN_STOP)
        return "running" if stop is None else str(stop.metadata.get(constants.STATUS))

    @property
    def epochs(self) -> float | None:
        """Until the last evaluation."""
        evaluation = self.last(constants.EVAL_ACCURACY)
        return None if evaluation is None else number_of(evaluation.metadata.get("epoch_num"))

    @property
    def accuracy(self) -> float | None:
        """Of the last evaluation: mAP."""
        evaluation = self.last(constants.EVAL_ACCURACY)
        return None if evaluation is None else number_of(evaluation.value)

    @property
    def minutes(self) -> float | None:
        """By which MLPerf scores: from `run_start` to `run_stop`."""
        start, stop = self.last(constants.RUN_START), self.last(constants.RUN_STOP)
        return None if start is None or stop is None else (stop.time_ms - start.time_ms) / 60_000

    def rules(self, given: Rules | None) -> Rules:
        """Those asked for, or the newest under which the benchmark has the name in the log.

        Raises:
            InputError: The benchmark has another name under the rules that were asked for.
        """
        name = self.value(constants.SUBMISSION_BENCHMARK)
        fitting = [rules for rules in RULES if benchmark_name(rules) == name]
        if not fitting:
            raise InputError(f"{self.file}: submission_benchmark is {name}: no run of RetinaNet")
        if given is not None and given not in fitting:
            raise InputError(
                f"{self.file}: submission_benchmark is {name}, which rules {given} do not have; "
                f"give --rules {fitting[0]}, or train with mlperf.rules={given}"
            )
        return given or fitting[0]


def read_run_log(path: Path) -> RunLog:
    """The log of a run's folder, or a log.

    Raises:
        InputError: There is none, or it holds no line of MLPerf's.
    """
    file = path / NAME if path.is_dir() else path
    try:
        texts = texts_of(file)
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read: {error.strerror}; expected the folder of a run, such as "
            f"runs/demo, or its {NAME}"
        ) from error
    lines = log_lines(texts)
    if not lines:
        raise InputError(f"{file}: no line of an MLPerf log (:::MLLOG …); expected a run's {NAME}")
    return RunLog(file=file, lines=tuple(lines), damaged=tuple(damaged_lines(texts)))


def read_run_logs(paths: Sequence[Path]) -> list[RunLog]:
    """Return the logs of runs' folders, of folders of `result_N.txt`, and of files.

    Raises:
        InputError: A path has none, or a file holds no line of MLPerf's.
    """
    return [read_run_log(file) for path in paths for file in log_files(path)]


def log_files(path: Path) -> list[Path]:
    """Return the logs that a path means: itself, a run's, or a submission's results in order."""
    if not path.is_dir() or (path / NAME).exists():
        return [path]
    try:
        numbers = {file: RESULT.fullmatch(file.name) for file in path.iterdir()}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    results = {file: int(match[1]) for file, match in numbers.items() if match}
    return sorted(results, key=lambda file: results[file]) or [path]
