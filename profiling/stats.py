"""`retinanet profile stats`: a log's problems as one table, summed up in tables and charts.

A row of `primitives.csv` is a distinct problem; `parameters.csv` has the same problems in the terms
of Fu et al. 2023, Table 2; the chart of where oneDNN's time goes is their Figure 2. The roofline
chart compares the rate of each problem with the peaks of the machine.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common import charts
from common.charts import DARK, Bar, Column, Piece, Table, chart_files, chart_names, text_column
from common.cli import add_command, positive
from common.console import make_console, print_cautions, print_line, significant
from common.errors import FINISHED, InputError, printable
from common.files import csv_parts, write_atomically, write_parts
from common.options import Outputs, included, option
from profiling.causes import MEASURES, fallback_table, operator_table, operators_in_full
from profiling.onednn_log import log as onednn_logs
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.work import (
    DIRECTION_COLOURS,
    DIRECTIONS,
    DRIVERS,
    Problem,
    direction_name,
)
from profiling.peaks import Peaks, cautions_of_peaks, choose_peaks, peaks_option
from profiling.sums import Part, ProblemCalls, grouped, identity, sum_by_kind, sum_by_problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXAMPLES = """\
examples:
  ONEDNN_VERBOSE=1 python anything.py > onednn.log       # any program that uses oneDNN
  retinanet profile stats onednn.log
  retinanet profile stats runs/coco/onednn/rank*.log --out coco-stats
  retinanet profile stats onednn.log --out stats --peaks peaks.json"""

FILES = """\
files in --out DIR:
  primitives.csv      a row for each distinct problem, the costliest first
  parameters.csv      the same problems with the fields of the paper's Table 2
  operators.csv       the torch operators and modules of each problem, if the log has them
  fallbacks.csv       problems that general code computes, and why other code was skipped
  distribution.png    time by kind and direction; also .svg
  roofline.png        rate of each problem and the machine's peaks; also .svg
  peaks.json          the peaks, if this command measured them"""


TABLES = ("primitives.csv", "parameters.csv", "operators.csv", "fallbacks.csv")
CHARTS = ("distribution", "roofline")


@dataclass(frozen=True, kw_only=True)
class StatsOptions:
    """The options of `retinanet profile stats`."""

    logs: list[Path] = onednn_logs.logs_argument()
    peaks: str = peaks_option()
    top: int = option("problems to print", default=10, parse=positive, metavar="N")
    outputs: Outputs = included(
        Outputs, writes=(*TABLES, *chart_names(*CHARTS)), unless_given=("peaks.json",)
    )


def run_stats(options: StatsOptions) -> int:
    """Read logs, print tables, write files; return the exit code.

    Raises:
        InputError: A log cannot be read or holds no executions, or a file cannot be written.
    """
    console, out = make_console(), options.outputs.out
    # Reasons for skipped implementations are worth a table's place, but give no chart.
    log = onednn_logs.read_with_progress(options.logs, console, needs_executions=out is not None)
    if not log.onednn_lines:  # marks alone
        raise InputError(f"{onednn_logs.name_files(log.files)}: {onednn_logs.NO_LINES}")
    calls = log.calls()
    rows = sum_by_problem(calls)
    parts = sum_by_kind(rows)
    # Peaks are for the roofline chart only, which is a file.
    machine = None if out is None else choose_peaks(options.peaks, log, console=console, folder=out)
    cautions = cautions_of_peaks(machine, log)
    print_cautions(console, cautions)
    onednn_logs.describe_log(console, log)
    if rows:
        print_parts(console, parts)
        print_phases(console, log)
        print_rows(console, rows[: options.top], problems=len(rows))
        print_causes(console, log, rows, top=options.top)
    else:
        print_line(console, "no execution, so no times; ONEDNN_VERBOSE=1 logs them")
    print_remarks(console, log)
    if options.outputs.json is not None:
        names = ("files", "versions", "runtimes", "threads", "instruction_sets", "lines")
        content = {
            **{name: getattr(log, name) for name in (*names, "onednn_lines")},
            "not_understood": log.not_understood_count,
            "calls": sum(row.calls for row in rows),
            "total_ms": log.total_ms,  # times in milliseconds, shares from 0 to 1
            "parts": [{name: getattr(part, name) for name in PART_FIELDS} for part in parts],
            "problems": [dict(zip(COLUMNS, problem_row(row), strict=True)) for row in rows],
            "operators": operators_in_full(log).records(),
            "fallbacks": fallback_table(log, rows).records(),
        }
        write_atomically(options.outputs.json, json.dumps(content, indent=1))
    if out is not None:
        write_parts(out / "primitives.csv", csv_parts(COLUMNS, map(problem_row, rows)))
        parameters = csv_parts(PARAMETER_COLUMNS, parameter_rows(calls))
        write_parts(out / "parameters.csv", parameters)
        write_atomically(out / "operators.csv", operators_in_full(log).csv())
        write_atomically(out / "fallbacks.csv", fallback_table(log, rows).csv())
        name = onednn_logs.name_files(log.files)
        title = f"oneDNN's time by kind and direction: {name}"
        charts.save_chart(draw_distribution(parts, title=title), *chart_files(out, "distribution"))
        title = f"roofline of {name}"
        title += f"; peaks: {machine.threads} threads of {machine.cpu}" if machine else ""
        title += "".join(f"\ncaution: {caution}" for caution in cautions)
        charts.save_chart(draw_roofline(rows, machine, title=title), *chart_files(out, "roofline"))
        print_line(console, f"tables and charts: {out}")
    return FINISHED


COLUMNS = (
    *(
        "kind",
        "implementation",
        "direction",
        "types",
        "layouts",
        "attributes",
        "algorithm",
        "shape",
    ),
    *("calls", "total_ms", "mean_ms", "share", "gflop", "gbyte", "gflop_per_s", "flop_per_byte"),
)
"""The columns of `primitives.csv`; the share is from 0 to 1, `gflop` and `gbyte` are of a call."""
NUMBERS = attrgetter(*COLUMNS[8:])
PART_FIELDS = ("kind", "direction", "calls", "total_ms", "share", "gflop", "gflop_per_s")


def problem_row(item: ProblemCalls) -> tuple[object, ...]:
    """Return the row of a problem in `primitives.csv`."""
    return *identity(item.problem), *NUMBERS(item)


PARAMETER_COLUMNS = (
    *("driver", "configuration", "directory", "post_ops", "algorithm"),
    *("problem_batchsize", "problem_input", "problem_output", "problem_stride"),
    *("problem_kernel", "problem_padding", "problem_channel", "calls"),
)
"""The columns of `parameters.csv`. `configuration` has the types of source, weights and
destination, run together (`u8s8u8`); `directory` is the paper's word for benchdnn's `--dir`."""


def parameter_rows(calls: Mapping[Problem, Calls]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each problem, the costliest first; equal rows are one."""
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for problem, counted in sorted(calls.items(), key=lambda item: -item[1].total_ms):
        counts[parameters_of_problem(problem)] += counted.count
    return ((*row, count) for row, count in counts.items())


