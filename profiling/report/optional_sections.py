"""Sections of the page with additional inputs; without an input, the command that creates it.

A replay (the run's primitives against the same ones alone), a reference (another log), a trace of
torch.profiler, and perf's counters beside the ranks' steps.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from common.charts import Column, Table, table_rows, text_column
from common.console import significant, three_digits
from common.page import (
    Block,
    Chart,
    Missing,
    Text,
    chart,
    sentence,
)
from profiling.compare import (
    Comparison,
    describe_library,
    draw_comparison,
    hint_on_types,
    kind_rows,
    pair_rows,
    sum_by_kind,
)
from profiling.efficiency import Efficiency, Projection, draw_efficiency, part_rows, project
from profiling.onednn_log.work import kind_and_direction
from profiling.report.advice import ALIKE, common_share, onednn_ms_by_step
from profiling.report.material import Counters, Material, Traced
from profiling.trace.analysis import (
    Analysis,
    Row,
    costliest_outside_onednn,
    describe,
    make_rows,
    phase_table,
    remarks,
    verdicts,
)
from profiling.trace.charts import draw_operators, draw_split, draw_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


REPLAY = (
    "A replay shows whether primitives are as fast in the run as in isolation. Create one, and "
    "pass its replay.json with --replay:"
)
REFERENCE = (
    "A comparison with another log, such as one of an earlier version or another machine, shows "
    "additional and slower calls."
)
TRACE = (
    "A trace shows the operators outside oneDNN and the modules that call them. Record one in "
    "training, and pass runs/NAME, or the trace with --trace:"
)
"""What stands in the place of a section whose input is missing."""


def run_against_replay(material: Material) -> list[Block]:
    """Return ratios by kind, and projected step times."""
    efficiency = material.efficiency
    if efficiency is None:
        return [Missing(REPLAY, f"retinanet profile benchdnn {material.log_argument} --out replay")]
    projection = project(efficiency, steps=None, images_a_step=None)
    bar_values = "; ".join(
        f"{kind_and_direction(part.kind, part.direction)} {part.hot_ratio or 0:.2f}"
        for part in efficiency.parts[:8]
    )
    bars = chart(
        lambda: draw_efficiency(efficiency, projection, title=""),
        name="efficiency",
        label=f"Bar chart of replayed time / measured time: {bar_values}.",
        caption="Left: time in isolation / time in the run; 1: equally fast. Right: the time of a "
        "step as measured, and projected.",
    )
    *rows, total = (row[:-1] for row in part_rows(efficiency, divisor=efficiency.steps.count or 1))
    columns = (
        text_column("kind"),
        Column("calls", three_digits),
        Column("measured, ms", three_digits),
        Column(
            "hot, ms",
            three_digits,
            meaning="In isolation, with data in the caches as far as it fits",
        ),
        Column("cold, ms", three_digits, meaning="In isolation, with caches emptied before"),
        Column("hot ratio", ".1%"),
        Column("cold ratio", ".1%"),
    )
    table = Table(
        "In the run and in isolation, by kind and direction", columns, rows, totals=[total]
    )
    blocks: list[Block] = [Text(efficiency_texts(efficiency)), bars, table]
    if projection:
        blocks.append(projection_table(projection))
    return blocks


def efficiency_texts(efficiency: Efficiency) -> list[str]:
    """Return the ratio, how it was measured, and what it excludes."""
    hot, cold = efficiency.total.hot_ratio, efficiency.total.cold_ratio
    replay = efficiency.replay
    text = (
        f"Each problem was run in isolation by {replay.runner}, oneDNN {replay.version}, "
        f"{replay.conditions.threads} threads."
    )
    if hot is not None:
        text += f" In isolation they take {hot:.0%} of their time in the run with warm caches"
        text += f", {cold:.0%} with cold caches." if cold is not None else "."
    lines = [text, *efficiency.cautions]
    if efficiency.not_replayed:
        lines.append(
            f"{len(efficiency.not_replayed):,} problems, {efficiency.not_replayed_share:.1%} of "
            "the time, were not replayed; no ratio includes them."
        )
    return lines


def projection_table(projection: Projection) -> Table:
    """Return a table of projected step times."""
    rows = [
        (speed.name, speed.onednn_s * 1000, None if speed.step_s is None else speed.step_s * 1000,
         speed.images_per_s)
        for speed in projection.speeds
    ]  # fmt: skip
    columns = (
        text_column("speed"),
        Column("in oneDNN, ms", three_digits),
        Column("step, ms", three_digits),
        Column("images/s", three_digits, meaning="Sum of all ranks in the log"),
    )
    notes = []
    if projection.elsewhere_s is not None:
        elsewhere = three_digits(projection.elsewhere_s * 1000)
        notes = [f"The time outside oneDNN is constant: {elsewhere} ms."]
    return Table("Projected step times", columns, rows, notes=notes)


MOST_PAIRS = 100  # Rows of a table of questions
SIDES = ("this", "reference")


def log_against_reference(material: Material) -> list[Block]:
    """Return kinds, calls that only one side makes, calls that both make."""
    comparison = material.comparison
    if comparison is None:
        return [Missing(REFERENCE, "--reference OTHER.log")]

    def draw() -> "Figure":
        figure = draw_comparison(comparison)
        # The section has a heading; the title of `compare` would repeat it.
        figure.suptitle("")
        return figure

    bar_values = "; ".join(
        f"{kind.name} {significant(kind.first.ms)} against {significant(kind.second.ms)} ms"
        for kind in sum_by_kind(comparison.pairs)[:8]
    )
    bars = chart(
        draw,
        name="comparison",
        label=f"Bar chart of both sides: {bar_values}.",
        caption="Left: time by kind and direction. Right: time of the calls that only one side "
        "makes.",
    )
    *rows, total = kind_rows(comparison, SIDES, total="all", not_called=None)
    columns = both_columns("kind", "this / reference")
    table = Table("By kind and direction", columns, rows, totals=[total])
    blocks: list[Block] = [Text(comparison_texts(comparison)), bars, table]
    for pairs, with_extra, title in (
        (comparison.only_one, True, "Calls that only one side makes, or makes more often"),
        (comparison.both, False, "Calls that both sides make equally often"),
    ):
        if pairs:
            rows = pair_rows(pairs[:MOST_PAIRS], SIDES, with_extra=with_extra, not_called=None)
            note = (
                f"The {MOST_PAIRS} costliest of {len(pairs):,} are shown; `retinanet profile "
                "compare --out DIR` writes all of them."
            )
            last = "time of these calls, ms" if with_extra else "this / reference"
            notes = [note] if len(pairs) > MOST_PAIRS else []
            blocks.append(Table(title, both_columns("problem", last), rows, notes=notes))
    return blocks


def comparison_texts(comparison: Comparison) -> list[str]:
    """Return descriptions of both sides, and of how much they have in common."""
    first, second = comparison.first, comparison.second
    lines = [
        f"This: {first.name}; {describe_library(first.log)}. Reference: {second.name}; "
        f"{describe_library(second.log)}. Calls and times are "
        f"{'per step' if comparison.is_by_step else 'of the whole logs'}."
    ]
    alike = common_share(comparison)
    if alike < ALIKE:
        lines.append(
            f"They have little in common: only {alike:.0%} of this log's time is in problems that "
            "the reference has too."
        )
    if hint_on_types(comparison):
        lines.append(
            "The number types differ, so few problems match: `retinanet profile compare "
            "--ignore-types` matches by shape."
        )
    return lines


def both_columns(first: str, last: str) -> list[Column]:
    """Return columns of a table with calls and times of both sides."""
    calls, times = (
        [Column(f"{name}, {side}", form) for side in ("this", "reference")]
        for name, form in (("calls", three_digits), ("ms", three_digits))
    )
    return [text_column(first), *calls, *times, Column(last, three_digits)]


MOST_STEPS = 200  # Rows of the table of steps
COUNTED = {
    "task-clock": "CPU time, ms",
    "page-faults": "page faults",
    "context-switches": "context switches",
    "cpu-migrations": "CPU migrations",
    "cycles": "cycles",
    "instructions": "instructions",
    "branch-misses": "branch misses",
    "cache-references": "cache references",
    "cache-misses": "cache misses",
    "dTLB-load-misses": "TLB load misses",
}
"""perf's events, and their names on the page."""


