"""MLCommons' checkers, called as their command lines call them, and their findings.

`check` runs the compliance checker on a run's log; `rcp` compares the convergence of a set of runs
with the reference convergence points.
"""

import logging
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from mlperf_logging.compliance_checker import mlp_compliance
from mlperf_logging.mllog import constants
from rich.console import Console

from common.charts import Column, Table, text_column
from common.console import make_console, print_line
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import write_json
from common.walk import real_path
from common.wording import counted, listed
from retinanet.mlperf.commands import CheckOptions, RcpOptions
from retinanet.mlperf.log import BEGIN, RunLog, read_run_log, read_run_logs
from retinanet.mlperf.rules import (
    RUNS_OF_SUBMISSION,
    TARGET_MAP,
    TRAINING_IMAGES,
    VALIDATION_IMAGES,
    Rules,
    counts_batches,
    expectation,
    reference_points,
)

USAGE = "training"
LINES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a checker, with one line per fault and warning."""

    passed: bool
    faults: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """`passed`, `accepted` with the number of warnings, or the number of faults."""
        if self.passed and not self.warnings:
            return "passed"
        items, noun = (self.warnings, "warning") if self.passed else (self.faults, "fault")
        count = counted(len(items), noun)
        return f"accepted, with {count}" if self.passed else count


def official_version() -> str:
    """Return name and version of the package of the checkers."""
    return f"mlperf-logging {version('mlperf-logging')}"


def check_compliance(file: Path, *, rules: Rules) -> Verdict:
    """Check a log against MLPerf's logging rules, for its division and benchmark.

    Raises:
        InputError: The checker fails with an exception, for example at values of a wrong type.
    """
    # quiet=True would drop the warnings, and werror=True would make them faults.
    checker = mlp_compliance.make_checker(USAGE, rules, quiet=False, werror=False)
    # The queue of rule files is global: a check that ended with an exception leaves entries.
    mlp_compliance.enqueued_configs.clear()
    log = read_run_log(file)
    try:
        with tempfile.TemporaryDirectory() as folder, silenced_logging():
            copy = Path(folder) / file.name
            # The checker counts lines that are not JSON, but fails at JSON that is not an event.
            copy.write_text(format_events(log) + f"{BEGIN}\n" * len(log.damaged), encoding="utf-8")
            passed = checker.check_file(str(copy), f"{USAGE}_{rules}/common.yaml")
    except Exception as error:  # its rules are expressions that are evaluated on any value
        raise InputError(f"{file}: the official checker failed: {error!r}") from error
    faults = [*map(summarize_fault, (*checker.overwritable.values(), *checker.not_overwritable))]
    if log.damaged:
        faults.append(f"truncated or invalid: {format_lines(log.damaged)}")
    # The checker has a single warning: a key that must occur once is repeated with an equal value.
    warnings = [f"{summarize_fault(text)}, of equal value" for text in checker.warnings.values()]
    return Verdict(passed=passed, faults=tuple(faults), warnings=tuple(warnings))


def format_events(log: RunLog) -> str:
    """Return a log's events, one per line, without the prefixes of launchers."""
    return "".join(f"{line.text}\n" for line in log.lines)


def format_lines(numbers: Sequence[int]) -> str:
    """Return line numbers as text, at most the first `LINES_SHOWN`."""
    lines = "line" if len(numbers) == 1 else "lines"
    return f"{lines} {listed(map(str, numbers), LINES_SHOWN)}"


