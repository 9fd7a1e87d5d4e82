"""MLCommons' own checkers, called as its command lines call them, and what they say.

TODO-DOC `python -m retinanet mlperf check`: the official compliance checker on a run's log.
"""

import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlperf_logging.compliance_checker import mlp_compliance
from mlperf_logging.mllog import constants

from common.console import make_console
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import require_free_json, write_whole
from retinanet.mlperf.log import BEGIN, RunLog, damaged_lines, log_lines, read_run_logs, texts_of
from retinanet.mlperf.rules import TARGET_MAP, TRAINING_IMAGES, VALIDATION_IMAGES, Rules

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
    from mlperf_logging.rcp_checker.rcp_checker import check_directory  # noqa: PLC0415

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


def check(*, run: Path, rules: Rules | None, json_file: Path | None) -> int:
    """Say what falls short of MLPerf's rules in a run's log.

    Args:
        run: Its folder, or its log, or a folder of `result_N.txt`, which are checked each.
        rules: Rule set; None: the newest that has a benchmark of the log's name.
        json_file: Where the findings go too.

    Returns:
        0 where the official checker passes all, 4 where it does not.

    Raises:
        InputError: There is no log, or the output exists.
    """
    require_free_json(json_file)
    logs = [(log, log.rules(rules)) for log in read_run_logs([run])]
    results = [check_log(log, rules=own_rules) for log, own_rules in logs]
    passed = all(result["passed"] for result in results)
    if json_file is not None:
        single = len(results) == 1
        content = results[0] if single else {"passed": passed, "logs": results}
        write_whole(json_file, json.dumps(content, indent=1) + "\n")
    return FINISHED if passed else CONDITION_MET


def check_log(log: RunLog, *, rules: Rules) -> dict[str, Any]:
    """Print the findings of one log, and return them for JSON."""
    verdict = check_compliance(log.file, rules=rules)
    remarks = remarks_on(log)
    batches = counted_in_batches(log)
    say = partial(make_console().print, soft_wrap=True)

    say(headline(log, rules=rules))
    say(f"official compliance checker ({official_version()}): {verdict.summary}")
    for fault in verdict.faults:
        say(f"  ✗ {fault}")
    for warning in verdict.warnings:
        say(f"  – {warning}")
    if batches:
        say(f"counted in batches, as submissions may: {batches}")
    if remarks:
        say("which it does not look at, and a submission needs:")
        for remark in remarks:
            say(f"  – {remark}")
    return {"log": str(log.file), "rules": rules, **asdict(verdict), "remarks": remarks}


def headline(log: RunLog, *, rules: Rules) -> str:
    """What the log is of."""
    facts = [
        f"{log.file}: {log.value(constants.SUBMISSION_BENCHMARK)}, rules {rules}",
        f"{log.value(constants.SUBMISSION_DIVISION)} division",
        f"batch size {log.value(constants.GLOBAL_BATCH_SIZE)}",
        log.status,
    ]
    if log.accuracy is not None and log.epochs is not None:
        facts.append(f"mAP {log.accuracy:.3f} after epoch {log.epochs:g}")
    if log.minutes is not None:
        facts.append(f"{log.minutes:.1f} minutes by MLPerf's clock")
    return ", ".join(facts)


def counted_in_batches(log: RunLog) -> str:
    """Return the counts of samples that are batches, as accepted submissions log them; or nothing.

    MLPerf's training images in batches of the global batch size, with or without the last one,
    which is smaller, show it; an evaluation may have batches of another size.
    """
    samples, batch = log.value(constants.TRAIN_SAMPLES), log.value(constants.GLOBAL_BATCH_SIZE)
    if type(batch) is not int or batch < 2:
        return ""
    if samples not in (TRAINING_IMAGES // batch, -(-TRAINING_IMAGES // batch)):
        return ""
    evaluated = log.value(constants.EVAL_SAMPLES)
    text = f"{constants.TRAIN_SAMPLES} {samples:,} × {batch}"
    if type(evaluated) is int and evaluated < VALIDATION_IMAGES:
        text += f", {constants.EVAL_SAMPLES} {evaluated:,}"
    return text


def remarks_on(log: RunLog) -> list[str]:
    """What stands between a run and a submission beside the checker's faults."""
    remarks = []
    batches = counted_in_batches(log)
    for key, wanted, what in (
        (constants.TRAIN_SAMPLES, TRAINING_IMAGES, "training"),
        (constants.EVAL_SAMPLES, VALIDATION_IMAGES, "validation"),
    ):
        found = log.value(key)
        in_batches = bool(batches) and type(found) is int and found < wanted
        if isinstance(found, int) and found != wanted and not in_batches:
            remarks.append(f"{key}: {found:,} {what} images; MLPerf's data set has {wanted:,}")
    if log.status != constants.SUCCESS:
        remarks.append(f"run_stop: {log.status}; a run that counts has reached mAP {TARGET_MAP}")
    if not log.value(constants.CACHE_CLEAR):
        remarks.append("cache_clear: not done; as root train with mlperf.clear_caches=true")
    if log.value(constants.SUBMISSION_ORG) == "unnamed":
        remarks.append("submission_org: unnamed; train with mlperf.organization=NAME")
    return remarks
