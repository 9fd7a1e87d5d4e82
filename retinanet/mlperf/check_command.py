"""`python -m retinanet mlperf check`: the official compliance checker on a run's log."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from mlperf_logging.mllog import constants

from retinanet.exit_codes import CONDITION_MET, FINISHED
from retinanet.mlperf.official import Verdict, check_compliance, official_version
from retinanet.mlperf.rules import (
    TARGET_MAP,
    TRAINING_IMAGES,
    VALIDATION_IMAGES,
    Rules,
)
from retinanet.mlperf.run_log import RunLog, read_run_log
from retinanet.output_files import require_free_json, write_whole
from retinanet.terminal import make_console


def check(*, run: Path, rules: Rules | None, json_file: Path | None) -> int:
    """Say what falls short of MLPerf's rules in a run's log.

    Args:
        run: Its folder, or its log.
        rules: Rule set; None: the newest that has a benchmark of the log's name.
        json_file: Where the findings go too.

    Returns:
        0 where the official checker passes, 4 where it does not.

    Raises:
        InputError: There is no log, or the output exists.
    """
    require_free_json(json_file)
    log = read_run_log(run)
    rules = log.rules(rules)
    verdict = check_compliance(log.file, rules=rules)
    remarks = remarks_on(log)
    console = make_console()
    say = partial(console.print, soft_wrap=True)

    say(headline(log, rules=rules))
    say(f"official compliance checker ({official_version()}): {words_of(verdict)}")
    for fault in verdict.faults:
        say(f"  ✗ {fault}")
    for warning in verdict.warnings:
        say(f"  – {warning}")
    if remarks:
        say("which it does not look at, and a submission needs:")
        for remark in remarks:
            say(f"  – {remark}")
    if json_file is not None:
        content = {"log": str(log.file), "rules": rules, **asdict(verdict), "remarks": remarks}
        write_whole(json_file, json.dumps(content, indent=1) + "\n")
    return FINISHED if verdict.passed else CONDITION_MET


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


def words_of(verdict: Verdict) -> str:
    """Whether it passed."""
    count = len(verdict.faults)
    return "passed" if verdict.passed else f"{count} {'fault' if count == 1 else 'faults'}"


def remarks_on(log: RunLog) -> list[str]:
    """What stands between a run and a submission beside the checker's faults."""
    remarks = []
    for key, wanted, what in (
        (constants.TRAIN_SAMPLES, TRAINING_IMAGES, "training"),
        (constants.EVAL_SAMPLES, VALIDATION_IMAGES, "validation"),
    ):
        found = log.value(key)
        if isinstance(found, int) and found != wanted:
            remarks.append(f"{key}: {found:,} {what} images; MLPerf's data set has {wanted:,}")
    if log.status != constants.SUCCESS:
        remarks.append(f"run_stop: {log.status}; a run that counts has reached mAP {TARGET_MAP}")
    if not log.value(constants.CACHE_CLEAR):
        remarks.append("cache_clear: not done; as root train with mlperf.clear_caches=true")
    if log.value(constants.SUBMISSION_ORG) == "unnamed":
        remarks.append("submission_org: unnamed; train with mlperf.organization=NAME")
    return remarks