def parameters_of_problem(problem: Problem) -> tuple[str, ...]:
    """Return all columns except `calls`; empty if a problem has no value."""
    # Sizes without names: all of them are of the input.
    listed = problem.shape[:1].isdigit()
    sizes = {} if listed else dict(re.findall(r"([a-z]+)(\d+)", problem.shape))

    def pick(*names: str) -> str:
        return intern("".join(name + sizes[name] for name in names if name in sizes))

    roles = [problem.memory(role) for role in ("src", "wei", "dst")]
    types = [memory.type for memory in roles if memory]
    direction = DIRECTIONS.get(problem.direction, "")
    if problem.memory("bia") is not None and problem.is_computing:
        direction = {"BWD_W": "BWD_WB", "FWD_D": "FWD_B"}.get(direction, direction)
    return (
        DRIVERS.get(problem.kind, problem.kind),
        intern("".join(types or [memory.type for memory in problem.memories if memory.is_there])),
        direction,
        intern("+".join(problem.post_ops)),
        intern(problem.algorithm.rpartition("_")[2].upper()),
        pick("mb"),
        pick("id", "ih", "iw") if sizes else problem.shape,
        *(pick(letter + "d", letter + "h", letter + "w") for letter in "oskp"),
        pick("g", "ic", "oc"),
    )


