"""`python -m profiling trace`: its command line, and from a trace to files.

TODO-DOC What an analysis of a trace leaves: JSON, a table, pictures.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from common.cli import add_json_option, positive
from common.console import make_console, progress_in_bytes, say
from common.errors import FINISHED
from common.files import as_csv, require_free_json, require_free_outputs, write_whole
from profiling.onednn_log.log import read_with_progress
from profiling.trace.analysis import (
    Analysis,
    BesideLog,
    analyze,
    fragmentation_verdict,
    gap_share,
    lay_beside,
    onednn_verdict,
    short_share,
)
from profiling.trace.operators import Piece
from profiling.trace.report import (
    Costly,
    Row,
    costliest_outside_onednn,
    print_analysis,
    print_beside_log,
    print_verdict,
    rows_of,
    times_of,
)
from profiling.trace.trace import BytesMoved, Trace, bytes_json, print_bytes_moved, read_trace

MANY = 200_000
"""Calls that take seconds to add up."""

ABOUT = """\
Say where a training step goes, from a trace of torch.profiler: oneDNN against everything else,
forward against backward, the operators outside oneDNN by cost and the modules that call them, and
how fragmented it is: how short the operators are, how often they change, when none runs.

Reads what export_chrome_trace writes, .json or .json.gz, of any model; needs no torch. Where a
training has marked them (profile.trace), steps, phases and modules are its own: `step 20`,
`phase: forward`, `module: backbone.body.conv1`. Else steps are those of torch.profiler.schedule,
or the whole trace; backward is what autograd runs, optimizer and data are torch's own marks; and
modules are known if the trace was taken with_stack.

A training's own trace also holds the bytes that the operators of the step before its window read
and write, from the shapes of their tensors: they are shown by phase and operator.

A trace cannot tell which library multiplies matrices. A log of oneDNN of the same steps can:
train with profile.onednn and profile.trace, and give the log to --onednn-log."""

FILES = """\
--out DIR gets:
  operators.csv       a row for each operator, phase and module, the costliest first
  split.png           phases, and what each is spent in; also as .svg
  timeline.png        one step in time, and a closer look where it is most fragmented; also as .svg
  operators.png       what costs most outside oneDNN; also as .svg"""

EXAMPLES = """\
examples:
  python train.py profile.trace.steps=20-22
  python -m profiling trace runs/demo/trace/rank0.json.gz
  python -m profiling trace runs/demo/trace/rank0.json.gz --out trace --json trace.json
  python -m profiling trace runs/demo/trace/rank0.json.gz --step 21,22 --top 40
  python -m profiling trace runs/demo/trace/rank0.json.gz --onednn-log runs/demo/onednn/rank0.log
  python -m profiling trace any-model.json"""


def add_trace(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `trace` to the commands of a command line."""
    parser = commands.add_parser(
        "trace",
        description=ABOUT,
        epilog=f"{FILES}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", type=Path, metavar="TRACE", help="a Chrome trace of torch.profiler, plain or .gz"
    )
    parser.add_argument(
        "--step", type=numbers, metavar="A,B", help="only these steps (default: all marked)"
    )
    parser.add_argument(
        "--top", type=positive, default=15, metavar="N", help="operators to show (default: 15)"
    )
    parser.add_argument(
        "--onednn-log", type=Path, metavar="LOG", help="oneDNN's log of the same steps and rank"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write table and pictures here")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier call in DIR"
    )
    add_json_option(parser)
    parser.set_defaults(run=trace_command)


