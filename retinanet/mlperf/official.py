"""MLCommons' own checkers, called as its command lines call them, and their findings.

`check` runs the compliance checker on a run's log; `rcp` compares a set of runs with the reference
convergence points: do they converge as the reference implementation does?
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
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from mlperf_logging.compliance_checker import mlp_compliance
from mlperf_logging.mllog import constants
from rich.console import Console

from common.charts import Column, Table, text_column
from common.console import make_console
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import require_free_json, write_whole
from retinanet.mlperf.log import BEGIN, RunLog, damaged_lines, log_lines, read_run_logs, texts_of
from retinanet.mlperf.rules import (
    RUNS_OF_SUBMISSION,
    TARGET_MAP,
    TRAINING_IMAGES,
    VALIDATION_IMAGES,
    Rules,
    expectation,
    reference_points,
)

USAGE = "training"
LINES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a checker; faults and warnings are a line each."""

    passed: bool
    faults: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """`passed`, or with warnings `accepted`, or the number of faults."""
        if self.passed and not self.warnings:
            return "passed"
        items, noun = (self.warnings, "warning") if self.passed else (self.faults, "fault")
        count = f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
        return f"accepted, with {count}" if self.passed else count


def official_version() -> str:
    """Return the name and version of the package that the checkers come in."""
    return f"mlperf-logging {version('mlperf-logging')}"


def check_compliance(log: Path, *, rules: Rules) -> Verdict:
    """Check whether a log follows MLPerf's logging rules, for its own division and benchmark.

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
    faults = [*map(in_one_line, (*checker.overwritable.values(), *checker.not_overwritable))]
    if damaged:
        faults.append(f"cut short or no events: {format_lines(damaged)}")
    warnings = [f"{in_one_line(text)}, of one value" for text in checker.warnings.values()]
    return Verdict(passed=passed, faults=tuple(faults), warnings=tuple(warnings))


def events_of(log: Path) -> str:
    """Return a log's events alone, a line each, without what launchers put before them."""
    return "".join(f"{line.text}\n" for line in log_lines(texts_of(log)))


def format_lines(numbers: Sequence[int]) -> str:
    """Return line numbers for a message, the first few of many."""
    more = f" and {len(numbers) - LINES_SHOWN:,} more" if len(numbers) > LINES_SHOWN else ""
    lines = "line" if len(numbers) == 1 else "lines"
    return f"{lines} {', '.join(map(str, numbers[:LINES_SHOWN]))}{more}"


def check_reference_points(logs: Sequence[Path], *, rules: Rules) -> tuple[bool, str, float]:
    """Check runs' convergence: the verdict, its words, and the factor on a submission's time."""
    from mlperf_logging.rcp_checker.rcp_checker import check_directory  # noqa: PLC0415

    options = {"verbose": False, "bert_train_samples": False, "rcp_pass": "pruned_rcps"}
    with tempfile.TemporaryDirectory() as folder, without_official_logging():
        for number, log in enumerate(logs):
            copy = Path(folder) / f"result_{number}.txt"
            copy.write_text(events_of(log), encoding="utf-8")
        try:
            passed, words, factor = check_directory(folder, USAGE, rules, **options)
        except Exception as error:
            names = ", ".join(map(str, logs))
            raise InputError(f"{names}: the official RCP checker broke off: {error!r}") from error
    return bool(passed), words, float(factor)


def check_package(folder: Path, *, rules: Rules) -> Verdict:
    """Check whether a submission's folder is complete; its runs are checked one by one."""
    command = [sys.executable, "-m", "mlperf_logging.package_checker", str(folder.resolve())]
    with tempfile.TemporaryDirectory() as elsewhere:  # it leaves a log where it runs
        done = subprocess.run(
            [*command, USAGE, rules], cwd=elsewhere, capture_output=True, check=False
        )
    lines = done.stderr.decode(errors="replace").splitlines()
    messages: dict[str, dict[str, None]] = {"ERROR": {}, "WARNING": {}}  # each once
    for level, _, text in (line.partition(" - ") for line in lines):
        if level in messages:
            messages[level][text.strip()] = None
    return Verdict(
        passed=any("PACKAGE CHECKER FOUND NO ERRORS" in line for line in lines),
        faults=tuple(messages["ERROR"]) or tuple(lines[-1:] if done.returncode else ()),
        warnings=tuple(messages["WARNING"]),
    )


def in_one_line(message: str) -> str:
    """Return the gist of a fault, which comes with the whole line and the state of the check."""
    test = re.search(r"^failed test: (.*)$", message, re.MULTILINE)
    first = " ".join(message.splitlines()[0].split())
    return f"{first.rstrip(':')}: {test[1].strip()}" if test and test[0] != first else first


