"""`python -m retinanet mlperf submission`: runs as a submission, checked by MLCommons' own."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mlperf_logging.mllog import constants
from rich.console import Console

from retinanet.command_line import installed
from retinanet.errors import InputError
from retinanet.exit_codes import CONDITION_MET, FINISHED
from retinanet.mlperf.official import check_package, official_version
from retinanet.mlperf.rules import RUNS_OF_SUBMISSION, Rules
from retinanet.mlperf.run_log import read_run_log
from retinanet.mlperf.submission import Submission, add_run, empty_fields
from retinanet.terminal import make_console


def submission(*, runs: Sequence[Path], out: Path, rules: Rules | None) -> int:
    """Add runs to a submission's folder and check the folder.

    Args:
        runs: Their folders.
        out: The submission's.
        rules: Rule set; None: the newest that has a benchmark of the logs' name.

    Returns:
        0 where the official checker passes, 4 where it does not.

    Raises:
        InputError: A run cannot be added, see `add_run`; those before it were.
    """
    for run in runs:
        rules = read_run_log(run).rules(rules)
    for run in runs:
        added = add_run(out, run)
    assert rules is not None, "there is at least one run"
    return FINISHED if tell(added, rules=rules, console=make_console()) else CONDITION_MET


def submit(run: Path, out: Path, *, console: Console) -> None:
    """Add a run that has just finished to its submission; where it has not converged, say so.

    Raises:
        InputError: It cannot be added; says how to add it later.
    """
    log = read_run_log(run)
    again = [installed("python"), "-m", "retinanet", "mlperf", "submission", str(run)]
    if log.status != constants.SUCCESS:
        command = shlex.join([*again, "--out", str(out)])
        console.print(
            f"{out}: this run is not added, since it missed its target; one of five may: {command}",
            soft_wrap=True,
        )
        return
    try:
        added = add_run(out, run)
    except InputError as error:
        command = shlex.join([*again, "--out", "DIR"])
        raise InputError(f"{error}; the run itself is whole; add it by {command}") from error
    tell(added, rules=log.rules(None), console=console)


def tell(submission: Submission, *, rules: Rules, console: Console) -> bool:
    """Say what is in a submission's folder and what the official checker says of it; whether it
    passes.
    """
    say = partial(console.print, soft_wrap=True)

    say(f"{submission.results}: {len(submission.logs())} of {RUNS_OF_SUBMISSION} runs")
    empty = empty_fields(submission)
    if empty:
        say(f"{submission.description}: fill in {', '.join(empty)}")
    verdict = check_package(submission.folder, rules=rules)
    words = verdict.summary if verdict.passed else "not passed"
    say(f"official package checker ({official_version()}): {words}")
    for fault in verdict.faults:
        say(f"  ✗ {fault}")
    for warning in verdict.warnings:
        say(f"  – {warning}")
    return verdict.passed
