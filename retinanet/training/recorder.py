"""Records of a run in progress: metrics, TensorBoard, pictures, detections, and the console.

Rank 0 writes for all; the others have a `NullRecorder`. Numbers go to `metrics.jsonl`, a JSON
object per line, and to TensorBoard. A full disk interrupts both, but does not end the run.
"""

import json
import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from torch.utils.tensorboard.writer import SummaryWriter

from common.charts import BLUE, GREEN, RED, Column, Table, new_figure, save_chart
from common.cli import installed, installed_command
from common.console import print_summary
from common.errors import InputError, printable
from common.files import LineFile, read_json_lines, write_atomically
from common.machine import peak_resident_mb
from common.wording import counted
from data.dataset import DetectionDataset
from retinanet.evaluation.metric import COLOURS, METRICS, Evaluation
from retinanet.evaluation.output import (
    SplitResult,
    evaluation_name,
    evaluation_sheet,
    save_picture,
    write_evaluation,
)
from retinanet.metrics_reader import start_id
from retinanet.training.loop import StepResult
from retinanet.training.run_folder import RunFolder
from retinanet.training.schedule import Ending

SECONDS_BETWEEN_WARNINGS = 600.0  # Failed checkpoints warn of a full disk as well, each time
STEPS_AVERAGED = 20  # Window of the means of speed and loss on the console


