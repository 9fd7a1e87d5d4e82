"""Reading all that a report is made from."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from profiling.compare.command import names_of
from profiling.compare.comparison import Comparison, compare
from profiling.compare.side import marked_steps, side_of
from profiling.efficiency.efficiency import efficiency_of
from profiling.log_option import read_with_progress
from profiling.onednn_log.log import OneDnnLog
from profiling.peaks.option import peaks_as_asked
from profiling.replay.replay_file import load_replay
from profiling.report.counters import load_counters
from profiling.report.inputs import find_inputs, logs_of, rank_of
from profiling.report.material import Material, Traced
from profiling.report.measured import measured_of
from profiling.trace.analyze import analyze
from profiling.trace.beside_log import BesideLog, lay_beside
from profiling.trace.trace import read_trace
from retinanet.errors import InputError
from retinanet.json_objects import read_json_object
from retinanet.progress import progress_in_bytes


def gather(
    logs: list[Path],
    *,
    peaks: str,
    replay: Path | None,
    reference: Path | None,
    trace: Path | None,
    environment: Path | None,
    console: Console,
) -> Material:
    """Read everything; what is small or may be wrong first.

    Raises:
        InputError: A file is missing, damaged, or something else.
    """
    found = find_inputs(logs, trace=trace, environment=environment)
    loaded = load_replay(replay) if replay else None
    facts = load_environment(found.environment) if found.environment else None
    counters = tuple(map(load_counters, found.counters))
    log = read_with_progress(list(found.logs), console)
    comparison = compare_with(reference, log, logs[0], console) if reference else None
    traced = read_traced(found.trace, log, console) if found.trace else None
    measured_peaks = peaks_as_asked(peaks, log, console=console, folder=None)
    return Material(
        log=log,
        measured=measured_of(log, measured_peaks),
        peaks=measured_peaks,
        environment=facts,
        counters=counters,
        efficiency=efficiency_of(log, loaded, peaks=measured_peaks) if loaded else None,
        comparison=comparison,
        traced=traced,
    )


def load_environment(file: Path) -> Mapping[str, Any]:
    """Read a run's environment.json.

    Raises:
        InputError: It cannot be read, or is no object of JSON.
    """
    return read_json_object(file, advice="expected a run's environment.json")


def compare_with(reference: Path, log: OneDnnLog, first: Path, console: Console) -> Comparison:
    """The log against another: a step against a step where both have them.

    Raises:
        InputError: The reference cannot be read.
    """
    other = read_with_progress(logs_of(reference), console)
    by_step = bool(marked_steps(log) and marked_steps(other))
    names = names_of(None, first, reference)
    sides = [
        side_of(name, one, by_step=by_step) for name, one in zip(names, (log, other), strict=True)
    ]
    return compare(*sides, with_types=True, is_by_step=by_step)


def read_traced(file: Path, log: OneDnnLog, console: Console) -> Traced:
    """A trace, with the log's part of the same steps and rank where they fit.

    Raises:
        InputError: It is no trace.
    """
    size = file.stat().st_size if file.is_file() else 0
    with progress_in_bytes(console, f"reading {file.name}", total=size) as advance:
        trace = read_trace(file, advance)
    analysis = analyze(trace)
    rank = rank_of(file)
    of_rank = {where: one for where, one in log.executions.items() if where.rank in (rank, None)}
    beside: BesideLog | None
    try:
        beside = lay_beside(analysis, replace(log, executions=of_rank))
    except InputError:
        beside = None  # other steps, or another rank: each stands for itself then
    return Traced(trace, analysis, beside)
