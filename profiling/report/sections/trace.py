"""What a trace of torch.profiler tells: phases, operators outside oneDNN, fragmentation."""

from profiling.report.blocks import Block, Cell, Column, Missing, Section, Table, Text
from profiling.report.drawing import chart
from profiling.report.material import Material, Traced
from profiling.report.words import count, number, percent, sentence
from profiling.significant import significant
from profiling.trace.analysis import Analysis
from profiling.trace.operators_chart import draw_operators
from profiling.trace.report import describe, module_text, remarks, times_of
from profiling.trace.rows import Costly, costliest_outside_onednn, rows_of
from profiling.trace.split_chart import draw_split
from profiling.trace.timeline_chart import draw_timeline
from profiling.trace.verdict import fragmentation_verdict, onednn_verdict

BARS = 15
ROWS = 100


def trace_section(material: Material) -> Section:
    """Operators of a step, as far as there is a trace."""
    heading = "Operators, oneDNN's and others"
    traced = material.traced
    if traced is None:
        missing = Missing(
            "Which operators are not oneDNN's, and which modules call them, a trace tells. Train "
            "with this, and give runs/NAME, or the trace with --trace:",
            "python train.py profile.trace.steps=20-22",
        )
        return Section("trace", heading, [missing])
    costly = costliest_outside_onednn(rows_of(traced.analysis))
    blocks: list[Block] = [Text(said(traced)), *charts(traced, costly)]
    blocks += [phase_table(traced.analysis), operator_table(traced.analysis, costly)]
    return Section("trace", heading, blocks)


def said(traced: Traced) -> list[str]:
    """What was read, the verdicts, what a reader should know."""
    analysis, beside = traced.analysis, traced.beside
    verdicts = (
        onednn_verdict(analysis, beside.total_ms if beside else None),
        fragmentation_verdict(analysis),
    )
    notes = [f"Note: {one}." for one in remarks(analysis)]
    return [f"{'; '.join(describe(analysis))}.", *map(sentence, verdicts), *notes]


def charts(traced: Traced, costly: list[Costly]) -> list[Block]:
    """Phases, one step in time, costly operators."""
    analysis = traced.analysis
    step = "a step" if analysis.steps.are_marked else "the whole trace"
    spoken = "; ".join(f"{one.operator} {significant(one.self_ms)} ms" for one in costly[:8])
    return [
        chart(
            lambda: draw_split(analysis, title=""),
            name="split",
            label=f"Bars of {step} by phases and what runs; the table below has the numbers.",
            caption=f"Phases of {step}, and what each is spent in.",
        ),
        chart(
            lambda: draw_timeline(traced.trace, analysis, title=""),
            name="timeline",
            label="One step in time: what runs when, and a closer look.",
            caption="One step from left to right: what runs on each thread, how often operators "
            "change, and a closer look where they change most.",
        ),
        chart(
            lambda: draw_operators(
                costly[:BARS], title="", modules_are_known=analysis.modules_are_known
            ),
            name="operators",
            label=f"Bars of the costliest operators outside oneDNN: {spoken}.",
            caption="The operators outside oneDNN that cost most, by their own time.",
        ),
    ]


def phase_table(analysis: Analysis) -> Table:
    """Wall time of each phase by category; rows and columns add up."""
    names = [one.value for one in analysis.categories]
    rows = [
        [Cell(phase), *map(number, times_of(analysis, phase))] for phase in analysis.steps.phases
    ]
    return Table(
        "Phases by what runs, ms",
        [Column("phase", is_number=False), *map(Column, ("wall time", *names, "gaps"))],
        rows,
        totals=[[Cell("all"), *map(number, times_of(analysis, None))]],
    )


def operator_table(analysis: Analysis, costly: list[Costly]) -> Table:
    """Operators outside oneDNN, the costliest first."""
    columns = [
        Column("operator", is_number=False),
        Column("phase", is_number=False),
        Column("calls"),
        Column("ms", meaning="Its own time, without the operators that it calls"),
        Column("share", meaning="Of the step"),
    ]
    rows = [
        [
            Cell(one.operator),
            Cell(one.phase),
            count(one.calls),
            number(one.self_ms),
            percent(one.share),
        ]
        for one in costly[:ROWS]
    ]
    if analysis.modules_are_known:
        columns.append(Column("costliest module", is_number=False))
        for row, one in zip(rows, costly, strict=False):
            row.append(Cell(module_text(one)))
    notes = [
        f"The {ROWS} costliest of {len(costly):,}; `python -m profiling trace --out DIR` "
        "writes all."
    ]
    return Table(
        "Operators outside oneDNN, the costliest first",
        columns,
        rows,
        notes=notes if len(costly) > ROWS else (),
    )
