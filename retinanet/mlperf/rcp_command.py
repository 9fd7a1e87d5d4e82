"""`python -m retinanet mlperf rcp`: do runs converge as the reference implementation does?"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from mlperf_logging.mllog import constants
from rich.table import Table

from retinanet.errors import InputError
from retinanet.exit_codes import CONDITION_MET, FINISHED
from retinanet.mlperf.official import check_reference_points, official_version, shown_lines
from retinanet.mlperf.reference_points import expectation, reference_points
from retinanet.mlperf.rules import RUNS_OF_SUBMISSION, Rules
from retinanet.mlperf.run_log import RunLog, read_run_logs
from retinanet.output_files import require_free_json, write_whole
from retinanet.terminal import make_console

FEWEST = 3
"""Of which one is left when the fastest and the slowest are dropped."""


def rcp(*, runs: Sequence[Path], rules: Rules | None, json_file: Path | None) -> int:
    """Compare a set of runs with MLPerf's reference convergence points.

    Args:
        runs: Their folders, or logs, or folders of `result_N.txt`.
        rules: Rule set; None: the newest that has a benchmark of the logs' name.
        json_file: Where the verdict goes too.

    Returns:
        0 where the official checker passes, 4 where it does not.

    Raises:
        InputError: A log is missing, they do not belong together, or they are too few.
    """
    require_free_json(json_file)
    logs = read_run_logs(runs)
    rules, batch_size = require_one_kind(logs, rules)
    passed, words, factor = check_reference_points([log.file for log in logs], rules=rules)
    console = make_console()
    console.print(table_of(logs, title=f"runs at global batch size {batch_size}, rules {rules}"))
    say = partial(console.print, soft_wrap=True)

    expected = expectation(reference_points(rules), batch_size)
    for log in logs:
        if log.damaged:
            say(f"{log.file}: left out, cut short or no events: {shown_lines(log.damaged)}")
    say(f"the reference implementation: {expected.mean_epochs:.2f} epochs, {expected.basis}")
    mean = mean_epochs(logs)
    if mean is not None:
        say(f"these runs: {mean:.2f} epochs, without the fastest and the slowest")
    verdict = "passed" if passed else "failed"
    say(f"official RCP checker ({official_version()}): {verdict}: {words.strip()}")
    if passed and factor != 1:
        say(f"faster than the reference: times would be multiplied by {factor:.4f}")
    if len(logs) != RUNS_OF_SUBMISSION:
        say(f"{len(logs)} runs; a submission has {RUNS_OF_SUBMISSION}")
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


def require_one_kind(logs: Sequence[RunLog], rules: Rules | None) -> tuple[Rules, int]:
    """The rules and the global batch size of runs that can be compared.

    Raises:
        InputError: They are too few, one is given twice, or they differ.
    """
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
        if log.value(constants.GLOBAL_BATCH_SIZE) != size:
            raise InputError(
                f"{log.file}: global batch size {log.value(constants.GLOBAL_BATCH_SIZE)}, but "
                f"{first.file} has {size}; compare runs of one size"
            )
    if not isinstance(size, int):
        raise InputError(f"{first.file}: says no global_batch_size; expected a run's whole log")
    return chosen, size


def mean_epochs(logs: Sequence[RunLog]) -> float | None:
    """Of converged runs, without the fastest and the slowest; None where too few converged."""
    epochs = sorted(
        log.epochs for log in logs if log.status == constants.SUCCESS and log.epochs is not None
    )
    return fmean(epochs[1:-1]) if len(epochs) >= FEWEST else None


def table_of(logs: Sequence[RunLog], *, title: str) -> Table:
    """A row a run."""
    table = Table("run", title=title, title_justify="left")
    for heading in ("status", "epochs", "mAP", "minutes", "seed"):
        table.add_column(heading, justify="right")
    for log in logs:
        numbers = ((log.epochs, "g"), (log.accuracy, ".3f"), (log.minutes, ".1f"))
        shown = ["–" if number is None else format(number, form) for number, form in numbers]
        table.add_row(str(log.file), log.status, *shown, str(log.value(constants.SEED)))
    return table