WITH_RATE = (*MEASURES, Column("GFLOP/s", ",.0f"))
MESSAGES = 5  # Dispatch reasons and messages that are shown


def print_parts(console: Console, parts: Sequence[Part]) -> None:
    """Print time by kind and direction, and the plain sum of all lines."""
    rows = []
    for part in parts:
        direction = "" if part.direction == "undef" else part.direction
        measures = (part.calls, part.total_ms, part.share, part.gflop_per_s or None)
        rows.append((part.kind, direction, *measures))
    calls, ms = sum(part.calls for part in parts), sum(part.total_ms for part in parts)
    columns = (text_column("kind"), text_column("direction"), *WITH_RATE)
    totals = [("all", "", calls, ms, None, None)]
    console.print(Table("time by kind and direction", columns, rows, totals=totals).for_console())


def print_rows(console: Console, rows: Sequence[ProblemCalls], *, problems: int) -> None:
    """Print the costliest problems."""
    cells = []
    for row in rows:
        problem = row.problem
        name = f"{problem.name}, {problem.implementation}\n{problem.shape}\n{problem.types}"
        cells.append((name, row.calls, row.total_ms, row.share, row.gflop_per_s))
    title = f"the {len(rows)} costliest of {problems:,} problems"
    table = Table(title, (text_column("problem"), *WITH_RATE), cells)
    console.print(table.for_console(show_lines=True))


REASONS = 4  # Lines of reasons for a problem on the terminal; the file has all


def print_causes(
    console: Console, log: OneDnnLog, rows: Sequence[ProblemCalls], *, top: int
) -> None:
    """Print operators, where the log has them, and problems that general code computes."""
    if log.operators:
        console.print(operator_table(log, top=top).for_console())
    slow = fallback_table(log, rows)
    if not slow.rows:
        return
    cells = []
    for primitive, implementation, types, shape, *measures, reasons in slow.rows[:top]:
        lines = str(reasons).splitlines()
        more = [f"{len(lines) - REASONS} more"] if len(lines) > REASONS else []
        name = f"{primitive}, {implementation}\n{shape}\n{types}"
        cells.append((name, *measures, "\n".join([*lines[:REASONS], *more])))
    columns = (text_column("problem"), *MEASURES, text_column("skipped implementations"))
    console.print(Table(slow.title, columns, cells).for_console(show_lines=True))
    if not log.skipped:
        print_line(console, "for the reasons, log with ONEDNN_VERBOSE=profile_exec,dispatch")


def print_phases(console: Console, log: OneDnnLog) -> None:
    """Print wall-clock time of a step's phases beside oneDNN's in it, where the log has marks."""
    steps = log.step_ms
    walls = {where: ms for where, ms in log.phase_ms.items() if where.whole_step in steps}
    phases = list(dict.fromkeys(where.phase for where in walls if where.phase))
    if not phases:
        return
    rows = []
    for phase in (*phases, None):  # None: whole steps
        wall = sum(ms for where, ms in walls.items() if where.phase == phase) / len(steps)
        inside = sum(
            calls.total_ms / len(steps)
            for where, problems in log.executions.items()
            if where.whole_step in steps and phase in (None, where.phase)
            for calls in problems.values()
        )
        rows.append((phase or "whole step", wall, inside, wall - inside))
    names = ("ms", "in oneDNN", "elsewhere")
    columns = (text_column("phase"), *(Column(name, ",.1f") for name in names))
    table = Table(f"phases of a step, mean of {len(steps)}", columns, rows[:-1], totals=rows[-1:])
    console.print(table.for_console())
    kernels = sorted({str(facts["own_kernels"]) for facts in log.facts if facts.get("own_kernels")})
    if kernels:
        print_line(
            console,
            f"elsewhere includes this project's convolutions ({', '.join(kernels)}), which oneDNN "
            "does not log; record a trace to see them, or set engine.convolutions=onednn",
        )


