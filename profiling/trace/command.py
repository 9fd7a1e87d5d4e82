"""`retinanet profile trace`: read a trace, print tables, write JSON, CSV and charts."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from common.charts import (
    Column,
    Table,
    chart_files,
    chart_names,
    save_chart,
    table_rows,
    text_column,
)
from common.cli import add_command, positive
from common.console import make_console, print_line
from common.errors import FINISHED, printable
from common.files import write_atomically
from common.options import Outputs, argument, included, option
from profiling.onednn_log import log as onednn_logs
from profiling.trace.analysis import (
    Analysis,
    MatchedLog,
    Row,
    analyze,
    costliest_outside_onednn,
    describe,
    gap_share,
    make_rows,
    match_log,
    milliseconds,
    phase_table,
    remarks,
    short_share,
    verdicts,
)
from profiling.trace.charts import draw_operators, draw_split, draw_timeline, median_step
from profiling.trace.operators import Category, Piece
from profiling.trace.trace import BytesMoved, read_with_progress

MANY = 200_000  # Calls that take seconds to add up
TABLE = "operators.csv"
CHARTS = ("split", "timeline", "operators")

ABOUT = """\
Show where a training step spends its time, from a trace of torch.profiler: oneDNN and other
operators, forward and backward, the costliest operators outside oneDNN and the modules that call
them, and fragmentation: how short operators are, how often they change, when none runs.

The input is a file of export_chrome_trace, .json or .json.gz, of any model; torch is not needed.
Traces of trainings (profile.trace) have marks of steps, phases and modules: `step 20`,
`phase: forward`, `module: backbone.body.conv1`. In other traces, steps are those of
torch.profiler.schedule or the whole trace, backward is the time of autograd, optimizer and data are
torch's marks, and modules are known if the trace was recorded with with_stack=True.

Traces of trainings also contain the bytes that the operators of the step before the window read and
write; they are shown by phase and operator.

A trace does not show which library multiplies matrices. A oneDNN log of the same steps does: train
with profile.onednn and profile.trace, and pass the log with --onednn-log."""

FILES = """\
files in --out DIR:
  operators.csv       a row for each operator, phase and module, the costliest first
  split.png           phases by category; also .svg
  timeline.png        timeline of one step, and a closer view of its busiest part; also .svg
  operators.png       the costliest operators outside oneDNN; also .svg"""

EXAMPLES = """\
examples:
  retinanet train profile.trace.steps=20-22
  retinanet profile trace runs/demo/trace/rank0.json.gz
  retinanet profile trace runs/demo/trace/rank0.json.gz --out trace --json trace.json
  retinanet profile trace runs/demo/trace/rank0.json.gz --step 21,22 --top 40
  retinanet profile trace runs/demo/trace/rank0.json.gz --onednn-log runs/demo/onednn/rank0.log
  retinanet profile trace any-model.json"""


def step_numbers(text: str) -> tuple[int, ...]:
    """Parse distinct integers; return them in ascending order."""
    fields = text.split(",")
    if not all(field.isdigit() for field in fields):
        raise argparse.ArgumentTypeError(f"expected numbers such as 20,21, got {text!r}")
    return tuple(sorted({int(field) for field in fields}))


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """The options of `retinanet profile trace`."""

    file: Path = argument("a Chrome trace of torch.profiler, plain or .gz", metavar="TRACE")
    step: tuple[int, ...] | None = option(
        "only these steps (default: all)", default=None, parse=step_numbers, metavar="A,B"
    )
    top: int = option("operators to show", default=15, parse=positive, metavar="N")
    onednn_log: Path | None = option(
        "oneDNN's log of the same steps and rank",
        default=None,
        metavar="LOG",
        reads=onednn_logs.log_files,
    )
    outputs: Outputs = included(Outputs, writes=(TABLE, *chart_names(*CHARTS)))


def add_trace(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `trace` to a command line."""
    examples = f"{FILES}\n\n{EXAMPLES}"
    add_command(
        commands, "trace", about=ABOUT, examples=examples, options=TraceOptions, run=run_trace
    )


def run_trace(options: TraceOptions) -> int:
    """Read the trace, print tables, write files; return the exit code."""
    console, outputs = make_console(), options.outputs
    file, top = options.file, options.top
    trace = read_with_progress(file, console)
    if len(trace.operators) > MANY:
        print_line(console, f"analyzing {len(trace.operators):,} operator calls")
    analysis = analyze(trace, chosen=options.step)
    beside = None
    if options.onednn_log:
        log = onednn_logs.read_with_progress([options.onednn_log], console)
        beside = match_log(analysis, log)
    rows = make_rows(analysis)
    costliest = costliest_outside_onednn(rows)
    print_analysis(console, analysis, costliest, top=top)
    if trace.bytes_moved:
        print_bytes_moved(console, trace.bytes_moved, top=top)
    if beside:
        print_beside_log(console, analysis, beside)
    for verdict in verdicts(analysis, beside):
        print_line(console, verdict)
    if outputs.json is not None:
        content = as_json(analysis, rows, beside, trace.bytes_moved)
        write_atomically(outputs.json, json.dumps(content, indent=1))
    if outputs.out is not None:
        table = Table("", OPERATOR_COLUMNS, table_rows(OPERATOR_COLUMNS, rows))
        write_atomically(outputs.out / TABLE, table.csv())
        write_charts(analysis, costliest[:top], folder=outputs.out)
        print_line(console, f"table and charts: {outputs.out}")
    return FINISHED