@contextmanager
def without_official_logging() -> Iterator[None]:
    """Silence the root logger, to which the checkers log all that they return."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def check(*, path: Path, rules: Rules | None, json_file: Path | None) -> int:
    """Print what falls short of MLPerf's rules in a run's log; 4 where the official checker fails.

    The path is a run's folder, or its log, or a folder of `result_N.txt`, which are checked each.
    `rules=None`: the newest that have a benchmark of the log's name.

    Raises:
        InputError: There is no log, or the output exists.
    """
    require_free_json(json_file)
    logs = [(log, log.rules(rules)) for log in read_run_logs([path])]
    results = [check_log(log, rules=rules_of_log) for log, rules_of_log in logs]
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
    console = make_console()
    console.print(", ".join(facts), soft_wrap=True)
    print_verdict(console, "compliance checker", verdict, result=verdict.summary)
    lines = [f"counted in batches, as submissions may: {batches}"] if batches else []
    if remarks:
        lines += ["which it does not look at, and a submission needs:"]
        lines += [f"  – {remark}" for remark in remarks]
    for line in lines:
        console.print(line, soft_wrap=True)
    return {"log": str(log.file), "rules": rules, **asdict(verdict), "remarks": remarks}


def print_verdict(console: Console, checker: str, verdict: Verdict, *, result: str) -> None:
    """Print the result of an official checker, with its faults and warnings."""
    lines = [f"official {checker} ({official_version()}): {result}"]
    lines += [f"  ✗ {fault}" for fault in verdict.faults]
    lines += [f"  – {warning}" for warning in verdict.warnings]
    for line in lines:
        console.print(line, soft_wrap=True)


def counted_in_batches(log: RunLog) -> str:
    """Return the counts of samples that are batches, as submissions may log them; or nothing."""
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
    """Return what a run lacks for a submission beside the checker's faults."""
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


FEWEST = 3  # Of which one is left when the fastest and the slowest are dropped


def rcp(*, runs: Sequence[Path], rules: Rules | None, json_file: Path | None) -> int:
    """Compare a set of runs with MLPerf's reference convergence points; 4 where they fail.

    Runs are their folders, or logs, or folders of `result_N.txt`. `rules=None`: the newest that
    have a benchmark of the logs' name.

    Raises:
        InputError: A log is missing, they do not belong together, or they are too few.
    """
    require_free_json(json_file)
    logs = read_run_logs(runs)
    rules, batch_size = require_one_kind(logs, rules)
    passed, words, factor = check_reference_points([log.file for log in logs], rules=rules)
    expected = expectation(reference_points(rules), batch_size)
    # Converged runs but the fastest and the slowest.
    converged = [log.epochs for log in logs if log.status == constants.SUCCESS]
    epochs = sorted(number for number in converged if number is not None)
    mean = fmean(epochs[1:-1]) if len(epochs) >= FEWEST else None
    lines = [
        f"{log.file}: left out, cut short or no events: {format_lines(log.damaged)}"
        for log in logs
        if log.damaged
    ]
    lines.append(
        f"the reference implementation: {expected.mean_epochs:.2f} epochs, {expected.basis}"
    )
    if mean is not None:
        lines.append(f"these runs: {mean:.2f} epochs, without the fastest and the slowest")
    verdict = "passed" if passed else "failed"
    lines.append(f"official RCP checker ({official_version()}): {verdict}: {words.strip()}")
    if passed and factor != 1:
        lines.append(f"faster than the reference: times would be multiplied by {factor:.4f}")
    if len(logs) != RUNS_OF_SUBMISSION:
        lines.append(f"{len(logs)} runs; a submission has {RUNS_OF_SUBMISSION}")
    console = make_console()
    title = f"runs at global batch size {batch_size}, rules {rules}"
    rows = []
    for log in logs:
        numbers = (log.epochs, log.accuracy, log.minutes)
        shown = ("–" if number is None else number for number in numbers)
        rows.append((str(log.file), log.status, *shown, str(log.value(constants.SEED))))
    console.print(Table(title, RUN_COLUMNS, rows).for_console())
    for line in lines:
        console.print(line, soft_wrap=True)
    if json_file is not None:
        content = {
            "rules": rules,
            "batch_size": batch_size,
            "passed": passed,
            "words": words.strip(),
            "normalization": factor,
            "mean_epochs": mean,
            "reference_epochs": expected.mean_epochs,
            "runs": [
                {"log": str(log.file), "status": log.status, "epochs": log.epochs} for log in logs
            ],
        }
        write_whole(json_file, json.dumps(content, indent=1) + "\n")
    return FINISHED if passed else CONDITION_MET


RUN_COLUMNS = (
    text_column("run"),
    Column("status"),
    Column("epochs", "g"),
    Column("mAP", ".3f"),
    Column("minutes", ".1f"),
    Column("seed"),
)


def require_one_kind(logs: Sequence[RunLog], rules: Rules | None) -> tuple[Rules, int]:
    """Return the rules and the global batch size of runs that can be compared."""
    if len(logs) < FEWEST:
        raise InputError(
            f"found {len(logs)} of at least {FEWEST} runs: the fastest and the slowest do not "
            f"count; a submission has {RUNS_OF_SUBMISSION}"
        )
    first = logs[0]
    chosen = first.rules(rules)
    size = first.value(constants.GLOBAL_BATCH_SIZE)
    for place, log in enumerate(logs):
        log.rules(chosen)
        if log.file.resolve() in [other.file.resolve() for other in logs[:place]]:
            raise InputError(f"{log.file}: given twice")
        its_size = log.value(constants.GLOBAL_BATCH_SIZE)
        if its_size != size:
            raise InputError(
                f"{log.file}: global batch size {its_size}, but {first.file} has {size}; compare "
                "runs of one size"
            )
    if not isinstance(size, int):
        raise InputError(f"{first.file}: says no global_batch_size; expected a run's whole log")
    return chosen, size