class Recorder:
    """Writes to the run's folder and the console, without influence on the training."""

    def __init__(
        self, folder: RunFolder, *, console: Console, first_step: int, target_map: float | None
    ) -> None:
        self._folder = folder
        self._console = console
        self._target_map = target_map
        self._metrics = MetricsLog(folder.metrics, folder.tensorboard, resumed_step=first_step)
        self._recent: deque[StepResult] = deque(maxlen=STEPS_AVERAGED)
        self._page_faults: list[int] = []
        self._next_warning = 0.0
        self._write_files: Callable[[], None] | None = None
        """Waits for files that a process writes while training continues."""

    def step(self, result: StepResult, *, epoch: float) -> str:
        """Write a step; return speed and loss over the last steps, for the progress bar."""
        with self._tolerating_full_disk():
            self._metrics.step(result, epoch=epoch)
        self._recent.append(result)
        self._page_faults.append(result.page_faults)
        images = sum(recent.images for recent in self._recent)
        seconds = sum(recent.run_seconds for recent in self._recent)
        losses = [recent.loss for recent in self._recent if not recent.nonfinite]
        loss = sum(losses) / len(losses) if losses else math.nan
        return f"{images / seconds:.2f} images/s  loss {loss:.4f}"

    def record(self, kind: str, content: dict[str, Any]) -> None:
        """Write a record of an unreadable image or a skipped step."""
        with self._tolerating_full_disk():
            self._metrics.record(kind, content)

    def evaluation(
        self,
        result: SplitResult,
        *,
        step: int,
        epoch: float,
        write_files: Callable[[], None] | None = None,
    ) -> None:
        """Write an evaluation after `step` steps: table, metrics, detections, classes, chart.

        `write_files` waits for the last three, which another process writes; None: write them here.
        """
        print_evaluation(
            self._console, result.evaluation, title=f"after step {step}, epoch {epoch:.4g}"
        )
        seconds = result.seconds
        with self._tolerating_full_disk():
            self._metrics.evaluation(result.evaluation, step=step, epoch=epoch, seconds=seconds)
        # The files of the previous evaluation are waited for first: only one process works at a
        # time.
        self.wait_for_files()
        self._write_files = write_files
        if write_files is None:
            with self._tolerating_full_disk():
                write_evaluation(result, self._folder.evaluations, name=evaluation_name(step))

    def wait_for_files(self) -> None:
        """Wait until the files of the last evaluation are written."""
        write_files, self._write_files = self._write_files, None
        with self._tolerating_full_disk():
            if write_files is not None:
                write_files()

    def pictures(
        self, result: SplitResult, dataset: DetectionDataset, *, step: int, count: int
    ) -> None:
        """Draw some images of an evaluation, and the curves of the run so far."""
        pictures = self._folder.pictures
        with self._tolerating_full_disk():
            sheet = evaluation_sheet(
                dataset.annotations, dataset.image_folder, result.detections, count=count
            )
            if sheet is not None:
                save_picture(sheet, pictures / f"{evaluation_name(step)}.png")
                self._metrics.picture("validation", sheet, step=step)
            # The file also has the steps before a resume, which this process has not seen.
            records, title = read_json_lines(self._folder.metrics), self._folder.path.name
            draw_curves(records, pictures / "curves.png", title=title, target_map=self._target_map)

    @contextmanager
    def _tolerating_full_disk(self) -> Iterator[None]:
        """Turn disk errors into occasional warnings, so that they do not end a training.

        `metrics.jsonl` gets its lines once there is space; detections and pictures are omitted.
        """
        try:
            yield
        except (OSError, InputError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            if time.monotonic() >= self._next_warning:
                self._next_warning = time.monotonic() + SECONDS_BETWEEN_WARNINGS
                text = f"warning: {self._folder.path}: cannot be written: {reason or error}"
                self._console.print(f"{text}; training continues", soft_wrap=True, markup=False)

    def closing(
        self,
        *,
        ending: Ending | None,
        patience: int | None,
        step: int,
        best_map: float | None,
        bad_images: int,
        example: Path,
    ) -> None:
        """Print how the run ended, where its files are, and what to try next."""
        self._metrics.close()
        folder = self._folder
        headline = f"finished after {step} steps"
        if self._target_map is not None:
            outcome = "reached" if ending == "target" else "not reached"
            headline += f", target mAP {self._target_map:g} {outcome}"
        if ending == "patience" and patience is not None:
            count = counted(patience, "evaluation")
            headline += f", no better mAP in {count} (training.patience)"
        if best_map is not None:
            headline += f", best mAP {best_map:.3f}"
        memory = f"{peak_resident_mb() / 1000:.1f} GB at the peak"
        if self._page_faults:
            memory += f", {median(self._page_faults):.0f} page faults in the median step"
        best = folder.checkpoints / "best"
        # A link; it is missing if no checkpoint could be written.
        is_of = f" ({best.readlink()})" if best.is_symlink() else ""
        rows: dict[str, object] = {
            "pictures": folder.pictures,
            "curves": folder.pictures / "curves.png",
            "best checkpoint": f"{best}{is_of}",
            "metrics": folder.metrics,
            "tensorboard": folder.tensorboard,
            "memory": memory,
        }
        if bad_images:
            rows["bad images"] = f"{bad_images} could not be read, see metrics"
        program = installed_command("retinanet")
        report = (*program, "report", folder.path)
        predict = (*program, "predict", "--checkpoint", best, example)
        tensorboard = (installed("tensorboard"), "--logdir", folder.tensorboard)
        print_summary(
            self._console,
            headline=headline,
            rows=rows,
            next_commands=[
                shlex.join(map(str, command)) for command in (report, predict, tensorboard)
            ],
        )


class NullRecorder:
    """The recorder of ranks other than 0, which write nothing."""

    def step(self, *arguments: Any, **named: Any) -> str:
        """Return an empty text."""
        return ""

    def ignore(self, *arguments: Any, **named: Any) -> None:
        """Do nothing."""

    record = evaluation = wait_for_files = pictures = closing = ignore


SUMMARY_COLUMNS = ("map", "map_50", "map_75", "map_small", "map_medium", "map_large")

CLASSES_SHOWN = 5


def print_evaluation(console: Console, evaluation: Evaluation, *, title: str) -> None:
    """Print the metric by size of object, then the best and the worst classes."""
    # Not as the title of the table: rich wraps it at the width of the table.
    console.print(title, style="italic", highlight=False, soft_wrap=True)
    columns = [Column(METRICS[name].heading, format_metric) for name in SUMMARY_COLUMNS]
    values = [evaluation.summary[name] for name in SUMMARY_COLUMNS]
    console.print(Table("", columns, [values]).for_console())
    ranked = sorted(evaluation.per_class.items(), key=lambda item: -item[1])
    if not ranked:
        console.print("no true boxes in this split: no class can be measured")
    elif len(ranked) <= 2 * CLASSES_SHOWN:
        console.print(f"mAP by class: {class_list(ranked)}")
    else:
        console.print(f"best classes:  {class_list(ranked[:CLASSES_SHOWN])}")
        console.print(f"worst classes: {class_list(ranked[-CLASSES_SHOWN:])}")


def class_list(ranked: Sequence[tuple[str, float]]) -> str:
    """Format classes with their mAP, on one line."""
    return ", ".join(f"{printable(name)} {value:.3f}" for name, value in ranked)


def format_metric(value: float) -> str:
    """Format a metric with three digits, or as a dash if there was nothing to measure."""
    return "–" if math.isnan(value) else f"{value:.3f}"


RATES = ("gradient_norm", "learning_rate", "images", "images_per_second")
TIMES = ("seconds", "data_seconds", "exchange_seconds")
MEMORY = ("page_faults", "resident_mb", "peak_resident_mb")
"""Fields of `StepResult` that `metrics.jsonl` has under the same names."""
CHARTED = {"staleness"}  # Of `StepResult.facts`, in TensorBoard too


class MetricsLog:
    """Appends to both files; lines of steps that a resumed run repeats are dropped.

    A failed write raises OSError; its lines are kept and written with the next ones.
    """

    def __init__(self, file: Path, tensorboard: Path, *, resumed_step: int = 0) -> None:
        drop_later_lines(file, step=resumed_step)
        self._lines = LineFile(file)
        if id_field := start_id():
            with suppress(OSError):  # the line comes with the next one
                self.record("start", {"step": resumed_step, **id_field})
        self._tensorboard = TensorBoardLog(tensorboard, purge_step=resumed_step + 1)

    def step(self, result: StepResult, *, epoch: float) -> None:
        """Write one optimizer step."""
        record: dict[str, Any] = {
            "kind": "step",
            "step": result.step,
            "epoch": round(epoch, 4),
            "loss": result.loss,
            **result.losses,
            **{name: getattr(result, name) for name in (*RATES, *TIMES, *MEMORY)},
        }
        if result.body_learning_rate is not None:
            record["body_learning_rate"] = result.body_learning_rate
        record |= result.facts
        self._write(record)
        train = [name for name in ("loss", *result.losses, *RATES) if name != "images"]
        shown = {f"train/{name}": record[name] for name in train}
        shown |= {f"memory/{name}": record[name] for name in MEMORY}
        if result.body_learning_rate is not None:
            shown["train/body_learning_rate"] = result.body_learning_rate
        shown |= {f"train/{name}": result.facts[name] for name in CHARTED & result.facts.keys()}
        self._tensorboard.scalars(shown, step=result.step)

    def evaluation(
        self, evaluation: Evaluation, *, step: int, epoch: float, seconds: float
    ) -> None:
        """Write one evaluation."""
        record = {
            "kind": "evaluation",
            "step": step,
            "epoch": round(epoch, 4),
            **evaluation.summary,
            "per_class": evaluation.per_class,
            "seconds": seconds,
        }
        self._write(record)
        summary = evaluation.summary.items()
        shown = {f"evaluation/{name}": value for name, value in summary if not math.isnan(value)}
        self._tensorboard.scalars(shown, step=step)

    def record(self, kind: str, content: dict[str, Any]) -> None:
        """Write a line to `metrics.jsonl` alone, such as a skipped step."""
        self._write({"kind": kind, **content})

    def picture(self, name: str, pixels: NDArray[np.uint8], *, step: int) -> None:
        """Write a picture [H, W, 3] to TensorBoard."""
        self._tensorboard.write(lambda to: to.add_image(name, pixels, step, dataformats="HWC"))

    def close(self) -> None:
        """Flush buffered records."""
        self._lines.close()
        self._tensorboard.close()

    def _write(self, record: dict[str, Any]) -> None:
        # JSON has no NaN: json.dumps would write one, which other parsers refuse.
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self._lines.write(json.dumps(clean))


def drop_later_lines(file: Path, *, step: int) -> None:
    """Remove records of steps after `step`, in one atomic replacement."""
    if file.exists():
        records = [record for record in read_json_lines(file) if record["step"] <= step]
        write_atomically(file, "".join(json.dumps(record) + "\n" for record in records))


SECONDS_BETWEEN_TRIES = 60.0


class TensorBoardLog:
    """Writes numbers and pictures by step; omits what cannot be written."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        """Write event files into a folder; they replace steps from `purge_step` in older files."""
        self._folder = folder
        self._purge_step: int | None = purge_step
        self._writer: SummaryWriter | None = None
        self._next_try = 0.0

    def scalars(self, values: Mapping[str, float], *, step: int) -> None:
        """Write numbers by name; OSError if they could not be written."""

        def add_all(writer: SummaryWriter) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        self.write(add_all)

    def close(self) -> None:
        """Flush buffered records."""
        writer, self._writer = self._writer, None
        with suppress(OSError):
            if writer is not None:
                writer.close()

    def write(self, action: Callable[[SummaryWriter], object]) -> None:
        """Write an event; raise OSError if it could not be written."""
        if self._writer is None:
            if time.monotonic() < self._next_try:
                return
            # Each writer creates a file, so a full disk must not start one at every step.
            self._next_try = time.monotonic() + SECONDS_BETWEEN_TRIES
            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
            # Only the first writer hides earlier events. A later one, after a full disk, would hide
            # the events of this process.
            self._purge_step = None
        try:
            action(self._writer)
        except OSError:
            # tensorboard's writing thread has ended. The next writer begins a new file.
            self._writer = None
            raise


LOSSES = (("loss", "both", "#333333"), ("classification", "classification", RED),
          ("bbox_regression", "boxes", BLUE))  # fmt: skip
PRECISIONS = [(name, METRICS[name].heading, colour) for name, colour in COLOURS.items()]


def draw_curves(
    records: Sequence[dict[str, Any]], file: Path, *, title: str, target_map: float | None
) -> None:
    """Write a PNG with the losses (left) and the precisions (right) of a run's `metrics.jsonl`."""
    steps = [record for record in records if record["kind"] == "step"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    figure = new_figure(width=12, height=4.5)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    places = [record["step"] for record in steps]
    for name, label, colour in LOSSES:
        values = np.array([record[name] for record in steps], dtype=float)  # null becomes NaN
        left.plot(places, values, color=colour, alpha=0.2, linewidth=0.7)
        left.plot(places, running_mean(values), color=colour, label=label)
    left.set_title("training loss (mean of 20 steps)")
    left.set_ylim(bottom=0)
    left.legend()
    places = [record["step"] for record in evaluations]
    for name, label, colour in PRECISIONS:
        values = np.array([record[name] for record in evaluations], dtype=float)
        right.plot(places, values, color=colour, marker="o", label=label)
    if target_map is not None:
        right.axhline(target_map, color=GREEN, linestyle="--", label=f"target {target_map:g}")
    right.set_title("validation")
    right.set_ylim(0, 1)
    right.legend(loc="upper left")
    for axes in (left, right):
        axes.set_xlabel("optimizer steps")
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
    save_chart(figure, file)


def running_mean(values: NDArray[np.float64], *, window: int = 20) -> NDArray[np.float64]:
    """Return the running mean over up to `window` values, without the NaN of skipped steps."""
    # A window's sum is the difference of two cumulative sums, so the cost does not depend on the
    # window.
    counted = np.isfinite(values)
    sums = np.cumsum(np.insert(np.where(counted, values, 0.0), 0, 0.0))
    counts = np.cumsum(np.insert(counted, 0, 0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    # A window without finite values has the mean 0 / 0, which is NaN.
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = (sums[ends] - sums[starts]) / (counts[ends] - counts[starts])
    return means
