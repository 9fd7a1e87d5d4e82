"""MLCommons' own checkers, called as its command lines call them, and what they say."""

import logging
import re
import shutil
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
from retinanet.mlperf.rules import Rules

USAGE = "training"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a checker found."""

    passed: bool
    faults: tuple[str, ...]
    """A line each."""
    warnings: tuple[str, ...] = ()


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
    try:
        with without_official_logging():
            passed = checker.check_file(str(log), f"{USAGE}_{rules}/common.yaml")
    except Exception as error:  # it evaluates expressions of its rules on whatever the log holds
        raise InputError(f"{log}: the official checker broke off: {error!r}") from error
    faults = [*checker.overwritable.values(), *checker.not_overwritable]
    return Verdict(
        passed=passed,
        faults=tuple(map(in_one_line, faults)),
        warnings=tuple(map(in_one_line, checker.warnings.values())),
    )


def check_reference_points(logs: Sequence[Path], *, rules: Rules) -> tuple[bool, str, float]:
    """Whether runs converge no faster than the reference implementation: the checker's verdict, its
    words, and the factor by which a submission's time would be multiplied.

    Raises:
        InputError: The checker breaks off.
    """
    from mlperf_logging.rcp_checker.rcp_checker import check_directory  # noqa: PLC0415 - scipy: 1 s

    with tempfile.TemporaryDirectory() as folder, without_official_logging():
        for number, log in enumerate(logs):
            shutil.copyfile(log, Path(folder) / f"result_{number}.txt")
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