def check_reference_points(logs: Sequence[RunLog], *, rules: Rules) -> tuple[bool, str, float]:
    """Check the convergence of runs; return verdict, message and factor on the time."""
    # Imported here, because the RCP checker loads scipy, which takes a second.
    from mlperf_logging.rcp_checker.rcp_checker import check_directory  # noqa: PLC0415

    # The options of the official package checker, which compares runs with the pruned points.
    options = {"verbose": False, "bert_train_samples": False, "rcp_pass": "pruned_rcps"}
    with tempfile.TemporaryDirectory() as folder, silenced_logging():
        for number, log in enumerate(logs):
            # The checker reads all files of one folder with such names. Only complete events are
            # copied, because a truncated one may end the checker with an exception.
            copy = Path(folder) / f"result_{number}.txt"
            copy.write_text(format_events(log), encoding="utf-8")
        try:
            passed, message, factor = check_directory(folder, USAGE, rules, **options)
        except Exception as error:
            names = ", ".join(str(log.file) for log in logs)
            raise InputError(f"{names}: the official RCP checker failed: {error!r}") from error
    return bool(passed), message, float(factor)


def check_package(folder: Path, *, rules: Rules) -> Verdict:
    """Check that a submission's folder is complete, and check each of its runs."""
    command = [sys.executable, "-m", "mlperf_logging.package_checker", str(real_path(folder))]
    # The checker writes a log to its working directory and configures the root logger, hence a
    # separate process in a scratch folder.
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [*command, USAGE, rules], cwd=scratch, capture_output=True, check=False
        )
    # Its log lines on stderr are `LEVEL - text`. Its exit status is 0 even if it has found errors.
    lines = done.stderr.decode(errors="replace").splitlines()
    # Dicts as ordered sets: a message of several runs is shown once.
    messages: dict[str, dict[str, None]] = {"ERROR": {}, "WARNING": {}}
    for level, _, text in (line.partition(" - ") for line in lines):
        if level in messages:
            messages[level][text.strip()] = None
    return Verdict(
        passed=any("PACKAGE CHECKER FOUND NO ERRORS" in line for line in lines),
        faults=tuple(messages["ERROR"]) or tuple(lines[-1:] if done.returncode else ()),
        warnings=tuple(messages["WARNING"]),
    )


def summarize_fault(message: str) -> str:
    """Return a fault on one line, without the log line and the state that the checker appends."""
    # The message of a check at the end of a log begins with its test, which is then not repeated.
    test = re.search(r"^failed test: (.*)$", message, re.MULTILINE)
    first = " ".join(message.splitlines()[0].split())
    return f"{first.rstrip(':')}: {test[1].strip()}" if test and test[0] != first else first


