"""`python -m profiling trace`: its command line, and from a trace to files."""

import argparse
from pathlib import Path

from rich.console import Console

from profiling.log_option import read_with_progress
from profiling.terminal import say
from profiling.trace.analyze import analyze
from profiling.trace.beside_log import lay_beside
from profiling.trace.bytes_moved import print_bytes_moved
from profiling.trace.log_report import print_beside_log
from profiling.trace.output import output_files, write_json, write_pictures, write_table
from profiling.trace.report import print_analysis, print_verdict
from profiling.trace.rows import costliest_outside_onednn, rows_of
from profiling.trace.trace import Trace, read_trace
from retinanet.command_line import add_json_option, positive
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json, require_free_outputs
from retinanet.progress import progress_in_bytes
from retinanet.terminal import make_console

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
        help="torch.profiler's traces as tables and pictures",
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
