"""The run's primitives against the same ones alone."""

from profiling.efficiency.chart import draw_efficiency
from profiling.efficiency.efficiency import Efficiency, Part, cold_ratio, hot_ratio
from profiling.efficiency.projection import Projection, project
from profiling.efficiency.readable import kind_and_direction
from profiling.report.blocks import Block, Cell, Column, Missing, Section, Table, Text
from profiling.report.drawing import chart
from profiling.report.material import Material
from profiling.report.words import count, number, percent, three


def efficiency_section(material: Material) -> Section:
    """Ratios by kind, and a step at each speed."""
    heading = "In the run, and alone"
    found = material.efficiency
    if found is None:
        missing = Missing(
            "Whether primitives are as fast in the run as alone, a replay tells. Make it, and "
            "give its replay.json with --replay:",
            f"python -m profiling benchdnn {material.log_words} --out replay",
        )
        return Section("efficiency", heading, [missing])
    projection = project(found, steps=None, images_a_step=None)
    blocks: list[Block] = [Text(what_it_says(found)), efficiency_chart(found, projection)]
    blocks.append(parts_table(found))
    if projection:
        blocks.append(projection_table(projection))
    return Section("efficiency", heading, blocks)


def what_it_says(found: Efficiency) -> list[str]:
    """The ratio, how it was taken, and what it leaves out."""
    hot, cold = hot_ratio(found.total), cold_ratio(found.total)
    replay = found.replay
    threads = replay.conditions.threads
    text = (
        f"Each problem was run alone by {replay.runner}, oneDNN {replay.version}, "
        f"{threads} threads."
    )
    if hot is not None:
        text += f" Alone they take {hot:.0%} of their time in the run with warm caches"
        text += f", {cold:.0%} with cold ones." if cold is not None else "."
    lines = [text, *found.cautions]
    if found.not_replayed:
        lines.append(
            f"{len(found.not_replayed):,} problems, {found.not_replayed_share:.1%} of the time, "
            "were not run again; no ratio has them."
        )
    return lines


def efficiency_chart(found: Efficiency, projection: Projection | None) -> Block:
    """Bars of ratios, and of a step at each speed."""
    spoken = "; ".join(
        f"{kind_and_direction(part.kind, part.direction)} {hot_ratio(part) or 0:.2f}"
        for part in found.parts[:8]
    )
    return chart(
        lambda: draw_efficiency(found, projection, title=""),
        name="efficiency",
        label=f"Bars of replayed over measured time: {spoken}.",
        caption="Left: time alone over time in the run; 1: as fast as alone. Right: a step as it "
        "was, and as it could be.",
    )


def parts_table(found: Efficiency) -> Table:
    """By kind and direction."""
    divisor = found.steps.count or 1

    def cells(name: str, part: Part) -> list[Cell]:
        cold = None if part.cold_ms is None else part.cold_ms / divisor
        return [
            Cell(name),
            count(part.calls / divisor),
            number(part.measured_ms / divisor),
            number(part.hot_ms / divisor),
            number(cold),
            percent(hot_ratio(part)),
            percent(cold_ratio(part)),
        ]

    return Table(
        "Measured and alone, by kind and direction",
        (
            Column("kind", is_number=False),
            Column("calls"),
            Column("measured, ms"),
            Column("hot, ms", meaning="Alone, data in the caches as far as it fits"),
            Column("cold, ms", meaning="Alone, caches emptied before"),
            Column("hot ratio"),
            Column("cold ratio"),
        ),
        [cells(kind_and_direction(part.kind, part.direction), part) for part in found.parts],
        totals=[cells("all", found.total)],
    )


def projection_table(projection: Projection) -> Table:
    """A step at each speed."""
    rows = [
        [
            Cell(speed.name),
            number(speed.onednn_s * 1000),
            number(None if speed.step_s is None else speed.step_s * 1000),
            number(speed.images_per_s),
        ]
        for speed in projection.speeds
    ]
    notes = []
    if projection.elsewhere_s is not None:
        notes = [
            f"What is not oneDNN's stays as it was: {three(projection.elsewhere_s * 1000)} ms."
        ]
    return Table(
        "A step at each speed",
        (
            Column("speed", is_number=False),
            Column("in oneDNN, ms"),
            Column("step, ms"),
            Column("images/s", meaning="Of all ranks in the log"),
        ),
        rows,
        notes=notes,
    )
