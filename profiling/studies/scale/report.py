"""A scaling study as a person reads it.

TODO-DOC A scaling study as programs read it.

TODO-DOC What a scaling study leaves: tables and findings, JSON, a chart.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common.machine import environment
from launch.placement import count_ranks
from profiling.bench.report import put_out
from profiling.bench.results import disturbance
from profiling.studies.scale.study import (
    Combination,
    Measured,
    Rounds,
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
    from profiling.studies.scale.charts import draw_chart  # noqa: PLC0415

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
