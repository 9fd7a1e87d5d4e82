"""`python -m profiling stats`: its command line, and from logs to files."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path

from profiling.log_option import add_logs, read_with_progress
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.cautions import cautions_of_peaks
from profiling.peaks.option import add_peaks_option, peaks_as_asked
from profiling.peaks.peaks import Peaks
from profiling.stats import parameters, rows
from profiling.stats.report import (
    describe_log,
    print_parts,
    print_phases,
    print_remarks,
    print_rows,
)
from profiling.stats.rows import Part, Row, parts_of, rows_of
from profiling.terminal import print_cautions, say
from retinanet.command_line import add_json_option, positive
from retinanet.csv_text import csv_parts
from retinanet.exit_codes import FINISHED
from retinanet.output_files import require_free_json, require_free_outputs, write_parts
from retinanet.terminal import make_console

EXAMPLES = """\
examples:
  ONEDNN_VERBOSE=1 python anything.py > onednn.log       # any program that uses oneDNN
  python -m profiling stats onednn.log
  python -m profiling stats runs/coco/onednn/rank*.log --out coco-stats
  python -m profiling stats onednn.log --out stats --peaks peaks.json"""

FILES = """\
--out DIR gets:
  primitives.csv      a row for each distinct problem, the costliest first
  parameters.csv      the same in the paper's terms (Table 2)
  distribution.png    time by kind and direction; also as .svg
  roofline.png        what each problem reaches against the machine's peaks; also as .svg
  peaks.json          the peaks, if they were measured now"""


def add_stats(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `stats` to the commands of a command line."""
    parser = commands.add_parser(
        "stats",
        help="oneDNN's logs as tables and pictures",
        description="Sum up oneDNN's logs: where the time goes, by kind and by problem.",
        epilog=f"{FILES}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_logs(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write tables and pictures here")
    add_peaks_option(parser)
    parser.add_argument(
        "--top", type=positive, default=10, metavar="N", help="problems to print (default: 10)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files of an earlier call in DIR"
    )
    add_json_option(parser)
    parser.set_defaults(run=stats_command)


def stats_command(
    logs: list[Path],
    *,
    out: Path | None,
    peaks: str,
    top: int,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Read, print, write; returns the exit code.

    Raises:
        InputError: A log cannot be read or holds no executions, or a file cannot be written.
    """
    console = make_console()
    require_free_json(json_file)
    if out is not None:
        require_free_outputs(outputs(out), overwrite=overwrite)
    log = read_with_progress(logs, console)
    calls = log.calls()
    table = rows_of(calls)
    parts = parts_of(table)
    peaks_used = None
    if out is not None:
        peaks_used = peaks_as_asked(peaks, log, console=console, folder=out)
    print_cautions(console, cautions_of_peaks(peaks_used, log))
    describe_log(console, log)
    print_parts(console, parts)
    print_phases(console, log)
    print_rows(console, table, top=top)
    print_remarks(console, log)
    if json_file is not None:
        write_parts(json_file, json_parts(log, parts, table))
    if out is not None:
        values = attrgetter(*rows.COLUMNS)
        write_parts(out / "primitives.csv", csv_parts(rows.COLUMNS, map(values, table)))
        found = parameters.parameters_of(calls)
        write_parts(
            out / "parameters.csv",
            csv_parts(parameters.COLUMNS, map(attrgetter(*parameters.COLUMNS), found)),
        )
        write_pictures(log, table, peaks=peaks_used, folder=out)
        say(console, f"tables and pictures: {out}")
    return FINISHED


def outputs(folder: Path) -> list[Path]:
    """All that is written to `--out`."""
    names = ("primitives.csv", "parameters.csv", "distribution.png", "distribution.svg",
             "roofline.png", "roofline.svg", "peaks.json")  # fmt: skip
    return [folder / name for name in names]


def write_pictures(
    log: OneDnnLog, table: Sequence[Row], *, peaks: Peaks | None, folder: Path
) -> None:
    """Both charts, as PNG and SVG.

    Raises:
        InputError: They cannot be written.
    """
    # Here, because matplotlib is slow to load, and printing needs none.
    from profiling.pictures import write_picture  # noqa: PLC0415
    from profiling.stats.distribution_chart import draw_distribution  # noqa: PLC0415
    from profiling.stats.roofline_chart import draw_roofline  # noqa: PLC0415

    name = ", ".join(Path(file).name for file in log.files[:3])
    if len(log.files) > 3:
        name += f" and {len(log.files) - 3} more"
    parts = parts_of(table)
    write_picture(
        draw_distribution(parts, title=f"oneDNN's time by kind and direction: {name}"),
        folder / "distribution",
    )
    on = f"; peaks: {peaks.threads} threads of {peaks.cpu}" if peaks else ""
    on += "".join(f"\ncaution: {caution}" for caution in cautions_of_peaks(peaks, log))
    write_picture(
        draw_roofline(table, peaks, title=f"what oneDNN reaches: {name}{on}"), folder / "roofline"
    )


def json_parts(log: OneDnnLog, parts: Sequence[Part], table: Sequence[Row]) -> Iterator[bytes]:
    """Yield everything for programs as JSON; times in milliseconds, shares 0 to 1.

    It is laid out as by `indent=1`, row by row: a log may have very many.
    """
    numbers = {
        "files": log.files,
        "versions": log.versions,
        "runtimes": log.runtimes,
        "threads": log.threads,
        "instruction_sets": log.instruction_sets,
        "lines": log.lines,
        "onednn_lines": log.onednn_lines,
        "not_understood": log.not_understood_count,
        "calls": sum(row.calls for row in table),
        "total_ms": log.total_ms,
        "parts": [asdict(part) for part in parts],
        "problems": [],
    }
    yield json.dumps(numbers, indent=1).removesuffix("]\n}").encode()
    values = attrgetter(*rows.COLUMNS)
    for place, row in enumerate(table):
        fields = dict(zip(rows.COLUMNS, values(row), strict=True))
        text = json.dumps(fields, separators=(",\n   ", ": "))
        yield f"{',' if place else ''}\n  {{\n   {text[1:-1]}\n  }}".encode()
    yield b"\n ]\n}" if table else b"]\n}"
