"""`python -m profiling stats`: its command line, and from logs to files.

TODO-DOC A log's sums as a person reads them on a terminal.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.cli import add_json_option, positive
from common.console import make_console, print_cautions, say
from common.errors import FINISHED, printable
from common.files import csv_parts, require_free_json, require_free_outputs, write_parts
from profiling.onednn_log.log import OneDnnLog, Where, add_logs, read_with_progress
from profiling.peaks.command import add_peaks_option, peaks_as_asked
from profiling.peaks.peaks import Peaks, cautions_of_peaks
from profiling.stats import tables
from profiling.stats.tables import Part, Row, parts_of, rows_of

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
        values = attrgetter(*tables.COLUMNS)
        write_parts(out / "primitives.csv", csv_parts(tables.COLUMNS, map(values, table)))
        found = tables.parameters_of(calls)
        write_parts(
            out / "parameters.csv",
            csv_parts(tables.PARAMETER_COLUMNS, map(attrgetter(*tables.PARAMETER_COLUMNS), found)),
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
    from common.charts import chart_files, save_chart  # noqa: PLC0415
    from profiling.stats.tables import draw_distribution, draw_roofline  # noqa: PLC0415

    name = ", ".join(Path(file).name for file in log.files[:3])
    if len(log.files) > 3:
        name += f" and {len(log.files) - 3} more"
    parts = parts_of(table)
    distribution = draw_distribution(parts, title=f"oneDNN's time by kind and direction: {name}")
    save_chart(distribution, *chart_files(folder, "distribution"))
    on = f"; peaks: {peaks.threads} threads of {peaks.cpu}" if peaks else ""
    on += "".join(f"\ncaution: {caution}" for caution in cautions_of_peaks(peaks, log))
    roofline = draw_roofline(table, peaks, title=f"what oneDNN reaches: {name}{on}")
    save_chart(roofline, *chart_files(folder, "roofline"))


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
    values = attrgetter(*tables.COLUMNS)
    for place, row in enumerate(table):
        fields = dict(zip(tables.COLUMNS, values(row), strict=True))
        text = json.dumps(fields, separators=(",\n   ", ": "))
        yield f"{',' if place else ''}\n  {{\n   {text[1:-1]}\n  }}".encode()
    yield b"\n ]\n}" if table else b"]\n}"


MESSAGES = 5
"""Dispatch reasons and messages that are shown."""


def describe_log(console: Console, log: OneDnnLog) -> None:
    """Which library wrote it, on what, and how much it is."""
    library = ", ".join(f"oneDNN {version}" for version in log.versions) or "oneDNN (no header)"
    threads = " and ".join(map(str, log.threads))
    parts = [library]
    if threads:
        parts.append(f"{' and '.join(log.runtimes)}, {threads} threads")
    parts += log.instruction_sets
    say(console, "; ".join(parts))
    counted = f"{log.lines:,} lines, {log.onednn_lines:,} of them oneDNN's"
    if log.ranks:
        counted += f"; ranks {', '.join(map(str, log.ranks))}"
    if log.steps:
        counted += f"; steps {', '.join(map(str, log.steps))}"
    say(console, counted)


def print_parts(console: Console, parts: Sequence[Part]) -> None:
    """Time by kind and direction, and the plain sum of all lines."""
    table = Table("kind", "direction", title="time by kind and direction", title_justify="left")
    for heading in ("calls", "ms", "share", "GFLOP/s"):
        table.add_column(heading, justify="right")
    for part in parts:
        direction = "" if part.direction == "undef" else part.direction
        rate = f"{part.gflop_per_s:,.0f}" if part.gflop_per_s else ""
        table.add_row(Text(printable(part.kind)), Text(printable(direction)), f"{part.calls:,}",
                      f"{part.total_ms:,.1f}", f"{part.share:.1%}", rate)  # fmt: skip
    table.add_section()
    table.add_row("all", "", f"{sum(part.calls for part in parts):,}",
                  f"{sum(part.total_ms for part in parts):,.1f}", "", "")  # fmt: skip
    console.print(table)


def print_rows(console: Console, rows: Sequence[Row], *, top: int) -> None:
    """The costliest problems."""
    title = f"the {min(top, len(rows))} costliest of {len(rows):,} problems"
    table = Table("problem", title=title, title_justify="left", show_lines=True)
    for heading in ("calls", "ms", "share", "GFLOP/s"):
        table.add_column(heading, justify="right")
    for row in rows[:top]:
        direction = "" if row.direction == "undef" else f" {row.direction}"
        lines = (f"{row.kind}{direction}, {row.implementation}", row.shape, row.types)
        rate = f"{row.gflop_per_s:,.0f}" if row.gflop_per_s is not None else ""
        table.add_row(
            Text("\n".join(map(printable, lines)), overflow="fold"),
            f"{row.calls:,}",
            f"{row.total_ms:,.1f}",
            f"{row.share:.1%}",
            rate,
        )
    console.print(table)


def print_phases(console: Console, log: OneDnnLog) -> None:
    """Wall-clock time of a step's phases beside oneDNN's in it, where the log has marks."""
    phases = list(dict.fromkeys(where.phase for where in log.phase_ms if where.phase))
    steps = {(where.rank, where.step) for where in log.phase_ms}
    if not phases or not steps:
        return
    title = f"a step by phases, mean of {len(steps)}"
    table = Table("phase", title=title, title_justify="left")
    for heading in ("ms", "in oneDNN", "elsewhere"):
        table.add_column(heading, justify="right")
    for phase in (*phases, None):
        wall = sum(ms for where, ms in log.phase_ms.items() if where.phase == phase) / len(steps)
        inside = onednn_ms(log, phase) / len(steps)
        if phase is None:
            table.add_section()
        name = phase or "whole step"
        table.add_row(name, f"{wall:,.1f}", f"{inside:,.1f}", f"{wall - inside:,.1f}")
    console.print(table)
    own = sorted({str(facts["own_kernels"]) for facts in log.facts if facts.get("own_kernels")})
    if own:
        say(
            console,
            f"elsewhere: also the program's own convolutions ({', '.join(own)}), which are not in "
            "oneDNN's log; a trace tells them apart, engine.convolutions=onednn does without",
        )


def onednn_ms(log: OneDnnLog, phase: str | None) -> float:
    """Time of executions in a phase of any step; None: in whole steps, between phases too."""

    def is_there(where: Where) -> bool:
        return where.step is not None and phase in (None, where.phase)

    return sum(calls.total_ms for calls in log.calls(is_there).values())


def print_remarks(console: Console, log: OneDnnLog) -> None:
    """What else is in the log, and every line that was not understood, as far as they are kept."""
    if log.creation_states:
        states = ", ".join(f"{count:,} {state}" for state, count in log.creation_states.items())
        total = sum(calls.total_ms for calls in log.creations.values())
        say(console, f"primitives were made: {states}; {total:,.1f} ms")
    for name, counter in (("passed over", log.dispatches), ("messages", log.messages)):
        for text, count in counter.most_common(MESSAGES):
            say(console, f"{name}: {count:,} × {printable(text)}")
        if len(counter) > MESSAGES:
            say(console, f"{name}: {len(counter) - MESSAGES:,} other texts")
    if log.not_understood_count:
        say(console, f"{log.not_understood_count:,} lines look like oneDNN's and are not "
            "understood; nothing of them is in the tables:")  # fmt: skip
        for one in log.not_understood:
            say(console, f"  {one.file}:{one.line}: {one.why}: {printable(one.text[:80])}")
        if log.not_understood_count > len(log.not_understood):
            more = log.not_understood_count - len(log.not_understood)
            say(console, f"  and {more:,} more")
