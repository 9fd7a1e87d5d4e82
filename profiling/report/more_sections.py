"""What to look at next.

TODO-DOC The run's primitives against the same ones alone.

TODO-DOC The log against a reference.

TODO-DOC Ranks and steps beside each other, and what perf counted in them.

TODO-DOC What a trace of torch.profiler tells: phases, operators outside oneDNN, fragmentation.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from common.console import significant
from profiling.compare.comparison import (
    Comparison,
    Pair,
    draw_comparison,
    hint_on_types,
    kinds_of,
    library_of,
    way_of,
)
from profiling.efficiency.analysis import (
    Efficiency,
    Part,
    Projection,
    cold_ratio,
    hot_ratio,
    kind_and_direction,
    project,
)
from profiling.efficiency.command import draw_efficiency
from profiling.report.advice import (
    ALIKE,
    Advice,
    alike_share,
    calls_the_reference_does_not_make,
    fragmented,
    many_page_faults,
    mostly_outside,
    not_understood,
    onednn_ms_by_step,
    ordered,
    primitives_made_again,
    saving,
    slower_than_alone,
    uneven_ranks,
    uneven_steps,
    wall_ms_by_step,
)
from profiling.report.advice_on_problems import (
    fallbacks,
    float32_beside_bf16,
    lost_to_the_roofline,
    memory_traffic,
    reorders,
    slow_convolutions,
)
from profiling.report.material import Counters, Material, Traced
from profiling.report.page import (
    Block,
    Cell,
    Column,
    Missing,
    Section,
    Suggestion,
    Suggestions,
    Table,
    Text,
    chart,
    count,
    number,
    percent,
    sentence,
    three,
)
from profiling.trace.analysis import Analysis, fragmentation_verdict, onednn_verdict
from profiling.trace.charts import draw_operators, draw_split, draw_timeline
from profiling.trace.report import (
    Costly,
    costliest_outside_onednn,
    describe,
    module_text,
    remarks,
    rows_of,
    times_of,
)

OPERATORS = 3
MEANING = (
    "Read off the numbers of this page, what could save most first. What two of them would save "
    "may be the same time, so the numbers do not add up; and they are bounds, not promises."
)


def advice_of(material: Material) -> list[Advice]:
    """All findings, in order."""
    measured, log = material.measured, material.log
    replayed = material.efficiency.problems if material.efficiency else ()
    alone_ms = {one.problem: one.replayed.hot_ms for one in replayed}
    found = [
        *lost_to_the_roofline(measured),
        *reorders(measured),
        *fallbacks(measured),
        *slow_convolutions(measured, alone_ms=alone_ms),
        *float32_beside_bf16(measured, instruction_sets=log.instruction_sets, peaks=material.peaks),
        *mostly_outside(measured, log, operators=outside_onednn(material)),
        *primitives_made_again(measured, log),
        *uneven_ranks(log),
        *uneven_steps(log),
        *many_page_faults(material.counters),
        *not_understood(log),
    ]
    if material.comparison:
        found += calls_the_reference_does_not_make(material.comparison)
    if material.efficiency:
        found += slower_than_alone(material.efficiency)
    if material.traced:
        analysis = material.traced.analysis
        found += fragmented(analysis)
        found += memory_traffic(
            material.traced.trace.bytes_moved,
            bandwidth_gb_per_s=material.peaks.bandwidth_gb_per_s if material.peaks else None,
            step_ms=analysis.wall_ns / 1e6 / analysis.count,
        )
    return ordered(found)


def outside_onednn(material: Material) -> list[tuple[str, float]]:
    """The operators that cost most there and their milliseconds, as far as there is a trace."""
    if material.traced is None:
        return []
    costly = costliest_outside_onednn(rows_of(material.traced.analysis))
    return [(f"{one.operator} ({one.phase})", one.self_ms) for one in costly[:OPERATORS]]


def what_next(material: Material, found: Sequence[Advice]) -> Section:
    """Each with its numbers."""
    blocks: list[Block]
    if found:
        shown = [
            Suggestion(
                sentence(one.title).rstrip("."),
                one.evidence,
                saving(one, material.measured),
                one.todo,
                one.section,
            )
            for one in found
        ]
        blocks = [Text([MEANING]), Suggestions(shown)]
    else:
        looked = (
            ""
            if material.peaks
            else " Much of what is looked for needs the machine's peaks (--peaks)."
        )
        blocks = [Text([f"Nothing stands out in what was given.{looked}"])]
    return Section("next", "What to look at next", blocks)


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


MOST = 100
"""Rows of a table."""


def comparison_section(material: Material) -> Section:
    """Kinds, calls that only one side makes, calls that both make."""
    heading = "Against the reference"
    found = material.comparison
    if found is None:
        missing = Missing(
            "Another log shows what this one does more, or slower: an earlier version, another "
            "model, another machine.",
            "--reference OTHER.log",
        )
        return Section("comparison", heading, [missing])
    unit = "a step" if found.is_by_step else "in the log"
    blocks: list[Block] = [Text(sides(found, unit)), comparison_chart(found), kinds_table(found)]
    if found.only_one:
        caption = "Calls that only one side makes, or makes more of"
        blocks.append(pairs_table(found.only_one, caption=caption, with_extra=True))
    if found.both:
        caption = "Calls that both sides make equally often"
        blocks.append(pairs_table(found.both, caption=caption, with_extra=False))
    return Section("comparison", heading, blocks)


def sides(found: Comparison, unit: str) -> list[str]:
    """Who is who."""
    lines = [
        f"This: {found.first.name}; {library_of(found.first.log)}. Reference: "
        f"{found.second.name}; {library_of(found.second.log)}. Calls and times are those "
        f"{unit}."
    ]
    alike = alike_share(found)
    if alike < ALIKE:
        lines.append(
            f"They have little in common: only {alike:.0%} of this log's time is in problems that "
            "the reference has too."
        )
    if hint_on_types(found):
        lines.append(
            "The types of numbers differ, so that little is alike: `python -m profiling compare "
            "--ignore-types` compares shapes alone."
        )
    return lines


def comparison_chart(found: Comparison) -> Block:
    """Bars of both sides."""
    spoken = "; ".join(
        f"{kind.name} {significant(kind.first_ms)} against {significant(kind.second_ms)} ms"
        for kind in kinds_of(found.pairs)[:8]
    )

    def draw() -> Figure:
        figure = draw_comparison(found)
        figure.suptitle("")
        return figure

    return chart(
        draw,
        name="comparison",
        label=f"Bars of both sides: {spoken}.",
        caption="Left: time by kind and direction. Right: what the calls cost that only one side "
        "makes.",
    )


def kinds_table(found: Comparison) -> Table:
    """Calls and times by kind and direction."""
    kinds = kinds_of(found.pairs)
    rows = [
        both(kind.name, (kind.first_calls, kind.second_calls), (kind.first_ms, kind.second_ms))
        for kind in kinds
    ]
    calls = sum(kind.first_calls for kind in kinds), sum(kind.second_calls for kind in kinds)
    times = sum(kind.first_ms for kind in kinds), sum(kind.second_ms for kind in kinds)
    return Table(
        "By kind and direction",
        columns("kind", "this / reference"),
        rows,
        totals=[both("all", calls, times)],
    )


def columns(first: str, last: str) -> list[Column]:
    """Of a table with calls and times of both sides."""
    names = ("calls, this", "calls, reference", "ms, this", "ms, reference", last)
    return [Column(first, is_number=False), *map(Column, names)]


def both(name: str, calls: tuple[float, float], times: tuple[float, float]) -> list[Cell]:
    """Calls and times of both sides, and the times' ratio; a side without calls has no time."""
    first, second = times
    if first and second:
        ratio = Cell(f"{first / second:.2f}", first / second)
    else:
        ratio = Cell("only this" if calls[0] else "only the reference")
    shown = [number(ms if of_side else None) for of_side, ms in zip(calls, times, strict=True)]
    return [Cell(name), *map(count, calls), *shown, ratio]


