"""What an analysis of a trace leaves: JSON, a table, pictures."""

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

from profiling.trace.analysis import Analysis
from profiling.trace.beside_log import BesideLog
from profiling.trace.bytes_moved import BytesMoved, bytes_json
from profiling.trace.pieces import Piece
from profiling.trace.report import times_of
from profiling.trace.rows import Costly, Row
from profiling.trace.trace import Trace
from profiling.trace.verdict import (
    fragmentation_verdict,
    gap_share,
    onednn_verdict,
    short_share,
)
from retinanet.csv_text import as_csv
from retinanet.output_files import write_whole

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
    from profiling.pictures import write_picture  # noqa: PLC0415
    from profiling.trace.operators_chart import draw_operators  # noqa: PLC0415
    from profiling.trace.split_chart import draw_split  # noqa: PLC0415
    from profiling.trace.timeline_chart import draw_timeline, median_step  # noqa: PLC0415

    name, step = analysis.file.name, "a step" if analysis.steps.are_marked else "the whole trace"
    number = median_step(analysis)[0].step
    shown = "" if number is None else f", step {number}"
    write_picture(
        draw_split(analysis, title=f"{step} by phases and what runs: {name}"), folder / "split"
    )
    write_picture(
        draw_timeline(trace, analysis, title=f"what runs when{shown}: {name}"),
        folder / "timeline",
    )
    title = f"the operators that cost most outside oneDNN, in {step}: {name}"
    known = analysis.modules_are_known
    write_picture(
        draw_operators(costly, title=title, modules_are_known=known), folder / "operators"
    )


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