def trace_command(
    file: Path,
    *,
    step: tuple[int, ...] | None,
    top: int,
    onednn_log: Path | None,
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Read, print, write; returns the exit code.

    Raises:
        InputError: The trace or the log cannot be read, they do not fit, or a file is in the way.
    """
    console = make_console()
    require_free_json(json_file)
    if out is not None:
        require_free_outputs(output_files(out), overwrite=overwrite)
    trace = read_shown(file, console)
    if len(trace.operators) > MANY:
        say(console, f"adding up {len(trace.operators):,} calls of operators")
    analysis = analyze(trace, chosen=step)
    log = read_with_progress([onednn_log], console) if onednn_log else None
    beside = lay_beside(analysis, log) if log else None
    rows = rows_of(analysis)
    costly = costliest_outside_onednn(rows)
    print_analysis(console, analysis, costly, top=top)
    if trace.bytes_moved:
        print_bytes_moved(console, trace.bytes_moved, top=top)
    if beside:
        print_beside_log(console, analysis, beside)
    print_verdict(console, analysis, beside)
    if json_file is not None:
        write_json(analysis, rows, beside, trace.bytes_moved, json_file)
    if out is not None:
        write_table(rows, out / "operators.csv")
        write_pictures(trace, analysis, costly[:top], folder=out)
        say(console, f"table and pictures: {out}")
    return FINISHED


def read_shown(file: Path, console: Console) -> Trace:
    """`read_trace`, with progress for what is long.

    Raises:
        InputError: It is no trace.
    """
    size = file.stat().st_size if file.is_file() else 0
    with progress_in_bytes(console, f"reading {file.name}", total=size) as advance:
        return read_trace(file, advance)


def numbers(text: str) -> tuple[int, ...]:
    """Different whole numbers, ascending."""
    words = text.split(",")
    if not all(word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(f"expected numbers such as 20,21, found {text!r}")
    return tuple(sorted({int(word) for word in words}))


TABLE = "operators.csv"
PICTURES = ("split", "timeline", "operators")


def output_files(folder: Path) -> list[Path]:
    """All that is written to `--out`."""
    pictures = [f"{stem}.{ending}" for stem in PICTURES for ending in ("png", "svg")]
    return [folder / name for name in (TABLE, *pictures)]


def write_table(rows: Sequence[Row], file: Path) -> None:
    """All operators as CSV.

    Raises:
        InputError: It cannot be written.
    """
    write_whole(file, as_csv((field.name for field in fields(Row)), map(astuple, rows)))


def write_pictures(
    trace: Trace, analysis: Analysis, costly: Sequence[Costly], *, folder: Path
) -> None:
    """All three, as PNG and SVG.

    Raises:
        InputError: They cannot be written.
    """
    # Here, because matplotlib is slow to load, and printing needs none.
    from common.charts import chart_files, save_chart  # noqa: PLC0415
    from profiling.trace.charts import draw_operators, draw_split, draw_timeline, median_step  # noqa: PLC0415

    name, step = analysis.file.name, "a step" if analysis.steps.are_marked else "the whole trace"
    number = median_step(analysis)[0].step
    shown = "" if number is None else f", step {number}"
    split = draw_split(analysis, title=f"{step} by phases and what runs: {name}")
    save_chart(split, *chart_files(folder, "split"))
    timeline = draw_timeline(trace, analysis, title=f"what runs when{shown}: {name}")
    save_chart(timeline, *chart_files(folder, "timeline"))
    title = f"the operators that cost most outside oneDNN, in {step}: {name}"
    known = analysis.modules_are_known
    operators = draw_operators(costly, title=title, modules_are_known=known)
    save_chart(operators, *chart_files(folder, "operators"))


def write_json(
    analysis: Analysis,
    rows: Sequence[Row],
    beside: BesideLog | None,
    moved: BytesMoved | None,
    file: Path,
) -> None:
    """Everything for programs.

    Raises:
        InputError: It cannot be written.
    """
    content = as_json(analysis, rows, beside)
    if moved:
        content["bytes_moved"] = bytes_json(moved)
    write_whole(file, json.dumps(content, indent=1))


def as_json(analysis: Analysis, rows: Sequence[Row], beside: BesideLog | None) -> dict[str, Any]:
    """Means over the steps: times in milliseconds, shares 0 to 1."""
    steps, count = analysis.steps, analysis.count
    content: dict[str, Any] = {
        "file": str(analysis.file),
        "steps": [
            {"step": number, "wall_ms": time / 1e6} for number, time in steps.durations.items()
        ],
        "steps_are_marked": steps.are_marked,
        "phases_are_marked": steps.phases_are_marked,
        "is_cut_off": analysis.is_cut_off,
        "wall_ms": analysis.wall_ns / 1e6 / count,
        "phases": {phase: phase_json(analysis, phase) for phase in steps.phases},
        "all": phase_json(analysis, None),
        "fragmentation": fragmentation_json(analysis),
        "other_threads_ms": analysis.elsewhere_ns / 1e6 / count,
        "verdicts": [
            onednn_verdict(analysis, beside.total_ms if beside else None),
            fragmentation_verdict(analysis),
        ],
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
    return content


def phase_json(analysis: Analysis, phase: str | None) -> dict[str, float]:
    """Wall time, and what adds up to it. [ms]"""
    names = ["wall_ms", *(f"{one.name.lower()}_ms" for one in analysis.categories), "gaps_ms"]
    return dict(zip(names, times_of(analysis, phase), strict=True))


def fragmentation_json(analysis: Analysis) -> dict[str, float]:
    """Into how many pieces a step falls."""
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
