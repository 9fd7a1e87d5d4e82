"""A scaling study as a person reads it.

TODO-DOC A scaling study as programs read it.

TODO-DOC What a scaling study leaves: tables and findings, JSON, a chart.

TODO-DOC The chart of a scaling study.
"""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter
from rich.console import Console
from rich.table import Table

from common.files import write_whole
from common.machine import environment
from launch.placement import count_ranks
from profiling.bench.report import put_out
from profiling.bench.results import disturbance
from profiling.studies.scale.study import (
    Combination,
    Measured,
    Rounds,
    count_threads,
    efficiency,
    findings,
    is_standard,
    smallest,
)
from retinanet.config import Config

DOES_NOT_FIT = "–"
NOT_MEASURED = "?"

MEANING = """\
waiting for data: of the step, until a rank had its images
waiting for gradients: of the step, between the last gradient and the average over all ranks
exchange adds: how much longer the step is than its neighbour in which no gradients were exchanged;
  also what the exchange takes from the computing beside it. Around 0: too little to see"""
WEAK = "efficiency: throughput against that of the fewest ranks of as many threads, times as many"


def print_study(
    console: Console,
    combinations: Sequence[Combination],
    measured: Sequence[Measured],
    *,
    weak: bool,
) -> None:
    """Both tables, what their words mean, what did not fit, and what ranks said of their places.

    Args:
        console: Where to.
        combinations: All that were asked for.
        measured: Those that have run.
        weak: Whether each rank had as many images, so that efficiencies mean something.
    """
    base = smallest(measured)
    smallest_name = f"{base.combination.name}, {base.images_per_second:.3g} images/s"
    console.print(f"throughput; 1.00: {smallest_name}", soft_wrap=True)
    console.print(throughput_table(combinations, measured))
    console.print(step_table(measured, weak=weak))
    console.print(f"{WEAK}\n{MEANING}" if weak else MEANING, soft_wrap=True)
    for line in (*misfits(combinations), *notes(measured)):
        console.print(line, soft_wrap=True, markup=False)


def throughput_table(combinations: Sequence[Combination], measured: Sequence[Measured]) -> Table:
    """The paper's Table 3: threads down, ranks across, 1.00 for the smallest combination."""
    base = smallest(measured).images_per_second
    table = Table()
    table.add_column("threads a rank", justify="right")
    ranks = list(dict.fromkeys(one.ranks for one in combinations))
    for count in ranks:
        table.add_column(count_ranks(count), justify="right")
    found = {one.combination: one.images_per_second for one in measured}
    for threads in dict.fromkeys(one.threads for one in combinations):
        cells = [
            cell(one, found.get(one), base=base) for one in combinations if one.threads == threads
        ]
        table.add_row(str(threads), *cells)
    return table


def cell(one: Combination, images_per_second: float | None, *, base: float) -> str:
    """The normalized throughput, or why there is none."""
    if one.misfit:
        return DOES_NOT_FIT
    return NOT_MEASURED if images_per_second is None else f"{images_per_second / base:.2f}"


def step_table(measured: Sequence[Measured], *, weak: bool) -> Table:
    """A row for each combination that has run."""
    table = Table()
    headings = ("ranks", "threads\na rank", "images\na step", "step", "images/s", "efficiency",
                "waiting\nfor data", "waiting for\ngradients", "exchange\nadds")  # fmt: skip
    for heading in headings:
        if weak or heading != "efficiency":
            table.add_column(heading, justify="right", vertical="bottom")
    for one in measured:
        of_ideal = [percent(efficiency(one, measured))] if weak else []
        table.add_row(
            str(one.combination.ranks),
            str(one.combination.threads),
            str(one.combination.images),
            f"{one.step_seconds:.3g} s",
            f"{one.images_per_second:.3g}",
            *of_ideal,
            percent(one.data_share),
            percent(one.exposed_share),
            percent(one.added_share),
        )
    return table


def percent(part: float | None) -> str:
    """With one decimal; empty where there is nothing to say."""
    return "" if part is None else f"{part:.1%}"


