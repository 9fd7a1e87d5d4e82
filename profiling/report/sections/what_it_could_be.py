"""What it could be: oneDNN's time against the machine's peaks."""

from profiling.efficiency.readable import kind_and_direction
from profiling.peaks.peaks import Peaks
from profiling.report.blocks import Block, Cell, Column, Missing, Section, Table, Text
from profiling.report.drawing import chart
from profiling.report.lost_chart import draw_lost
from profiling.report.material import Material
from profiling.report.measured import Measured, parts_of
from profiling.report.words import number, percent, three
from profiling.significant import significant
from profiling.stats.roofline_chart import draw_roofline
from profiling.stats.rows import rows_of

DOTS = 1000
"""Problems in the roofline chart, the costliest."""


def what_it_could_be(material: Material) -> Section:
    """The roofline, and what is lost against it."""
    measured, peaks = material.measured, material.peaks
    blocks: list[Block] = []
    if peaks is None:
        text = (
            "What the machine can do at most is not known here. Measure it, and give the file "
            "with --peaks:"
        )
        blocks.append(Missing(text, "python -m profiling peaks --json peaks.json"))
    else:
        blocks.append(Text([*possible(measured), peaks_text(peaks)]))
        if measured.roofline_ms is not None:
            blocks += [lost_chart(measured), lost_table(measured)]
    blocks.append(roofline_chart(material))
    return Section("could-be", "What it could be", blocks)


def possible(measured: Measured) -> list[str]:
    """oneDNN's part and a whole step at the roofline."""
    ideal = measured.roofline_ms
    if ideal is None:
        return ["For none of its problems a bound is known."]
    text = (
        f"At the machine's measured peaks oneDNN's primitives would take {three(ideal)} ms "
        f"{measured.unit} instead of {three(measured.ms)} ms."
    )
    if measured.wall_ms:
        step = measured.wall_ms - measured.ms + ideal
        text += (
            f" A step would then take {three(step)} ms instead of {three(measured.wall_ms)} ms, "
            "if all else stays as it is."
        )
    return [f"{text} No program reaches that everywhere; it is what lies between that counts."]


def peaks_text(peaks: Peaks) -> str:
    """On what, and how much."""
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in peaks.matrix_gflop_per_s.items())
    return (
        f"Peaks: {peaks.threads} threads of {peaks.cpu}; {rates} GFLOP/s; memory "
        f"{peaks.bandwidth_gb_per_s:,.0f} GB/s."
    )


def lost_chart(measured: Measured) -> Block:
    """Bars of time at and beyond the roofline."""
    parts = parts_of(measured.problems)
    spoken = "; ".join(
        f"{kind_and_direction(part.kind, part.direction)} {significant(part.lost_ms)} of "
        f"{significant(part.bounded_ms)} ms"
        for part in parts[:8]
    )
    return chart(
        lambda: draw_lost(parts, unit=measured.unit),
        name="lost",
        label=f"Bars of time beyond the roofline: {spoken}.",
        caption="Full: the time that each kind would take at the machine's peaks (arithmetic or "
        "memory, what takes longer). Pale: what it takes beyond that.",
    )


def lost_table(measured: Measured) -> Table:
    """The same in numbers."""
    parts = sorted(parts_of(measured.problems), key=lambda part: -part.lost_ms)
    rows = []
    for part in parts:
        ideal = part.bounded_ms - part.lost_ms
        ratio = ideal / part.bounded_ms if part.bounded_ms else None
        rows.append(
            [
                Cell(kind_and_direction(part.kind, part.direction)),
                number(part.ms),
                number(ideal) if part.bounded_ms else Cell(""),
                percent(ratio),
                number(part.lost_ms) if part.bounded_ms else Cell(""),
            ]
        )
    return Table(
        "What is lost against the roofline, most first",
        (
            Column("kind", is_number=False),
            Column(f"ms {measured.unit}"),
            Column("at the roofline, ms", meaning="Of problems whose work is known"),
            Column("of roofline"),
            Column("lost, ms"),
        ),
        rows,
        totals=[
            [
                Cell("all"),
                number(measured.ms),
                number(measured.roofline_ms),
                Cell(""),
                number(sum(part.lost_ms for part in parts)),
            ]
        ],
        notes=[
            "Data that stays in a cache can be faster than the roofline says; of such problems "
            "nothing counts as lost."
        ],
    )


def roofline_chart(material: Material) -> Block:
    """A dot for each problem, below the ceilings if there are any."""
    rows = rows_of(material.log.calls(material.measured.steps.holds))
    few = (
        f" The {DOTS:,} costliest problems of {len(rows):,} are shown." if len(rows) > DOTS else ""
    )
    under = " Lines: the machine's peaks." if material.peaks else ""
    return chart(
        lambda: draw_roofline(rows[:DOTS], material.peaks, title=""),
        name="roofline",
        label="Roofline: what each problem reaches; the table of all problems has the numbers.",
        caption="Left: a dot for each problem that multiplies; the further right, the more work "
        "for each byte; the higher, the faster; its area is its share of the time. Right: what "
        f"only moves data.{under}{few}",
    )