def ranks_and_counters(material: Material) -> list[Block]:
    """Return a row for each rank's step, and for each rank's counters."""
    blocks: list[Block] = []
    wall = material.log.step_ms
    if wall:
        inside = onednn_ms_by_step(material.log)
        order = sorted(wall, key=lambda where: (where.step or 0, where.rank or 0))
        rows = [
            ("" if where.step is None else str(where.step), where.rank, wall[where], inside[where],
             wall[where] - inside[where])
            for where in order[:MOST_STEPS]
        ]  # fmt: skip
        times = (Column(name, three_digits) for name in ("ms", "in oneDNN, ms", "elsewhere, ms"))
        columns = [text_column("step"), Column("rank"), *times]
        note = f"The first {MOST_STEPS} of {len(order):,} steps are shown."
        notes = [note] if len(order) > MOST_STEPS else []
        blocks.append(Table("Steps by rank", columns, rows, notes=notes))
    if material.counters:
        blocks += counters_blocks(material.counters)
    else:
        text = "perf can count page faults, context switches and cycles of the steps:"
        command = "retinanet train profile.onednn.steps=20-22 profile.perf=true"
        blocks.append(Missing(text, command))
    return blocks


def counters_blocks(counters: Sequence[Counters]) -> list[Block]:
    """Return counts of a mean step, and what was not counted."""
    events = [event for event in COUNTED if any(event in rank.counters for rank in counters)]
    rows = []
    for rank in counters:
        clock = rank.per_step("task-clock")
        # task-clock is CPU time in milliseconds: over the wall time, the number of busy CPUs.
        busy = clock / 1000 / rank.step_s if clock is not None and rank.step_s else None
        rows.append((str(rank.rank), rank.step_s, busy, *map(rank.per_step, events)))
    names = ("seconds per step", "busy CPUs", *(COUNTED[event] for event in events))
    columns = [text_column("rank"), *(Column(name, three_digits) for name in names)]
    blocks: list[Block] = [Table("perf's counters, mean of a step", columns, rows)]
    missing = dict.fromkeys(event for rank in counters for event in rank.not_counted)
    if missing:
        blocks.append(Text([f"perf has no counters on this machine for {', '.join(missing)}."]))
    return blocks