def misfits(combinations: Sequence[Combination]) -> list[str]:
    """A line for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in combinations:
        if one.misfit:
            reasons.setdefault(one.misfit, []).append(f"{one.ranks} × {one.threads}")
    return [f"{DOES_NOT_FIT} {', '.join(names)}: {why}" for why, names in reasons.items()]


def notes(measured: Sequence[Measured]) -> list[str]:
    """What ranks said of their places, a line for each sentence, with the combinations."""
    said: dict[str, dict[str, None]] = {}
    for one in measured:
        shape = f"{one.combination.ranks} × {one.combination.threads}"
        for note in (note for job in one.jobs for rank in job for note in rank.notes):
            said.setdefault(note, {})[shape] = None
    return [f"note: {', '.join(shapes)}: {note}" for note, shapes in said.items()]


def combinations_json(
    combinations: Sequence[Combination], measured: Sequence[Measured], *, weak: bool
) -> list[dict[str, Any]]:
    """Each combination: whether it fits, its numbers if it has run, and every rank's steps.

    Seconds; shares of a step from 0 to 1; `normalized` to the smallest combination's throughput.
    """
    base = smallest(measured).images_per_second
    found = {one.combination: one for one in measured}
    return [
        {
            "ranks": one.ranks,
            "threads": one.threads,
            "batch_size": one.batch_size,
            "images_a_step": one.images,
            "fits": not one.misfit,
            "why_not": one.misfit or None,
            "hosts": dict(one.hosts),
            **(numbers(found[one], measured, base=base, weak=weak) if one in found else {}),
        }
        for one in combinations
    ]


def numbers(
    one: Measured, measured: Sequence[Measured], *, base: float, weak: bool
) -> dict[str, Any]:
    """What one combination has shown; jobs stand in the order of rounds."""
    return {
        "step_s": one.step_seconds,
        "images_per_s": one.images_per_second,
        "normalized": one.images_per_second / base,
        "weak_scaling_efficiency": efficiency(one, measured) if weak else None,
        "data_share": one.data_share,
        "exchange_exposed_share": one.exposed_share,
        "exchange_added_share": one.added_share,
        "jobs": [[asdict(rank) for rank in job] for job in one.jobs],
    }


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the study was asked for, beside its combinations."""

    config_name: str
    overrides: Sequence[str]
    config: Config
    global_batch: int | None
    """Images of all ranks in a step, where it is the same for all combinations."""
    steps: int
    warm_up: int
    rounds: int

    @property
    def is_weak(self) -> bool:
        """Whether each rank has as many images, whatever the number of ranks."""
        return self.global_batch is None


def put_out_study(
    study: Rounds,
    combinations: Sequence[Combination],
    asked: Asked,
    *,
    console: Console,
    json_file: Path | None,
    chart: Path | None,
) -> None:
    """Print what was measured, and write it; there is something.

    Raises:
        InputError: A file cannot be written.
    """
    measured = study.measured
    print_study(console, combinations, measured, weak=asked.is_weak)
    disturbed = disturbance(study.other_cores)
    if disturbed:
        console.print(disturbed, soft_wrap=True)
    put_out(
        findings(measured, config=asked.config, global_batch=asked.global_batch),
        benchmark="scale",
        workload=workload_json(study, combinations, asked),
        with_targets=is_standard(asked.config),
        json_file=json_file,
    )
    if chart is not None:
        draw(measured, chart, asked)
        console.print(f"chart: {chart}", soft_wrap=True)


def workload_json(
    study: Rounds, combinations: Sequence[Combination], asked: Asked
) -> dict[str, Any]:
    """Everything but the findings and the machine."""
    return {
        "config": asked.config_name,
        "overrides": list(asked.overrides),
        "image_size": asked.config.data.image_size,
        "precision": asked.config.engine.precision,
        "exchange": ways(study.measured),
        "compress": asked.config.distributed.compress,
        "global_batch": asked.global_batch,
        "steps": asked.steps,
        "warm_up": asked.warm_up,
        "rounds": asked.rounds,
        "cores_busy_otherwise": study.other_cores,
        "complete": study.done == len(study.order),
        "ended_by": study.ended_by or None,
        "combinations": combinations_json(combinations, study.measured, weak=asked.is_weak),
    }


def ways(measured: Sequence[Measured]) -> list[str]:
    """The ways that gradients took, of all combinations of several ranks."""
    return sorted({job[0].way for one in measured for job in one.jobs if len(job) > 1})


def draw(measured: Sequence[Measured], chart: Path, asked: Asked) -> None:
    """The chart, with what it is of in its title."""
    # Here, because matplotlib is slow to load and other commands do not need it.
    pass  # DROPPED

    images = (
        f"{asked.global_batch} images a step"
        if asked.global_batch
        else f"{measured[0].combination.batch_size} images a rank and step"
    )
    size, precision = asked.config.data.image_size, asked.config.engine.precision
    compress = asked.config.distributed.compress
    travels = "BF16" if compress == "bf16" else "float32"
    draw_chart(
        measured,
        chart,
        title=f"{images} of {size}×{size}, {precision}; gradients travel in {travels} by "
        f"{' and '.join(ways(measured)) or 'none'}; {environment()['cpu']}",
        weak=asked.is_weak,
    )


