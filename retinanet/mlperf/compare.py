"""`mlperf compare`: runs of ours beside published logs, as a table, a chart and JSON.

The numbers of each log, and the notes on what it leaves out, come from `retinanet.mlperf.timeline`.
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mlperf_logging.mllog import constants

from common.charts import (
    PALETTE,
    Bar,
    Column,
    Piece,
    Table,
    horizontal_bars,
    new_figure,
    save_chart,
    shortened,
    text_column,
    write_in_place_of_chart,
)
from common.console import make_console, print_line, significant
from common.errors import FINISHED, InputError
from common.files import write_json
from common.walk import real_path
from common.wording import listed
from retinanet.mlperf.commands import CompareOptions, Machine
from retinanet.mlperf.log import NAME, read_run_logs
from retinanet.mlperf.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOGS_A_TABLE = 4  # more stand in a second table below
WIDEST = 22  # characters of a log's column
EPOCHS_SHOWN = 12
LONG_RANGE = 10.0  # times that differ more are drawn on a logarithmic axis


def compare(options: CompareOptions) -> int:
    """Print the times and results of logs beside each other; return the exit code.

    Raises:
        InputError: A log cannot be read or is of another benchmark, or --size contradicts it.
    """
    timelines = read_timelines(options.runs, dict(options.size or ()))
    names = labels(timeline.log.file for timeline in timelines)
    console = make_console()
    for begin in range(0, len(names), LOGS_A_TABLE):
        part = slice(begin, begin + LOGS_A_TABLE)
        console.print(comparison_table(names[part], timelines[part]).for_console())
    remarks = differences(names, timelines)
    lines = [f"{name}: {line}" for name, item in zip(names, timelines, strict=True)
             for line in notes_on(item)]  # fmt: skip
    for line in (*lines, *remarks):
        print_line(console, line)
    if options.chart is not None:
        save_chart(comparison_figure(names, timelines), options.chart)
        print_line(console, f"chart: {options.chart}")
    if options.json is not None:
        logs = [to_dict(name, item) for name, item in zip(names, timelines, strict=True)]
        write_json(options.json, {"logs": logs, "differences": remarks})
    return FINISHED


def read_timelines(paths: Sequence[Path], sizes: dict[str, Machine]) -> list[Timeline]:
    """Read the logs of all paths, each with the size that is given for its path.

    Raises:
        InputError: As `compare`.
    """
    unknown = [path for path in sizes if path not in map(str, paths)]
    if unknown:
        raise InputError(
            f"--size: {unknown[0]} is none of the logs given; repeat the path as it is given"
        )
    timelines: list[Timeline] = []
    for path in paths:
        for log in read_run_logs([path]):
            if real_path(log.file) in [real_path(other.log.file) for other in timelines]:
                raise InputError(f"{log.file}: given twice")
            timelines.append(Timeline(log, size=sizes.get(str(path))))
    return timelines


def labels(paths: Iterable[Path]) -> list[str]:
    """Return a short name for each log: the run's folder or the file, and parents where equal."""
    parts = [
        list(path.parts[:-1]) if path.name == NAME and len(path.parts) > 1
        else [*path.parts[:-1], path.stem]
        for path in paths
    ]  # fmt: skip
    count, longest = 1, max(map(len, parts))
    while len({tuple(part[-count:]) for part in parts}) < len(parts) and count < longest:
        count += 1
    return ["/".join(part[-count:]) for part in parts]


def notes_on(timeline: Timeline) -> list[str]:
    """Return the notes on a log, with the option that adds what it does not say."""
    machine = timeline.machine
    unknown = [name for name, number in asdict(machine).items() if number is None]
    notes = list(timeline.notes)
    if timeline.log.damaged:
        lines = listed(map(str, timeline.log.damaged), 5)
        notes.append(f"cut or damaged, ignored: line {lines}")
    if unknown:
        option = "--size LOG=HOSTSxRANKSxCORES"
        notes.append(f"{', '.join(unknown)}: not in the log; {option} adds them")
    return notes


def spread(values: Sequence[float]) -> str:
    """Return the median of times and, of several, the range."""
    if not values:
        return ""
    middle = significant(median(values))
    least, most = significant(min(values)), significant(max(values))
    return middle if least == most else f"{middle} ({least}–{most})"


def number_text(value: float | None) -> str:
    """Return a number with four significant digits, empty if it is unknown."""
    return "" if value is None else significant(value)


def count_text(value: int | None) -> str:
    """Return a whole number, empty if it is unknown."""
    return "" if value is None else f"{value:,}"