MEANING = """\
self time: time of an operator without the operators that it calls. gaps: no operator runs
working span: a call whose self time is at least half of its duration, with everything it calls
pieces: working spans, and the times between the calls of all other operators
context switch: the next working span is of another operator"""


def print_analysis(
    console: Console, analysis: Analysis, costliest: Sequence[Row], *, top: int
) -> None:
    """Print the input, a step by phase, its fragmentation, and the costliest operators."""
    for line in describe(analysis):
        print_line(console, line)
    window = "a step" if analysis.steps.are_marked else "the whole trace"
    whole = analysis.times_ms(None)
    by_phase = phase_table(analysis, f"{window} by phase [ms]", milliseconds)
    shares = ("share", *(f"{time / whole[0]:.1%}" for time in whole))
    by_phase = replace(by_phase, totals=[*by_phase.totals, shares])
    columns = [
        text_column("operator"),
        text_column("phase"),
        Column("calls", lambda calls: f"{calls:,.0f}" if calls >= 10 else f"{calls:.3g}"),
        Column("self ms", milliseconds, name="self_ms"),
        Column("share", ".1%"),
    ]
    if analysis.modules_are_known:
        columns.append(text_column("costliest module, share, + others", name="module"))
    title = f"the {min(top, len(costliest))} costliest of {len(costliest)} operators outside oneDNN"
    operators = Table(title, columns, table_rows(columns, costliest[:top]))
    for table in (by_phase, fragmentation_table(analysis), operators):
        console.print(table.for_console())
    print_line(console, MEANING)
    for line in remarks(analysis):
        print_line(console, f"note: {line}")


def fragmentation_table(analysis: Analysis) -> Table:
    """Return the table of the fragmentation of a step."""
    numbers = fragmentation_json(analysis)
    window = "per step" if analysis.steps.are_marked else "total"
    working_per_s = len(analysis.working) / (analysis.wall_ns / 1e9)
    return Table(
        "fragmentation",
        (text_column(""), Column(window, ",.0f"), Column("per second", ",.0f")),
        [
            ("spans", numbers["spans"], numbers["spans_per_s"]),
            ("working spans", numbers["working_spans"], working_per_s),
            ("context switches", numbers["context_switches"], numbers["context_switches_per_s"]),
        ],
        totals=[
            ("working span, median", f"{numbers['median_working_span_us']:,.1f} µs", None),
            ("pieces below 0.1 ms, share of operator time", f"{numbers['short_share']:.1%}", None),
            ("  working spans", f"{numbers['short_work_share']:.1%}", None),
            ("  between calls", f"{numbers['between_calls_share']:.1%}", None),
            ("gaps, share of wall time", f"{numbers['gap_share']:.1%}", None),
        ],
    )


KINDS = 8  # Kinds of primitives that are shown of a log


def print_beside_log(console: Console, analysis: Analysis, beside: MatchedLog) -> None:
    """Print oneDNN's own time beside that of the operators that call it."""

    def row(phase: str | None, log_ms: float) -> tuple[object, ...]:
        wall_ms = analysis.times_ms(phase)[0]
        callers = (
            analysis.category_ns(category, phase) / 1e6 / analysis.count
            for category in (Category.ONEDNN, Category.PRODUCTS)
        )
        return (phase or "all", wall_ms, log_ms, f"{log_ms / wall_ms:.1%}", *callers)

    columns = (
        text_column("phase"),
        Column("wall time", milliseconds),
        Column("oneDNN itself\n(log)", milliseconds),
        Column("share"),
        Column("operators that\ncall oneDNN", milliseconds),
        Column("matrix\nproducts", milliseconds),
    )
    rows = [row(phase, log_ms) for phase, log_ms in beside.log_ms.items()]
    totals = [row(None, beside.total_ms)]
    table = Table("oneDNN's log and the trace [ms]", columns, rows, totals=totals)
    console.print(table.for_console(vertical="bottom"))
    kinds = list(beside.kinds_ms.items())
    times = ", ".join(f"{kind} {milliseconds(time)}" for kind, time in kinds[:KINDS])
    others = f", {len(kinds) - KINDS} more kinds" if len(kinds) > KINDS else ""
    print_line(console, f"oneDNN itself: {printable(times)}{others}")
    if beside.other_ms:
        time = milliseconds(beside.other_ms)
        print_line(console, f"note: {time} ms of the log are outside the phases of the trace")
    if not beside.has_steps:
        print_line(console, "note: the log has no marks of steps; all of it is included")