COLOURS = ("#3c8ddc", "#e6194b", "#2f9e44", "#f08c00", "#9c36b5", "#333333")
LARGEST_SHARE_SHOWN = 0.10
"""The axis of shares reaches as far at least, so that small ones look small."""
AIM = 0.05
"""What communication may take of a step, with gradients in BF16."""
ROOM = 1.4
"""The axis beyond the highest bar, for the legend."""
BAR = 0.36
"""Width of a bar, of the distance between two combinations."""


def draw_chart(measured: Sequence[Measured], file: Path, *, title: str, weak: bool) -> None:
    """Write a PNG: throughput by ranks (left), the share of a step in communication (right).

    Args:
        measured: The combinations that have run.
        file: Where to.
        title: What was measured, on what.
        weak: Whether each rank had as many images; else all together had.

    Raises:
        InputError: The file cannot be written.
    """
    figure = Figure(figsize=(12, 4.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    ranks = sorted({one.combination.ranks for one in measured})
    draw_throughput(left, lines(measured), ranks)
    left.set_title(f"throughput, the same number of images {'a rank' if weak else 'in all'}")
    draw_communication(right, measured)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_whole(file, png.getvalue())


def lines(measured: Sequence[Measured]) -> dict[int, list[Measured]]:
    """The combinations of each number of threads, by ranks."""
    found: dict[int, list[Measured]] = {}
    for one in sorted(measured, key=lambda one: (one.combination.threads, one.combination.ranks)):
        found.setdefault(one.combination.threads, []).append(one)
    return found


def draw_throughput(
    axes: Axes, by_threads: dict[int, list[Measured]], ranks: Sequence[int]
) -> None:
    """A line for each number of threads, and dashed what its first point would be if all scaled."""
    for place, (threads, line) in enumerate(by_threads.items()):
        colour = COLOURS[place % len(COLOURS)]
        places = [one.combination.ranks for one in line]
        values = [one.images_per_second for one in line]
        label = f"{count_threads(threads)} a rank"
        axes.plot(places, values, color=colour, marker="o", label=label)
        if len(line) > 1:
            ideal = [values[0] * place / places[0] for place in places]
            axes.plot(places, ideal, color=colour, linestyle="--", linewidth=0.8)
        for x, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.3g}", (x, value), xytext=(6, -12), textcoords="offset points", fontsize=8
            )
    axes.plot([], [], color="#777777", linestyle="--", linewidth=0.8, label="ideal")
    axes.set_ylabel("images/s")
    double_axes(axes, ranks)
    axes.legend(loc="lower right")


def draw_communication(axes: Axes, measured: Sequence[Measured]) -> None:
    """Two bars for each combination of several ranks: waiting for gradients, what exchange adds."""
    axes.set_title("communication, share of a step")
    several = [one for one in measured if one.combination.ranks > 1]
    if not several:
        axes.text(0.5, 0.5, "one rank exchanges nothing", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, (label, colour, shares) in enumerate(
        (
            ("ranks wait for gradients", COLOURS[0], [one.exposed_share for one in several]),
            ("the exchange makes it longer by", COLOURS[3], [one.added_share for one in several]),
        )
    ):
        heights = [height or 0.0 for height in shares]
        places = [index + (place - 0.5) * BAR for index in range(len(several))]
        bars = axes.bar(places, heights, width=BAR, color=colour, label=label)
        axes.bar_label(bars, [f"{height:.1%}" for height in heights], fontsize=8, padding=2)
    axes.axhline(AIM, color="#777777", linestyle="--", linewidth=0.8, label=f"aim: below {AIM:.0%}")
    axes.axhline(0, color="black", linewidth=0.8)
    names = [f"{one.combination.ranks} × {one.combination.threads}" for one in several]
    axes.set_xticks(range(len(several)), names)
    axes.set_xlabel("ranks × threads")
    axes.set_xlim(-0.8, max(1, len(several)) - 0.2)
    axes.set_ylim(top=max(LARGEST_SHARE_SHOWN, ROOM * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper left")


def double_axes(axes: Axes, ranks: Sequence[int]) -> None:
    """Twice as much is the same distance everywhere, so that all ideal lines are parallel."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.margins(x=0.12, y=0.12)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")
    axes.grid(alpha=0.3)
