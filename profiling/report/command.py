"""`retinanet profile report`: from logs, and the files beside them, to a page and its summary."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from common.cli import add_command
from common.console import make_console, print_line, three_digits
from common.errors import FINISHED, InputError, printable
from common.files import read_json_object, require_free_outputs, write_atomically
from common.options import argument, option, overwrite_option
from common.page import render_page
from profiling.compare import Side, choose_names, compare
from profiling.efficiency import analyze_efficiency
from profiling.onednn_log.log import OneDnnLog, log_files, read_with_progress
from profiling.peaks import choose_peaks, peaks_option
from profiling.replay.replay import load_replay
from profiling.report.advice import Advice, all_advice, saving
from profiling.report.material import Material, Traced, load_counters, summarize_log
from profiling.report.sections import all_sections
from profiling.sums import sum_by_kind
from profiling.trace import trace as traces
from profiling.trace.analysis import MatchedLog, analyze, match_log

ABOUT = """\
Write one HTML page about a run: what ran on which machine, where a step spends its time, how fast
it could be, and what to look at next. The page is one file and loads no other; its tables can be
sorted and filtered. LOG is a log of oneDNN, a folder of logs, or the folder of a run, from which
logs, trace, counters and environment.json are read."""

EXAMPLES = """\
A section whose input is missing shows the command that creates it.

examples:
  retinanet train profile.onednn.steps=20-22 profile.trace.steps=20-22 profile.perf=true
  retinanet profile report runs/demo
  retinanet profile report runs/demo --peaks peaks.json --replay replay/replay.json --overwrite
  retinanet profile report runs/coco --reference runs/baseline --out coco.html
  retinanet profile report onednn.log --peaks none --title 'ResNet-50, batch size 32'"""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The options of `retinanet profile report`."""

    logs: list[Path] = argument(
        "a log, a folder of logs, or runs/NAME",
        metavar="LOG",
        nargs="+",
        reads=lambda path: find_inputs([path], trace=None, environment=None).files,
    )
    out: Path = option("the page", default=Path("report.html"), metavar="FILE")
    peaks: str = peaks_option()
    replay: Path | None = option(
        "replay.json of `retinanet profile benchdnn` or `efficiency`",
        default=None,
        metavar="FILE",
    )
    reference: Path | None = option(
        "compare with this log, folder of logs, or runs/NAME",
        default=None,
        metavar="LOG",
        reads=lambda path: find_logs(path),  # noqa: PLW0108 - it is defined below
    )
    trace: Path | None = option(
        "trace of torch.profiler (default: that of the run's first rank)",
        default=None,
        metavar="FILE",
    )
    environment: Path | None = option(
        "environment.json of the run (default: beside the log)", default=None, metavar="FILE"
    )
    title: str | None = option("heading of the page", default=None, metavar="TEXT")
    overwrite: bool = overwrite_option("replace an existing page")


def add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `report` to the commands of a command line."""
    add_command(
        commands,
        "report",
        about=ABOUT,
        examples=EXAMPLES,
        options=ReportOptions,
        run=report_command,
    )


def report_command(options: ReportOptions) -> int:
    """Read, compute, draw and write; return the exit code.

    Raises:
        InputError: A file cannot be read or written, or is invalid.
    """
    out, title = options.out, options.title
    # Before a log is read, which may take minutes.
    require_free_outputs([out], overwrite=options.overwrite)
    console = make_console()
    material = gather(options, console=console)
    advice = all_advice(material)
    summary = [f"Caution: {caution}." for caution in material.cautions]
    summary.append(summarize(material, advice))
    if not title:
        runs = dict.fromkeys(str(facts["run"]) for facts in material.log.facts if facts.get("run"))
        name = ", ".join(runs) or Path(material.log.files[0]).name
        subject = "a training step" if material.measured.steps.count else "oneDNN"
        title = f"{name}: where {subject} spends its time"
    page = render_page(all_sections(material, advice), title=title, summary=summary)
    write_atomically(out, page)
    for sentence in summary:
        print_line(console, printable(sentence))
    print_line(console, f"page: {out}, {len(page.encode()) / 1e6:.1f} MB; open it in a browser")
    return FINISHED


def gather(options: ReportOptions, *, console: Console) -> Material:
    """Read all inputs; the small ones first, so that an invalid file is reported soon.

    Raises:
        InputError: A file is missing or invalid.
    """
    inputs = find_inputs(options.logs, trace=options.trace, environment=options.environment)
    # Large files come last: an invalid small one must not waste minutes.
    loaded = load_replay(options.replay) if options.replay else None
    facts = None
    if inputs.environment:
        facts = read_json_object(inputs.environment, advice="expected a run's environment.json")
    counters = tuple(map(load_counters, inputs.counters))
    log = read_with_progress(list(inputs.logs), console)
    comparison = None
    if options.reference:
        other = read_with_progress(find_logs(options.reference), console)
        # The first of several logs names this side.
        names = choose_names(None, options.logs[0], options.reference)
        comparison = compare(Side(names[0], log), Side(names[1], other))
    traced = read_traced(inputs.trace, log, console) if inputs.trace else None
    # Last, as peaks may be measured here, for as many threads as the log has.
    machine = choose_peaks(options.peaks, log, console=console, folder=None)
    return Material(
        log=log,
        measured=summarize_log(log, machine),
        peaks=machine,
        environment=facts,
        counters=counters,
        efficiency=analyze_efficiency(log, loaded, peaks=machine) if loaded else None,
        comparison=comparison,
        traced=traced,
    )


KINDS = 3


def summarize(material: Material, advice: Sequence[Advice]) -> str:
    """Return a few sentences: time of a step, its largest parts, the bound, the first finding."""
    measured = material.measured
    if not measured.problems:
        return "This log has no oneDNN primitives within a complete step."
    if measured.wall_ms:
        steps = measured.steps.count or 1
        mean = f" on average over {steps} steps" if steps > 1 else ""
        text = (
            f"A step takes {three_digits(measured.wall_ms)} ms{mean}; oneDNN's primitives take "
            f"{three_digits(measured.ms)} ms of it ({measured.ms / measured.wall_ms:.0%})."
        )
    else:
        calls = sum(problem.calls for problem in measured.problems)
        text = (
            f"oneDNN's primitives take {three_digits(measured.ms)} ms in this log: {calls:,.0f} "
            f"calls of {len(measured.problems):,} different problems."
        )
    largest = [f"{part.name} {part.share:.0%}" for part in sum_by_kind(measured.problems)[:KINDS]]
    text += f" The largest parts are {', '.join(largest)}."
    ideal = measured.roofline_ms
    if ideal is not None and measured.ms:
        text += f" At the measured peaks of this machine they would take {three_digits(ideal)} ms"
        if measured.wall_ms:
            step = measured.wall_ms - measured.ms + ideal
            text += f", and a step would be {measured.wall_ms / step:.2f} times as fast"
        text += "."
    first = next((item for item in advice if item.saves_ms), None)
    if first:
        text += f" Start with: {first.title}. {saving(first, measured)}"
    if material.log.not_understood_count:
        text += f" {material.log.not_understood_count:,} lines of the log cannot be parsed."
    return text


def read_traced(file: Path, log: OneDnnLog, console: Console) -> Traced:
    """Return a trace, with the log's part of the same steps and rank where they fit."""
    analysis = analyze(traces.read_with_progress(file, console))
    rank = parse_rank(file)
    # A log without facts has no rank.
    executions = {where: calls for where, calls in log.executions.items()
               if where.rank in (rank, None)}  # fmt: skip
    beside: MatchedLog | None
    try:
        beside = match_log(analysis, replace(log, executions=executions))
    except InputError:
        beside = None  # Other steps, or another rank: the page shows them separately
    return Traced(analysis, beside)