def print_remarks(console: Console, log: OneDnnLog) -> None:
    """Print creations, messages, and the first of the lines that could not be parsed."""
    say = partial(print_line, console)
    if log.creation_states:
        states = ", ".join(f"{count:,} {state}" for state, count in log.creation_states.items())
        total = sum(calls.total_ms for calls in log.creations.values())
        say(f"primitives created: {states}; {total:,.1f} ms")
    for name, counter in (("skipped implementations", log.dispatches), ("messages", log.messages)):
        for text, count in counter.most_common(MESSAGES):
            say(f"{name}: {count:,} × {printable(text)}")
        if len(counter) > MESSAGES:
            say(f"{name}: {len(counter) - MESSAGES:,} more")
    if log.not_understood_count:
        number = f"{log.not_understood_count:,}"
        say(f"oneDNN lines that cannot be parsed and are in no table: {number}")
        for line in log.not_understood:
            say(f"  {line.file}:{line.line}: {line.why}: {printable(line.text[:80])}")
        if hidden := log.not_understood_count - len(log.not_understood):
            say(f"  and {hidden:,} more")


BARS = 12  # Kinds with a bar of their own; the others share one
SMALLEST_LABELLED = 0.06  # Share from which a piece of a bar has its number in it


def draw_distribution(parts: Sequence[Part], *, title: str) -> "Figure":
    """Draw a bar for each kind of primitive, in pieces by direction; lengths are milliseconds."""
    by_kind: dict[str, dict[str, float]] = {}
    for part in parts:
        # One piece per colour: passes of training and of inference are both "forward".
        by_direction = by_kind.setdefault(part.kind, dict.fromkeys(DIRECTION_COLOURS, 0.0))
        name = direction_name(part.direction)
        by_direction[name if name in DIRECTION_COLOURS else ""] += part.total_ms
    groups = sorted(by_kind.items(), key=lambda item: -sum(item[1].values()))
    if others := [group for _, group in groups[BARS:]]:
        summed = {name: sum(group[name] for group in others) for name in DIRECTION_COLOURS}
        groups[BARS:] = [(f"{len(others)} other kinds", summed)]
    # Calls of less than a microsecond are logged as 0.
    total = sum(part.total_ms for part in parts) or 1.0
    bars = []
    for kind, by_direction in groups:
        pieces = [
            Piece(
                ms, DIRECTION_COLOURS[name], f"{ms / total:.0%}" * (ms > SMALLEST_LABELLED * total)
            )
            for name, ms in by_direction.items()
            if ms
        ]
        ms = sum(by_direction.values())
        bars.append(Bar(kind, pieces, f"{significant(ms, 3)} ms, {ms / total:.1%}"))
    figure = charts.new_figure(height=2.0 + 0.5 * len(bars))
    axes = figure.subplots()
    charts.horizontal_bars(axes, bars, room=1.18)
    axes.set_xlabel("time of all calls [ms]")
    colours = {
        name or "no direction": colour
        for name, colour in DIRECTION_COLOURS.items()
        if any(by_direction[name] for _, by_direction in groups)
    }
    below = (0.5, -0.16 - 0.3 / len(bars))
    charts.colour_legend(axes, colours, columns=5, loc="upper center", bbox_to_anchor=below)
    figure.suptitle(title)
    return figure


LARGEST_DOT = 900  # Area of the dot of a problem that takes all of the time. [points²]
SMALLEST_DOT = 9
MOVERS = 10  # Kinds that only move data in the chart


