"""`python -m retinanet mlperf check`: the official compliance checker on a run's log."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import constants

from retinanet.exit_codes import CONDITION_MET, FINISHED
from retinanet.mlperf.official import check_compliance, official_version
from retinanet.mlperf.rules import (
    TARGET_MAP,
    TRAINING_IMAGES,
    VALIDATION_IMAGES,
    Rules,
)
from retinanet.mlperf.run_log import RunLog, read_run_logs
from retinanet.output_files import require_free_json, write_whole
from retinanet.terminal import make_console


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