def pairs_table(pairs: Sequence[Pair], *, caption: str, with_extra: bool) -> Table:
    """A row for each question."""
    rows = []
    for pair in pairs[:MOST]:
        question = pair.question
        name = f"{question.kind} {question.direction}".strip()
        calls, times = (pair.first.calls, pair.second.calls), (pair.first.ms, pair.second.ms)
        row = both(name, calls, times)
        ways = dict.fromkeys(way_of(one) for one in (pair.first, pair.second) if one.calls)
        details = tuple(filter(None, (question.shape, question.types, *ways)))
        last = number(pair.extra_ms) if with_extra else row[-1]
        rows.append([Cell(name, details=details), *row[1:-1], last])
    more = len(pairs) - MOST
    notes = [f"The {MOST} costliest of {len(pairs):,} are shown; `python -m profiling compare "
             "--out DIR` writes all."] if more > 0 else []  # fmt: skip
    heading = "cost of these calls, ms" if with_extra else "this / reference"
    return Table(caption, columns("problem", heading), rows, notes=notes)


ROWS = 200
COUNTED = (
    ("task-clock", "CPU time, ms"),
    ("page-faults", "page faults"),
    ("context-switches", "context switches"),
    ("cpu-migrations", "moves between CPUs"),
    ("cycles", "cycles"),
    ("instructions", "instructions"),
    ("branch-misses", "branch misses"),
    ("cache-references", "cache references"),
    ("cache-misses", "cache misses"),
    ("dTLB-load-misses", "TLB misses of loads"),
)


