"""`python -m retinanet mlperf points`: what a global batch size costs in epochs.

TODO-DOC `python -m retinanet mlperf rcp`: do runs converge as the reference implementation does?

TODO-DOC The paper's Figure 7: epochs to converge against the global batch size, normalized.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mlperf_logging.mllog import constants
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from common.console import make_console
from common.errors import CONDITION_MET, FINISHED, InputError
from common.files import require_free, require_free_json, write_whole
from retinanet.mlperf.log import RunLog, read_run_logs
from retinanet.mlperf.official import check_reference_points, official_version, shown_lines
from retinanet.mlperf.rules import (
    RUNS_OF_SUBMISSION,
    Expectation,
    ReferencePoint,
    Rules,
    benchmark_name,
    expectation,
    reference_points,
)


def points(
    *, rules: Rules, batch_sizes: Sequence[int], chart: Path | None, json_file: Path | None
) -> int:
    """Print the reference points of a rule set, and what they say of other batch sizes.

    Args:
        rules: The rule set.
        batch_sizes: Global ones to look up.
        chart: Where a PNG goes.
        json_file: Where the numbers go too.

    Raises:
        InputError: An output exists.
    """
    outputs = [file for file in (chart, json_file) if file is not None]
    require_free(outputs, overwrite=False, advice="give another name")
    known = reference_points(rules)
    asked = [expectation(known, size) for size in batch_sizes]
    console = make_console(pipe_width=100)
    console.print(points_table(known, rules=rules))
    for one in asked:
        say(console, one)
    if chart is not None:
        pass  # DROPPED

        write_whole(chart, points_chart(known, asked, rules=rules))
        console.print(f"chart: {chart}", soft_wrap=True, markup=False)
    if json_file is not None:
        content = {
            "rules": rules,
            "benchmark": benchmark_name(rules),
            "points": [{**asdict(one), "mean_epochs": one.mean_epochs} for one in known],
            "asked": [{**asdict(one), "steps": one.steps} for one in asked],
        }
        write_whole(json_file, json.dumps(content, indent=1))
    return FINISHED


def points_table(known: Sequence[ReferencePoint], *, rules: Rules) -> Table:
    """A row a batch size."""
    title = f"epochs to mAP 0.34 of the reference implementation, rules {rules}"
    table = Table(title=title, title_justify="left")
    for heading in ("batch size", "epochs", "normalized", "accepted from", "learning rate"):
        table.add_column(heading, justify="right")
    table.add_column("warm-up", justify="right")
    table.add_column("runs", justify="right")
    for one in known:
        table.add_row(
            str(one.batch_size),
            f"{one.mean_epochs:.2f}",
            f"{one.mean_epochs / known[0].mean_epochs:.2f}",
            f"{one.least_epochs:.2f}",
            f"{one.learning_rate:g}",
            f"{one.warmup_epochs:g} epoch{'' if one.warmup_epochs == 1 else 's'}",
            str(len(one.epochs)),
        )
    return table


def say(console: Console, one: Expectation) -> None:
    """What the points say of a batch size, and the settings that it proposes."""
    console.print(
        f"batch size {one.batch_size} ({one.basis}): {one.mean_epochs:.2f} epochs, "
        f"{one.steps:,} steps\n  training.learning_rate={one.learning_rate:.3g} "
        f"training.warmup_epochs={one.warmup_epochs:g} training.warmup_factor="
        f"{one.warmup_factor:g}",
        soft_wrap=True,
        markup=False,
    )


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


BLUE = "#3c8ddc"


def points_chart(
    points: Sequence[ReferencePoint], asked: Sequence[Expectation], *, rules: Rules
) -> bytes:
    """A PNG with the points, the range of their runs, and the batch sizes that were asked for."""
    smallest = points[0]
    figure = Figure(figsize=(9, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sizes = [point.batch_size for point in points]
    unit = smallest.mean_epochs
    between = np.geomspace(sizes[0], sizes[-1], 400)  # a straight line is bent on this axis

    def drawn(epochs: Sequence[float]) -> NDArray[np.float64]:
        return np.interp(between, sizes, epochs) / unit

    lowest, highest = ([point.epochs[place] for point in points] for place in (0, -1))
    axes.fill_between(
        between, drawn(lowest), drawn(highest), color=BLUE, alpha=0.2, label="best to worst run"
    )
    means = [point.mean_epochs for point in points]
    axes.plot(between, drawn(means), color=BLUE)
    axes.plot(
        sizes,
        [mean / unit for mean in means],
        color=BLUE,
        marker="o",
        linestyle="none",
        label="reference runs, mean",
    )
    axes.plot(
        [one.batch_size for one in asked],
        [one.mean_epochs / unit for one in asked],
        color="#e6194b",
        marker="D",
        linestyle="none",
        fillstyle="none",
        label="asked for" if asked else None,
    )
    for one in asked:
        place = (one.batch_size, one.mean_epochs / unit)
        text = f"{one.batch_size}: {one.mean_epochs:.2f} epochs"
        axes.annotate(text, place, xytext=(8, -12), textcoords="offset points", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="global batch size, images", ylim=(0, None))
    axes.set_ylabel(f"epochs to mAP 0.34, batch {smallest.batch_size} is 1")
    in_epochs = axes.twinx()
    in_epochs.set_ylim(0, axes.get_ylim()[1] * unit)
    in_epochs.set_ylabel("epochs")
    axes.set_title(f"MLPerf's reference convergence points, rules {rules}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