def logged_text(key: str) -> Callable[[Timeline], str]:
    """Return a function that returns what a log has under a key."""

    def text(timeline: Timeline) -> str:
        value = timeline.log.value(key)
        return "" if value is None else textwrap.fill(shortened(str(value), 60), WIDEST)

    return text


def target_text(timeline: Timeline) -> str:
    """Return the target mAP, `none`, or an empty text if the log does not say."""
    return "none" if timeline.has_no_target else number_text(timeline.target)


def time_to_target(timeline: Timeline) -> str:
    """Return the minutes to the target; `not reached` if the run ended before."""
    if timeline.log.status == constants.ABORTED and not timeline.has_no_target:
        return "not reached"
    return number_text(timeline.minutes_to_target)


def status_text(timeline: Timeline) -> str:
    """Return how the run ended, empty if the log has no end."""
    return "" if timeline.log.status == "running" else timeline.log.status


ROWS: tuple[tuple[str, Callable[[Timeline], str]], ...] = (
    ("submitter", logged_text(constants.SUBMISSION_ORG)),
    ("system", logged_text(constants.SUBMISSION_PLATFORM)),
    ("division", logged_text(constants.SUBMISSION_DIVISION)),
    ("hosts", lambda item: count_text(item.machine.hosts)),
    ("ranks", lambda item: count_text(item.machine.ranks)),
    ("cores", lambda item: count_text(item.machine.cores)),
    ("global batch size", lambda item: count_text(item.batch_size)),
    ("images an epoch", lambda item: count_text(item.epoch_images)),
    ("side of the images [pixels]", lambda item: count_text(item.image_size)),
    ("initialization [s]", lambda item: number_text(item.initialization)),
    ("time to the first step [s]", lambda item: number_text(item.to_first_step)),
    ("epoch [s]", lambda item: spread(item.epoch_seconds)),
    ("epoch to next epoch [s]", lambda item: spread(item.periods)),
    ("step [s]", lambda item: number_text(item.step_seconds)),
    ("images/s", lambda item: number_text(item.images_per_second)),
    ("images/s a host", lambda item: number_text(item.per(item.machine.hosts))),
    ("images/s a rank", lambda item: number_text(item.per(item.machine.ranks))),
    ("images/s a core", lambda item: number_text(item.per(item.machine.cores))),
    ("evaluation [s]", lambda item: spread(item.evaluation_seconds)),
)
RESULT_ROWS: tuple[tuple[str, Callable[[Timeline], str]], ...] = (
    ("target mAP", target_text),
    ("end of the run", status_text),
    ("time to the target [min]", time_to_target),
)


def comparison_table(names: Sequence[str], timelines: Sequence[Timeline]) -> Table:
    """Return the table of a few logs: a column for each."""
    headings = ["\n".join(textwrap.wrap(name, WIDEST)) or "–" for name in names]
    columns = [text_column("", no_wrap=True)]
    columns += [Column(heading, name=name) for heading, name in zip(headings, names, strict=True)]
    rows = [(label, *map(text, timelines)) for label, text in ROWS]
    for epoch in shown_epochs(timelines):
        accuracies = [
            next((e.accuracy for e in item.evaluations if e.epoch == epoch), None)
            for item in timelines
        ]
        texts = ["" if accuracy is None else f"{accuracy:.3f}" for accuracy in accuracies]
        rows.append((f"mAP after epoch {epoch:g}", *texts))
    rows += [(label, *map(text, timelines)) for label, text in RESULT_ROWS]
    return Table("", columns, rows)


def shown_epochs(timelines: Sequence[Timeline]) -> list[float]:
    """Return the evaluated epochs, at most `EPOCHS_SHOWN`, evenly spaced; JSON has all."""
    epochs = sorted({item.epoch for timeline in timelines for item in timeline.evaluations})
    last = len(epochs) - 1
    if last < EPOCHS_SHOWN:
        return epochs
    places = {round(place * last / (EPOCHS_SHOWN - 1)) for place in range(EPOCHS_SHOWN)}
    return [epochs[place] for place in sorted(places)]


def differences(names: Sequence[str], timelines: Sequence[Timeline]) -> list[str]:
    """Return a line for each known difference of target or data, which limits the comparison."""
    kinds: tuple[tuple[str, Callable[[Timeline], str], str], ...] = (
        ("target mAP", target_text, "times to the target are of different results"),
        (
            "training images",
            lambda item: count_text(item.dataset_images),
            "mAP and times of epochs are of different data sets",
        ),
        (
            "side of the images",
            lambda item: count_text(item.image_size),
            "images/s are of different work",
        ),
    )
    lines = []
    for kind, text, consequence in kinds:
        holders: dict[str, list[str]] = {}
        for name, timeline in zip(names, timelines, strict=True):
            if value := text(timeline):
                holders.setdefault(value, []).append(name)
        if len(holders) > 1:
            values = "; ".join(f"{value}: {', '.join(who)}" for value, who in holders.items())
            lines.append(f"not the same {kind} ({values}): {consequence}")
    return lines