def ranks_section(material: Material) -> Section:
    """A row for each rank's step, and for each rank's counters."""
    blocks: list[Block] = []
    wall = wall_ms_by_step(material.log)
    if wall:
        inside = onednn_ms_by_step(material.log)
        rows = [
            [
                Cell("" if step is None else str(step)),
                Cell("" if rank is None else str(rank), rank),
                number(wall[rank, step]),
                number(inside[rank, step]),
                number(wall[rank, step] - inside[rank, step]),
            ]
            for rank, step in sorted(wall, key=lambda one: (one[1] or 0, one[0] or 0))
        ]
        notes = [f"The first {ROWS} of {len(rows):,}."] if len(rows) > ROWS else []
        columns = [
            Column("step", is_number=False),
            *map(Column, ("rank", "ms", "in oneDNN, ms", "elsewhere, ms")),
        ]
        blocks.append(Table("Each rank's steps", columns, rows[:ROWS], notes=notes))
    if material.counters:
        blocks += counters_blocks(material)
    else:
        text = "Page faults, context switches and cycles of the steps perf counts, where it can:"
        command = "python train.py profile.onednn.steps=20-22 profile.perf=true"
        blocks.append(Missing(text, command))
    return Section("ranks", "Ranks, steps and counters", blocks)


def counters_blocks(material: Material) -> list[Block]:
    """Counts of a mean step, and what was not counted."""
    shown = [
        (event, name)
        for event, name in COUNTED
        if any(event in one.counts for one in material.counters)
    ]
    rows = [counters_row(one, [event for event, _ in shown]) for one in material.counters]
    columns = [Column("rank", is_number=False), Column("s a step"), Column("busy CPUs"),
               *(Column(name) for _, name in shown)]  # fmt: skip
    blocks: list[Block] = [Table("perf's counters of a mean step", columns, rows)]
    missing = dict.fromkeys(event for one in material.counters for event in one.not_counted)
    if missing:
        blocks.append(Text([f"perf has no counters here for {', '.join(missing)}."]))
    return blocks


def counters_row(one: Counters, events: list[str]) -> list[Cell]:
    """One rank."""
    clock = one.a_step("task-clock")
    seconds = one.seconds / one.steps
    busy = clock / 1000 / seconds if clock is not None and seconds else None
    return [
        Cell(str(one.rank)),
        number(seconds),
        number(busy),
        *(number(one.a_step(e)) for e in events),
    ]


BARS = 15
TRACE_ROWS = 100


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
        for one in costly[:TRACE_ROWS]
    ]
    if analysis.modules_are_known:
        columns.append(Column("costliest module", is_number=False))
        for row, one in zip(rows, costly, strict=False):
            row.append(Cell(module_text(one)))
    notes = [
        f"The {TRACE_ROWS} costliest of {len(costly):,}; `python -m profiling trace --out DIR` "
        "writes all."
    ]
    return Table(
        "Operators outside oneDNN, the costliest first",
        columns,
        rows,
        notes=notes if len(costly) > TRACE_ROWS else (),
    )