@contextmanager
def silenced_logging() -> Iterator[None]:
    """Silence the root logger, to which the checkers log their results too."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def check(options: CheckOptions) -> int:
    """Print violations of MLPerf's rules in a run's log; return 4 if the official checker fails.

    Raises:
        InputError: A log is missing.
    """
    logs = [(log, log.rules(options.rules)) for log in read_run_logs([options.path])]
    results = [check_log(log, rules=rules_of_log) for log, rules_of_log in logs]
    passed = all(result["passed"] for result in results)
    if options.json is not None:
        single = len(results) == 1
        write_json(options.json, results[0] if single else {"passed": passed, "logs": results})
    return FINISHED if passed else CONDITION_MET


def check_log(log: RunLog, *, rules: Rules) -> dict[str, Any]:
    """Print the findings of one log, and return them as JSON values."""
    verdict = check_compliance(log.file, rules=rules)
    remarks = find_remarks(log)
    batches = format_batch_counts(log)
    facts = [
        f"{log.file}: {log.value(constants.SUBMISSION_BENCHMARK)}, rules {rules}",
        f"{log.value(constants.SUBMISSION_DIVISION)} division",
        f"batch size {log.value(constants.GLOBAL_BATCH_SIZE)}",
        log.status,
    ]
    if log.accuracy is not None and log.epochs is not None:
        facts.append(f"mAP {log.accuracy:.3f} after epoch {log.epochs:g}")
    if log.minutes is not None:
        facts.append(f"{log.minutes:.1f} minutes on MLPerf's clock")
    console = make_console()
    print_line(console, ", ".join(facts))
    print_verdict(console, "compliance checker", verdict, result=verdict.summary)
    lines = [f"samples are counted in batches, which is allowed: {batches}"] if batches else []
    if remarks:
        lines += ["not covered by the checker, but needed for a submission:"]
        lines += [f"  – {remark}" for remark in remarks]
    for line in lines:
        print_line(console, line)
    return {"log": str(log.file), "rules": rules, **asdict(verdict), "remarks": remarks}


def print_verdict(console: Console, checker: str, verdict: Verdict, *, result: str) -> None:
    """Print the result of an official checker, with its faults and warnings."""
    lines = [f"official {checker} ({official_version()}): {result}"]
    lines += [f"  ✗ {fault}" for fault in verdict.faults]
    lines += [f"  – {warning}" for warning in verdict.warnings]
    for line in lines:
        print_line(console, line)


def format_batch_counts(log: RunLog) -> str:
    """Return the sample counts if they are in batches, as submissions may, else an empty text."""
    samples, batch = log.value(constants.TRAIN_SAMPLES), log.value(constants.GLOBAL_BATCH_SIZE)
    if type(batch) is not int or batch < 2 or not counts_batches(samples, batch):
        return ""
    evaluated = log.value(constants.EVAL_SAMPLES)
    text = f"{constants.TRAIN_SAMPLES} {samples:,} × {batch:,}"
    if type(evaluated) is int and evaluated < VALIDATION_IMAGES:
        text += f", {constants.EVAL_SAMPLES} {evaluated:,}"
    return text


def find_remarks(log: RunLog) -> list[str]:
    """Return what a run lacks for a submission in addition to the checker's faults."""
    remarks = []
    batches = format_batch_counts(log)
    for key, expected, split in (
        (constants.TRAIN_SAMPLES, TRAINING_IMAGES, "training"),
        (constants.EVAL_SAMPLES, VALIDATION_IMAGES, "validation"),
    ):
        count = log.value(key)
        # The log has no batch size of evaluations: any smaller number may be in batches.
        in_batches = bool(batches) and type(count) is int and count < expected
        if isinstance(count, int) and count != expected and not in_batches:
            remarks.append(f"{key}: {count:,} {split} images; MLPerf's data set has {expected:,}")
    if log.status != constants.SUCCESS:
        remarks.append(f"run_stop: {log.status}; a valid run reaches mAP {TARGET_MAP}")
    if not log.value(constants.CACHE_CLEAR):
        remarks.append("cache_clear: false; train as root with mlperf.clear_caches=true")
    if log.value(constants.SUBMISSION_ORG) == "unnamed":
        remarks.append("submission_org: unnamed; train with mlperf.organization=NAME")
    return remarks


FEWEST = 3  # One remains when the fastest and the slowest are dropped


def rcp(options: RcpOptions) -> int:
    """Compare a set of runs with MLPerf's reference convergence points; return 4 if they fail.

    Raises:
        InputError: A log is missing, runs are not comparable, or there are too few.
    """
    logs = read_run_logs(options.runs)
    rules, batch_size = require_comparable(logs, options.rules)
    passed, message, factor = check_reference_points(logs, rules=rules)
    expected = expectation(reference_points(rules, pruned=True), batch_size)
    # The official checker counts a run that missed the target as the slowest of all.
    epochs = sorted(
        math.inf if log.status != constants.SUCCESS or log.epochs is None else log.epochs
        for log in logs
    )
    mean = fmean(epochs[1:-1]) if epochs[-2] < math.inf else None
    lines = [
        f"{log.file}: ignored, truncated or invalid: {format_lines(log.damaged)}"
        for log in logs
        if log.damaged
    ]
    lines.append(f"reference implementation: {expected.mean_epochs:.2f} epochs, {expected.basis}")
    if mean is not None:
        lines.append(f"these runs: {mean:.2f} epochs, without the fastest and the slowest")
    verdict = "passed" if passed else "failed"
    lines.append(f"official RCP checker ({official_version()}): {verdict}: {message.strip()}")
    if passed and factor != 1:
        lines.append(f"faster than the reference: MLPerf multiplies the time by {factor:.4f}")
    remarks = remarks_on_set(logs)
    lines += remarks
    console = make_console()
    title = f"runs at global batch size {batch_size}, rules {rules}"
    rows = []
    for log in logs:
        numbers = (log.epochs, log.accuracy, log.minutes)
        cells = ("–" if number is None else number for number in numbers)
        rows.append((str(log.file), log.status, *cells, str(log.value(constants.SEED))))
    console.print(Table(title, RUN_COLUMNS, rows).for_console())
    for line in lines:
        print_line(console, line)
    if options.json is not None:
        content = {
            "rules": rules,
            "batch_size": batch_size,
            "passed": passed,
            "words": message.strip(),
            "normalization": factor,
            "mean_epochs": mean,
            "reference_epochs": expected.mean_epochs,
            "remarks": remarks,
            "runs": [
                {"log": str(log.file), "status": log.status, "epochs": log.epochs} for log in logs
            ],
        }
        write_json(options.json, content)
    return FINISHED if passed else CONDITION_MET