def print_bytes_moved(console: Console, moved: BytesMoved, *, top: int) -> None:
    """Print the traffic of the step by phase, and the operators that move most."""

    def gigabytes(value: float) -> str:
        return f"{value / 1e9:.3f}"

    rows, by_phase = moved.rows, moved.by_phase()
    sums = sum(row.read for row in rows), sum(row.written for row in rows), moved.total
    phases = Table(
        f"memory traffic of the operators of step {moved.step} [GB]",
        (text_column("phase"), *(Column(name, gigabytes) for name in ("read", "written", "total"))),
        [(phase, read, written, read + written) for phase, (read, written) in by_phase.items()],
        totals=[("all", *sums)],
    )
    columns = (
        text_column("operator"),
        text_column("phase"),
        Column("calls", ",d"),
        Column("read", gigabytes),
        Column("written", gigabytes),
        Column("share", ".1%"),
    )
    shown = [
        (row.operator, row.phase, row.calls, row.read, row.written, row.total / (moved.total or 1))
        for row in rows[:top]
    ]
    title = f"the {len(shown)} of {len(rows)} operators with most memory traffic"
    console.print(phases.for_console())
    console.print(Table(title, columns, shown).for_console())


OPERATOR_COLUMNS = (
    *map(text_column, ("operator", "phase", "module")),
    *map(Column, ("calls", "self_ms", "share")),
    text_column("category"),
)


def as_json(
    analysis: Analysis, rows: Sequence[Row], beside: MatchedLog | None, moved: BytesMoved | None
) -> dict[str, Any]:
    """Return the results as JSON values: means over the steps [ms], shares from 0 to 1."""
    steps, count = analysis.steps, analysis.count
    content: dict[str, Any] = {
        "file": str(analysis.trace.file),
        "steps": [
            {"step": number, "wall_ms": time / 1e6} for number, time in steps.durations.items()
        ],
        "steps_are_marked": steps.are_marked,
        "phases_are_marked": steps.phases_are_marked,
        "is_cut_off": analysis.trace.is_cut_off,
        "wall_ms": analysis.wall_ns / 1e6 / count,
        "phases": {phase: phase_json(analysis, phase) for phase in steps.phases},
        "all": phase_json(analysis, None),
        "fragmentation": fragmentation_json(analysis),
        "other_threads_ms": analysis.elsewhere_ns / 1e6 / count,
        "verdicts": verdicts(analysis, beside),
        "operators": [asdict(row) for row in rows],
    }
    if beside:
        content["onednn_log"] = {
            "total_ms": beside.total_ms,
            "phases_ms": beside.log_ms,
            "other_phases_ms": beside.other_ms,
            "kinds_ms": beside.kinds_ms,
            "share": beside.total_ms * 1e6 * count / analysis.wall_ns,
        }
    if moved:
        content["bytes_moved"] = {
            "step": moved.step,
            "bytes": moved.total,
            "phases": {phase: sum(both) for phase, both in moved.by_phase().items()},
            "operators": [row._asdict() for row in moved.rows],
        }
    return content


def phase_json(analysis: Analysis, phase: str | None) -> dict[str, float]:
    """Return wall time, and the parts of it. [ms]"""
    categories = (f"{category.name.lower()}_ms" for category in analysis.categories)
    names = ["wall_ms", *categories, "gaps_ms"]
    return dict(zip(names, analysis.times_ms(phase), strict=True))


def fragmentation_json(analysis: Analysis) -> dict[str, float]:
    """Return the numbers of the fragmentation of a step."""
    seconds, count = analysis.wall_ns / 1e9, analysis.count
    operator_ns = analysis.operator_ns or 1
    return {
        "spans": analysis.spans / count,
        "spans_per_s": analysis.spans / seconds,
        "working_spans": len(analysis.working) / count,
        "context_switches": analysis.switches / count,
        "context_switches_per_s": analysis.switches / seconds,
        "median_working_span_us": analysis.median_working_ns / 1000,
        "short_share": short_share(analysis),
        "short_work_share": analysis.pieces_ns[Piece.SHORT] / operator_ns,
        "between_calls_share": analysis.pieces_ns[Piece.CALLING] / operator_ns,
        "gap_share": gap_share(analysis),
    }


def write_charts(analysis: Analysis, costliest: Sequence[Row], *, folder: Path) -> None:
    """Write all charts."""
    name = analysis.trace.file.name
    step = "a step" if analysis.steps.are_marked else "the whole trace"
    number = median_step(analysis)[0].step
    shown = "" if number is None else f", step {number}"
    title = f"costliest operators outside oneDNN, {step}: {name}"
    figures = (
        draw_split(analysis, title=f"{step} by phase and category: {name}"),
        draw_timeline(analysis, title=f"timeline{shown}: {name}"),
        draw_operators(analysis, costliest, title=title),
    )
    for stem, figure in zip(CHARTS, figures, strict=True):
        save_chart(figure, *chart_files(folder, stem))
