"""MLCommons' own checkers, called as its command lines call them, and what they say."""

import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mlperf_logging.compliance_checker import mlp_compliance

from retinanet.errors import InputError
from retinanet.mlperf.log_lines import BEGIN, damaged_lines, log_lines, texts_of
from retinanet.mlperf.rules import Rules

USAGE = "training"
LINES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a checker found."""

    passed: bool
    faults: tuple[str, ...]
    """A line each."""
    warnings: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """`passed`, of which warnings take something back, or the number of faults."""
        if not self.passed:
            return plural(len(self.faults), "fault")
        if self.warnings:
            return f"accepted, with {plural(len(self.warnings), 'warning')}"
        return "passed"


def plural(count: int, noun: str) -> str:
    """Return the count and its noun, such as `2 faults`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def official_version() -> str:
    """Of the package that the checkers come in."""
    return f"mlperf-logging {version('mlperf-logging')}"


def check_compliance(log: Path, *, rules: Rules) -> Verdict:
    """Whether a log follows MLPerf's logging rules, for the division and benchmark that it names.

    Raises:
        InputError: The checker breaks off, which it does where values are of another type.
    """
    checker = mlp_compliance.make_checker(USAGE, rules, quiet=False, werror=False)
    mlp_compliance.enqueued_configs.clear()  # an earlier check that broke off leaves some
    damaged = damaged_lines(texts_of(log))
    try:
        with tempfile.TemporaryDirectory() as folder, without_official_logging():
            copy = Path(folder) / log.name
            # It counts lines that are no JSON, and breaks off at JSON that is no event.
            copy.write_text(events_of(log) + f"{BEGIN}\n" * len(damaged), encoding="utf-8")
            passed = checker.check_file(str(copy), f"{USAGE}_{rules}/common.yaml")
    except Exception as error:  # it evaluates expressions of its rules on whatever the log holds
        raise InputError(f"{log}: the official checker broke off: {error!r}") from error
    faults = [in_one_line(one) for one in checker.overwritable.values()]
    faults += [in_one_line(one) for one in checker.not_overwritable]
    if damaged:
        faults.append(f"cut short or no events: {shown_lines(damaged)}")
    return Verdict(
        passed=passed,
        faults=tuple(faults),
        warnings=tuple(f"{in_one_line(one)}, of one value" for one in checker.warnings.values()),
    )


def events_of(log: Path) -> str:
    """Return a log's events alone, a line each, without what launchers put before them."""
    return "".join(f"{line.text}\n" for line in log_lines(texts_of(log)))


def shown_lines(numbers: Sequence[int]) -> str:
    """Return line numbers for a message, the first few of many."""
    more = f" and {len(numbers) - LINES_SHOWN:,} more" if len(numbers) > LINES_SHOWN else ""
    lines = "line" if len(numbers) == 1 else "lines"
    return f"{lines} {', '.join(map(str, numbers[:LINES_SHOWN]))}{more}"


def check_reference_points(logs: Sequence[Path], *, rules: Rules) -> tuple[bool, str, float]:
    """Whether runs converge no faster than the reference implementation: the checker's verdict, its
    words, and the factor by which a submission's time would be multiplied.

    Raises:
        InputError: The checker breaks off.
    """
    from mlperf_logging.rcp_checker.rcp_checker import check_directory  # noqa: PLC0415 - scipy: 1 s

    with tempfile.TemporaryDirectory() as folder, without_official_logging():
        for number, log in enumerate(logs):
            copy = Path(folder) / f"result_{number}.txt"
            copy.write_text(events_of(log), encoding="utf-8")
        try:
            passed, words, factor = check_directory(
                folder,
                USAGE,
                rules,
                verbose=False,
                bert_train_samples=False,
                rcp_pass="pruned_rcps",
            )
        except Exception as error:
            names = ", ".join(map(str, logs))
            raise InputError(f"{names}: the official RCP checker broke off: {error!r}") from error
    return bool(passed), words, float(factor)


def check_package(folder: Path, *, rules: Rules) -> Verdict:
    """Whether a submission's folder is complete; its runs are checked one by one."""
    with tempfile.TemporaryDirectory() as elsewhere:  # it leaves a log where it runs
        command = [sys.executable, "-m", "mlperf_logging.package_checker"]
        done = subprocess.run(
            [*command, str(folder.resolve()), USAGE, rules],
            cwd=elsewhere,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    words = done.stderr.splitlines()
    return Verdict(
        passed=any("PACKAGE CHECKER FOUND NO ERRORS" in line for line in words),
        faults=said(words, "ERROR") or tuple(words[-1:] if done.returncode else ()),
        warnings=said(words, "WARNING"),
    )


def said(lines: Sequence[str], level: str) -> tuple[str, ...]:
    """What was logged at a level, each thing once."""
    found = (line.partition(" - ") for line in lines)
    told = [words.strip() for name, _, words in found if name == level]
    return tuple(dict.fromkeys(told))


def in_one_line(message: str) -> str:
    """The gist of a fault, which comes with the whole line and the state of the check."""
    test = re.search(r"^failed test: (.*)$", message, re.MULTILINE)
    first = " ".join(message.splitlines()[0].split())
    return f"{first.rstrip(':')}: {test[1].strip()}" if test and test[0] != first else first


@contextmanager
def without_official_logging() -> Iterator[None]:
    """The checkers log all that they return to the root logger, which would print it."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