RUN_COLUMNS = (
    text_column("run"),
    Column("status"),
    Column("epochs", "g"),
    Column("mAP", ".3f"),
    Column("minutes", ".1f"),
    Column("seed"),
)


def remarks_on_set(logs: Sequence[RunLog]) -> list[str]:
    """Return why runs are no set of a submission, which the RCP checker does not examine."""
    remarks = []
    if len(logs) != RUNS_OF_SUBMISSION:
        remarks.append(f"{len(logs)} runs; a submission has {RUNS_OF_SUBMISSION}")
    seeds = files_by_value(logs, constants.SEED)
    equal = {seed: files for seed, files in seeds.items() if len(files) > 1}
    if equal:
        remarks.append(
            f"not a set: equal seeds ({format_groups(equal)}); a submission's runs differ in it"
        )
    for key, what in (
        (constants.SUBMISSION_ORG, "submitters"),
        (constants.SUBMISSION_PLATFORM, "systems"),
        (constants.SUBMISSION_DIVISION, "divisions"),
    ):
        values = files_by_value(logs, key)
        if len(values) > 1:
            remarks.append(f"not a set: different {what} ({format_groups(values)})")
    return remarks


def files_by_value(logs: Sequence[RunLog], key: str) -> dict[str, list[str]]:
    """Return the logs that have each value of a key, without those that have none."""
    files: dict[str, list[str]] = {}
    for log in logs:
        if (value := log.value(key)) is not None:
            files.setdefault(str(value), []).append(str(log.file))
    return files


def format_groups(files: Mapping[str, Sequence[str]]) -> str:
    """Return each value with the logs that have it."""
    return "; ".join(f"{value}: {', '.join(names)}" for value, names in files.items())


def require_comparable(logs: Sequence[RunLog], rules: Rules | None) -> tuple[Rules, int]:
    """Return the rules and the global batch size of comparable runs."""
    if len(logs) < FEWEST:
        raise InputError(
            f"{len(logs)} runs, but at least {FEWEST} are needed, since the fastest and the "
            f"slowest are dropped; a submission has {RUNS_OF_SUBMISSION}"
        )
    first = logs[0]
    chosen = first.rules(rules)
    size = first.value(constants.GLOBAL_BATCH_SIZE)
    for index, log in enumerate(logs):
        # Raises an error if this log has another benchmark than the first one.
        log.rules(chosen)
        if real_path(log.file) in [real_path(other.file) for other in logs[:index]]:
            raise InputError(f"{log.file}: given twice")
        other_size = log.value(constants.GLOBAL_BATCH_SIZE)
        if other_size != size:
            raise InputError(
                f"{log.file}: global batch size {other_size}, but {first.file} has {size}; "
                "compare runs of the same size"
            )
    if not isinstance(size, int):
        raise InputError(f"{first.file}: no global_batch_size; give the complete log of a run")
    return chosen, size
