"""Where the time goes: by phase of a step, and by kind of primitive."""

from matplotlib.figure import Figure

from profiling.efficiency.readable import kind_and_direction
from profiling.report.blocks import Block, Cell, Column, Missing, Section, Table
from profiling.report.drawing import chart
from profiling.report.material import Material
from profiling.report.measured import Measured, parts_of
from profiling.report.phases import Phase, phases_of
from profiling.report.phases_chart import draw_phases
from profiling.report.words import count, number, percent
from profiling.significant import significant
from profiling.stats.distribution_chart import draw_distribution
from profiling.stats.rows import Part


def where_time_goes(material: Material) -> list[Section]:
    """Phases, then kinds."""
    phases = phases_of(material.log)
    blocks: list[Block] = []
    if phases:
        blocks = [phase_chart(phases), phase_table(phases)]
    else:
        blocks = [
            Missing(
                "The log does not tell the phases of a step. A training of ours marks them:",
                "python train.py profile.onednn.steps=20-22",
            )
        ]
    measured = material.measured
    kinds = [kinds_chart(measured), kinds_table(measured)]
    return [
        Section("phases", "Where a step's time goes", blocks),
        Section("kinds", "Where oneDNN's time goes", kinds),
    ]


def phase_chart(phases: list[Phase]) -> Block:
    """A bar for each phase."""
    spoken = "; ".join(f"{phase.name} {significant(phase.wall_ms)} ms" for phase in phases)
    return chart(
        lambda: draw_phases(phases),
        name="phases",
        label=f"Bars of a step's phases: {spoken}.",
        caption="Each bar is a phase of a mean step. Colours: oneDNN's primitives by kind. Grey: "
        "all that is not oneDNN's, such as other operators, Python, and waiting.",
    )


def phase_table(phases: list[Phase]) -> Table:
    """The same in numbers."""
    whole = sum(phase.wall_ms for phase in phases)

    def cells(name: str, wall: float, inside: float, outside: float) -> list[Cell]:
        share = wall / whole if whole else None
        return [Cell(name), number(wall), percent(share), number(inside), number(outside)]

    return Table(
        "A mean step by phases",
        (
            Column("phase", is_number=False),
            Column("ms", meaning="From begin to end of the phase"),
            Column("share", meaning="Of the step"),
            Column("in oneDNN, ms"),
            Column("elsewhere, ms"),
        ),
        [cells(p.name, p.wall_ms, p.onednn_ms, p.elsewhere_ms) for p in phases],
        totals=[
            cells(
                "whole step",
                whole,
                sum(phase.onednn_ms for phase in phases),
                sum(phase.elsewhere_ms for phase in phases),
            )
        ],
    )


def kinds_chart(measured: Measured) -> Block:
    """The paper's Figure 2, of a mean step where there are steps."""
    parts = [
        Part(part.kind, part.direction, calls=0, total_ms=part.ms, share=part.share, gflop=0.0,
             gflop_per_s=None)
        for part in parts_of(measured.problems)
    ]  # fmt: skip

    def draw() -> Figure:
        figure = draw_distribution(parts, title="")
        figure.axes[0].set_xlabel(f"milliseconds {measured.unit}")
        return figure

    spoken = "; ".join(
        f"{kind_and_direction(part.kind, part.direction)} {part.share:.1%}" for part in parts[:8]
    )
    return chart(
        draw,
        name="kinds",
        label=f"Bars of oneDNN's time by kind of primitive and direction: {spoken}.",
        caption="oneDNN's time by kind of primitive; colours tell the direction. Percentages are "
        "of oneDNN's time.",
    )


def kinds_table(measured: Measured) -> Table:
    """A row for each kind and direction."""
    parts = parts_of(measured.problems)
    rows = [
        [
            Cell(kind_and_direction(part.kind, part.direction)),
            count(part.calls),
            number(part.ms),
            percent(part.share),
            number(part.gflop_per_s),
        ]
        for part in parts
    ]
    total = [Cell("all"), count(sum(part.calls for part in parts)), number(measured.ms)]
    return Table(
        "oneDNN's time by kind and direction",
        (
            Column("kind", is_number=False),
            Column(f"calls {measured.unit}"),
            Column(f"ms {measured.unit}"),
            Column("share", meaning="Of oneDNN's time"),
            Column("GFLOP/s", meaning="Of those whose arithmetic is counted"),
        ),
        rows,
        totals=[[*total, Cell(""), Cell("")]],
    )