LOGS, TRACES, COUNTERS, ENVIRONMENT = "onednn", "trace", "perf", "environment.json"
RUN_ENTRIES = ("config.yaml", "metrics.jsonl", LOGS)  # A folder with any of these is a run
RANK = re.compile(r"rank(\d+)\.")


class Inputs(NamedTuple):
    """The paths of all inputs; None or empty if an input is missing."""

    logs: tuple[Path, ...]
    trace: Path | None
    environment: Path | None
    counters: tuple[Path, ...]

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [*self.logs, *self.counters, *filter(None, (self.trace, self.environment))]


def find_inputs(paths: Sequence[Path], *, trace: Path | None, environment: Path | None) -> Inputs:
    """Return the files that a report is made from, found beside logs, folders of logs, and runs.

    `trace` and `environment` take precedence over files that are found.

    Raises:
        InputError: A folder has no log.
    """
    environments, traces, counters = [], [], []
    for path in paths:
        if run := find_run(path):
            environments.append(run / ENVIRONMENT)
            traces += files_by_rank(run / TRACES, (".json", ".json.gz"), beside=path)
            counters += files_by_rank(run / COUNTERS, (".json",), beside=path)
        elif not path.is_dir():
            environments.append(path.parent / ENVIRONMENT)
    return Inputs(
        logs=tuple(log for path in paths for log in find_logs(path)),
        trace=trace or next(iter(traces), None),
        environment=environment or next(filter(Path.is_file, environments), None),
        counters=tuple(dict.fromkeys(counters)),
    )


def find_run(path: Path) -> Path | None:
    """Return the folder of the run that a path belongs to: a run, its logs, or their folder."""
    folder = path if path.is_dir() else path.parent
    folders = [folder] * path.is_dir() + [folder.parent] * (folder.name == LOGS)
    is_run = (any((place / name).exists() for name in RUN_ENTRIES) for place in folders)
    return next((place for place, is_one in zip(folders, is_run, strict=True) if is_one), None)


def find_logs(path: Path) -> list[Path]:
    """Return a log, or the logs of a folder. Raises InputError."""
    if find_run(path) != path:
        return log_files(path)
    logs = files_by_rank(path / LOGS, (".log", ".log.gz"), beside=path)
    if not logs:
        raise InputError(
            f"{path}: this run has no oneDNN log; train with profile.onednn.steps=20-22"
        )
    return logs


def files_by_rank(folder: Path, endings: tuple[str, ...], *, beside: Path) -> list[Path]:
    """Return `rank<N>` files of a folder in order of N, others last; beside a log of its rank."""
    if not folder.is_dir():
        return []
    # Names with a leading dot are of files that a killed run was writing.
    files = [
        file
        for file in folder.iterdir()
        if file.name.endswith(endings)
        and not file.name.startswith(".")
        and (beside.is_dir() or parse_rank(file) == parse_rank(beside))
    ]
    # By number, since rank10 precedes rank2 in the order of texts.
    return sorted(
        files, key=lambda file: (parse_rank(file) is None, parse_rank(file) or 0, file.name)
    )


def parse_rank(file: Path) -> int | None:
    """Return the rank in a file's name."""
    match = RANK.match(file.name)
    return int(match[1]) if match else None