BARS = 15
MOST_OPERATORS = 100  # Rows of the table of operators


def operators_of_trace(material: Material) -> list[Block]:
    """Return operators of a step: phases, the timeline of a step, the costliest outside oneDNN."""
    traced = material.traced
    if traced is None:
        return [Missing(TRACE, "retinanet train profile.trace.steps=20-22")]
    analysis = traced.analysis
    costliest = costliest_outside_onednn(make_rows(analysis))
    texts = verdicts(analysis, traced.beside)
    notes = [f"Note: {remark}." for remark in remarks(analysis)]
    summary = Text([f"{'; '.join(describe(analysis))}.", *map(sentence, texts), *notes])
    phases = phase_table(analysis, "Phases by category, ms", three_digits)
    return [summary, *trace_charts(traced, costliest), phases, operator_table(analysis, costliest)]


def trace_charts(traced: Traced, costliest: Sequence[Row]) -> Iterable[Chart]:
    """Return phases, one step in time, costliest operators."""
    analysis = traced.analysis
    step = "a step" if analysis.steps.are_marked else "the whole trace"
    bar_values = "; ".join(
        f"{operator.operator} {significant(operator.self_ms)} ms" for operator in costliest[:8]
    )
    yield chart(
        lambda: draw_split(analysis, title=""),
        name="split",
        label=f"Bar chart of {step} by phase and category; the table below has the numbers.",
        caption=f"Phases of {step}, by category of operators.",
    )
    yield chart(
        lambda: draw_timeline(analysis, title=""),
        name="timeline",
        label="Timeline of one step, and a closer view.",
        caption="Timeline of one step: the operators of each thread, how often they change, and a "
        "closer view where they change most.",
    )
    yield chart(
        lambda: draw_operators(analysis, costliest[:BARS], title=""),
        name="operators",
        label=f"Bar chart of the costliest operators outside oneDNN: {bar_values}.",
        caption="The costliest operators outside oneDNN, by self time.",
    )


def operator_table(analysis: Analysis, costliest: Sequence[Row]) -> Table:
    """Return operators outside oneDNN, the costliest first."""
    columns = [
        text_column("operator"),
        text_column("phase"),
        Column("calls", three_digits),
        Column(
            "ms",
            three_digits,
            name="self_ms",
            meaning="Self time, without the operators that it calls",
        ),
        Column("share", ".1%", meaning="Of the step"),
    ]
    if analysis.modules_are_known:
        columns.append(text_column("costliest module", name="module"))
    rows = table_rows(columns, costliest[:MOST_OPERATORS])
    note = (
        f"The {MOST_OPERATORS} costliest of {len(costliest):,}; `retinanet profile trace"
        " --out DIR` writes all."
    )
    notes = [note] if len(costliest) > MOST_OPERATORS else []
    return Table("Operators outside oneDNN, the costliest first", columns, rows, notes=notes)