def comparison_figure(names: Sequence[str], timelines: Sequence[Timeline]) -> "Figure":
    """Draw mAP against the time since the start, and the time of an epoch."""
    figure = new_figure(width=12, height=max(4.0, 2.2 + 0.5 * len(names)))
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    colours = [PALETTE[number % len(PALETTE)] for number in range(len(names))]
    draw_accuracies(left, names, timelines, colours=colours)
    bars = []
    for name, timeline, colour in zip(names, timelines, colours, strict=True):
        times, speed = timeline.epoch_seconds, timeline.images_per_second
        minutes = median(times) / 60 if times else 0.0
        note = f"{significant(minutes, 3)} min" if times else "no whole epoch"
        note += "" if speed is None else f", {significant(speed, 3)} images/s"
        bars.append(Bar(shortened(name, 32), [Piece(minutes, colour)], note))
    horizontal_bars(right, bars, room=1.8)
    right.set(xlabel="time of an epoch [minutes]", title="an epoch")
    return figure


def draw_accuracies(
    axes: "Axes",
    names: Sequence[str],
    timelines: Sequence[Timeline],
    *,
    colours: Sequence[str],
) -> None:
    """Draw the mAP of each evaluation against minutes on MLPerf's clock, and the targets."""
    axes.set_title("mAP on MLPerf's clock")
    all_minutes: list[float] = []
    for name, timeline, colour in zip(names, timelines, colours, strict=True):
        points = [
            (item.minutes, item.accuracy)
            for item in timeline.evaluations
            if item.minutes is not None and item.accuracy is not None
        ]
        if points:
            minutes, accuracies = zip(*points, strict=True)
            all_minutes += minutes
            axes.plot(minutes, accuracies, "o-", color=colour, label=shortened(name, 40))
    if not all_minutes:
        write_in_place_of_chart(axes, "no log has an evaluation and run_start")
        return
    for target in sorted({item.target for item in timelines if item.target is not None}):
        axes.axhline(target, color="black", linestyle="--", linewidth=1)
        axes.text(0.01, target, f"target {target:g}", transform=axes.get_yaxis_transform(),
                  va="bottom", fontsize=9)  # fmt: skip
    least = min(all_minutes)
    if least > 0 and max(all_minutes) > LONG_RANGE * least:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    axes.set(xlabel="minutes since run_start", ylabel="mAP", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)


def to_dict(name: str, timeline: Timeline) -> dict[str, Any]:
    """Return everything about a log as JSON values; null is what it does not say."""
    log, machine = timeline.log, timeline.machine

    def text(key: str) -> str | None:
        value = log.value(key)
        return None if value is None else str(value)

    return {
        "name": name,
        "log": str(log.file),
        "benchmark": text(constants.SUBMISSION_BENCHMARK),
        "submitter": text(constants.SUBMISSION_ORG),
        "system": text(constants.SUBMISSION_PLATFORM),
        "division": text(constants.SUBMISSION_DIVISION),
        "status": status_text(timeline) or None,
        **asdict(machine),
        "batch_size": timeline.batch_size,
        "training_images": timeline.dataset_images,
        "images_of_an_epoch": timeline.epoch_images,
        "image_size": timeline.image_size,
        "target_map": timeline.target,
        "initialization_seconds": timeline.initialization,
        "seconds_to_first_step": timeline.to_first_step,
        "epoch_seconds": median(timeline.epoch_seconds) if timeline.epoch_seconds else None,
        "step_seconds": timeline.step_seconds,
        "images_per_second": timeline.images_per_second,
        "images_per_second_of_host": timeline.per(machine.hosts),
        "images_per_second_of_rank": timeline.per(machine.ranks),
        "images_per_second_of_core": timeline.per(machine.cores),
        "evaluation_seconds": (
            median(timeline.evaluation_seconds) if timeline.evaluation_seconds else None
        ),
        "minutes_to_target": timeline.minutes_to_target,
        "epochs": [
            {
                "epoch": epoch.number,
                "seconds": epoch.seconds,
                "images": epoch.images,
                "is_whole": epoch.is_whole,
            }
            for epoch in timeline.epochs
        ],
        "seconds_between_epoch_starts": timeline.periods,
        "evaluations": [asdict(evaluation) for evaluation in timeline.evaluations],
        "notes": notes_on(timeline),
    }