def draw_roofline(rows: Sequence[ProblemCalls], peaks: Peaks | None, *, title: str) -> "Figure":
    """Draw problems that compute (left: GFLOP/s over FLOP/byte) and that move data (right: GB/s).

    A dot's area is the problem's share of the time.
    """
    figure = charts.new_figure(width=13, height=5.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_computing(left, [row for row in rows if row.gflop_per_s and row.flop_per_byte], peaks)
    moving = [row for row in rows if row.gflop is None and row.gbyte and row.total_ms]
    draw_moving(right, moving, peaks)
    figure.suptitle(title)
    return figure


def draw_computing(axes: "Axes", rows: Sequence[ProblemCalls], peaks: Peaks | None) -> None:
    """Draw a dot for each problem, with ceilings above them."""
    axes.set_title("convolutions and matrix products")
    if not rows:
        charts.write_in_place_of_chart(axes, "none in this log")
        return
    by_direction = grouped(rows, lambda row: direction_name(row.problem.direction))
    for direction, group in by_direction.items():
        axes.scatter(
            [row.flop_per_byte or 0 for row in group],
            [row.gflop_per_s or 0 for row in group],
            [SMALLEST_DOT + LARGEST_DOT * row.share for row in group],
            color=DIRECTION_COLOURS.get(direction, DARK),
            alpha=0.65,
            linewidth=0,
            label=direction or "no direction",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    if peaks:
        draw_ceilings(axes, rows, peaks)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    axes.set_xlabel("arithmetic intensity [FLOP/byte]")
    axes.set_ylabel("rate [GFLOP/s]")
    axes.grid(alpha=0.3)
    legend = axes.legend(loc="lower right", title="area: share of time")
    for handle in legend.legend_handles:
        # Otherwise these dots would have areas of problems, and differ.
        handle.set_sizes([40])  # type: ignore[union-attr]


def draw_ceilings(axes: "Axes", rows: Sequence[ProblemCalls], peaks: Peaks) -> None:
    """Draw the memory's slope, and a line for each type that the log multiplies in."""
    bandwidth = peaks.bandwidth_gb_per_s
    intensities = [row.flop_per_byte or 1 for row in rows]
    highest = max(intensities) * 2
    types = {item.rpartition(":")[2] for row in rows for item in row.problem.types.split()}
    shown = {name: peak for name, peak in peaks.matrix_gflop_per_s.items() if name in types}
    top = max([*shown.values(), *(row.gflop_per_s or 0 for row in rows)])
    ridge = min(highest, top / bandwidth)
    # So that the slope is visible.
    lowest = min(min(intensities) / 2, ridge / 6)

    line: dict[str, Any] = {"color": DARK, "linewidth": 1.2}
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9}
    axes.plot([lowest, ridge], [bandwidth * lowest, bandwidth * ridge], **line)
    memory = f"memory {bandwidth:,.0f} GB/s"
    axes.annotate(memory, (lowest, bandwidth * lowest), xytext=(10, -4), **text)
    for name, peak in shown.items():
        axes.plot([peak / bandwidth, highest], [peak, peak], **line)
        label = f"{name} {peak:,.0f} GFLOP/s"
        axes.annotate(label, (highest, peak), xytext=(0, 4), ha="right", **text)


def draw_moving(axes: "Axes", rows: Sequence[ProblemCalls], peaks: Peaks | None) -> None:
    """Draw bytes a second of kinds whose arithmetic does not count, the costliest on top."""
    axes.set_title("primitives that only move data")
    by_kind = grouped(rows, lambda row: row.problem.kind)
    if not by_kind:
        charts.write_in_place_of_chart(axes, "none in this log")
        return
    groups = sorted(by_kind.items(), key=lambda item: -sum(row.total_ms for row in item[1]))
    bars, rates = [], [peaks.bandwidth_gb_per_s if peaks else 0.0]
    for kind, group in groups[:MOVERS]:
        rate = sum((row.gbyte or 0) * row.calls for row in group)
        rate *= 1000 / sum(row.total_ms for row in group)
        share = sum(row.share for row in group)
        note = f"{significant(rate, 3)} GB/s, {share:.1%} of time"
        bars.append(Bar(kind, [Piece(rate, DIRECTION_COLOURS[""])], note))
        rates.append(rate)
    charts.horizontal_bars(axes, bars, rows=3, thickness=0.6)
    axes.set_ylim(max(len(bars), 3) - 0.4, -0.8)
    axes.set_xlim(0, 1.6 * max(rates))
    if peaks:
        bandwidth = peaks.bandwidth_gb_per_s
        axes.axvline(bandwidth, color=DARK, linestyle="--", linewidth=1.2)
        axes.text(bandwidth, -0.62, f"memory {bandwidth:,.0f} GB/s", ha="center", fontsize=9,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})  # fmt: skip
    axes.set_xlabel("bandwidth [GB/s], each tensor counted once")


add_stats = partial(
    add_command,
    name="stats",
    about="Summarize oneDNN logs: time by kind of primitive and by problem.",
    examples=f"{FILES}\n\n{EXAMPLES}",
    options=StatsOptions,
    run=run_stats,
)
