"""Numbers of a run: a JSON object a line in `metrics.jsonl`, the same in TensorBoard, and curves.

A full disk interrupts TensorBoard's event files, but does not end them.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard.writer import SummaryWriter

from common.charts import BLUE, GREEN, RED, new_figure, save_chart
from common.files import LineFile, read_json_lines, write_whole
from retinanet.evaluation.metric import COLOURS, METRICS, Evaluation
from retinanet.training.loop import StepResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class MetricsLog:
    """Appends to both files; lines of steps that a resumed run takes again are dropped.

    What cannot be written raises OSError; lines are kept until the next that can.
    """

    def __init__(self, file: Path, tensorboard: Path, *, resumed_step: int = 0) -> None:
        drop_later_lines(file, step=resumed_step)
        self._lines = LineFile(file)
        self._tensorboard = TensorBoardLog(tensorboard, purge_step=resumed_step + 1)

    def step(self, result: StepResult, *, epoch: float) -> None:
        """Write one optimizer step."""
        record: dict[str, Any] = {
            "kind": "step",
            "step": result.step,
            "epoch": round(epoch, 4),
            "loss": result.loss,
            **result.losses,
            "gradient_norm": result.gradient_norm,
            "learning_rate": result.learning_rate,
            "images": result.images,
            "images_per_second": result.images_per_second,
            "seconds": result.seconds,
            "data_seconds": result.data_seconds,
            "exchange_seconds": result.exchange_seconds,
            "page_faults": result.page_faults,
            "resident_mb": result.resident_mb,
            "peak_resident_mb": result.peak_resident_mb,
        }
        if result.group is not None:
            record |= {"group": result.group.number, "staleness": result.group.staleness}
        self._write(record)
        train = ("loss", *result.losses, "gradient_norm", "learning_rate", "images_per_second")
        memory = ("page_faults", "resident_mb", "peak_resident_mb")
        shown = {f"train/{name}": record[name] for name in train}
        shown |= {f"memory/{name}": record[name] for name in memory}
        if result.group is not None:
            shown["train/staleness"] = result.group.staleness
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
        known = {name: value for name, value in evaluation.summary.items() if not math.isnan(value)}
        shown = {f"evaluation/{name}": value for name, value in known.items()}
        self._tensorboard.scalars(shown, step=step)

    def bad_image(self, problem: str, *, step: int) -> None:
        """Write an image that could not be read."""
        self._write({"kind": "bad_image", "step": step, "problem": problem})

    def nonfinite(self, report: dict[str, Any]) -> None:
        """Write a skipped step; see `NonFiniteReport.content`."""
        self._write({"kind": "nonfinite", **report})

    def picture(self, name: str, pixels: NDArray[np.uint8], *, step: int) -> None:
        """Write a picture [H, W, 3] to TensorBoard."""
        self._tensorboard.image(name, pixels, step=step)

    def close(self) -> None:
        """Write what is buffered."""
        self._lines.close()
        self._tensorboard.close()

    def _write(self, record: dict[str, Any]) -> None:
        # JSON has no nan: a number that does not exist is null.
        clean = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }
        self._lines.write(json.dumps(clean))


def drop_later_lines(file: Path, *, step: int) -> None:
    """Remove records of steps after `step`, in one atomic replacement."""
    if file.exists():
        kept = [record for record in read_json_lines(file) if record["step"] <= step]
        write_whole(file, "".join(json.dumps(record) + "\n" for record in kept))


SECONDS_BETWEEN_TRIES = 60.0
WRITERS_THREAD = "_AsyncWriterThread"
"""tensorboard's class of the writing thread; its errors are raised again at the next call."""


class TensorBoardLog:
    """Writes numbers and pictures by step; leaves out what cannot be written."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        """Write event files into a folder; steps from `purge_step` on in others there are void."""
        self._folder = folder
        self._purge_step: int | None = purge_step
        self._writer: SummaryWriter | None = None
        self._next_try = 0.0
        self._previous_hook = threading.excepthook
        threading.excepthook = self._hide_disk_errors

    def scalars(self, values: Mapping[str, float], *, step: int) -> None:
        """Write numbers by name.

        Raises:
            OSError: They could not be written.
        """
        self._write(lambda to: [to.add_scalar(name, one, step) for name, one in values.items()])

    def image(self, name: str, pixels: NDArray[np.uint8], *, step: int) -> None:
        """Write a picture [H, W, 3].

        Raises:
            OSError: It could not be written.
        """
        self._write(lambda to: to.add_image(name, pixels, step, dataformats="HWC"))

    def close(self) -> None:
        """Write what is buffered."""
        writer, self._writer = self._writer, None
        with suppress(OSError):
            if writer is not None:
                writer.close()
        threading.excepthook = self._previous_hook

    def _write(self, action: Callable[[SummaryWriter], object]) -> None:
        if self._writer is None:
            if time.monotonic() < self._next_try:
                return
            self._next_try = time.monotonic() + SECONDS_BETWEEN_TRIES
            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
            self._purge_step = None
        try:
            action(self._writer)
        except OSError:
            self._writer = None  # its thread has ended: the next one writes another file
            raise

    def _hide_disk_errors(self, arguments: threading.ExceptHookArgs) -> None:
        is_writer = type(arguments.thread).__name__ == WRITERS_THREAD
        if not (is_writer and isinstance(arguments.exc_value, OSError)):
            self._previous_hook(arguments)


LOSSES = (("loss", "both", "#333333"), ("classification", "classification", RED),
          ("bbox_regression", "boxes", BLUE))  # fmt: skip
PRECISIONS = [(name, METRICS[name].heading, colour) for name, colour in COLOURS.items()]


def draw_curves(
    records: Sequence[dict[str, Any]], file: Path, *, title: str, target_map: float | None
) -> None:
    """Write a PNG with the losses (left) and the precisions (right).

    Args:
        records: Of a run's `metrics.jsonl`.
        file: Where to.
        title: The run's name.
        target_map: Drawn as a line if given.
    """
    steps = [record for record in records if record["kind"] == "step"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    figure = new_figure(width=12, height=4.5)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    draw_losses(left, steps)
    draw_precisions(right, evaluations, target_map=target_map)
    for axes in (left, right):
        axes.set_xlabel("optimizer steps")
        axes.grid(alpha=0.3)
        axes.set_xlim(left=0)
    save_chart(figure, file)


def draw_losses(axes: "Axes", steps: Sequence[dict[str, Any]]) -> None:
    """Draw every step's losses, pale, and their running mean."""
    places = [record["step"] for record in steps]
    for name, label, colour in LOSSES:
        values = np.array([record[name] for record in steps], dtype=float)  # null becomes NaN
        axes.plot(places, values, color=colour, alpha=0.2, linewidth=0.7)
        axes.plot(places, running_mean(values), color=colour, label=label)
    axes.set_title("training loss (mean of 20 steps)")
    axes.set_ylim(bottom=0)
    axes.legend()


def draw_precisions(
    axes: "Axes", evaluations: Sequence[dict[str, Any]], *, target_map: float | None
) -> None:
    """Draw the evaluations' precisions."""
    places = [record["step"] for record in evaluations]
    for name, label, colour in PRECISIONS:
        values = [np.nan if record[name] is None else record[name] for record in evaluations]
        axes.plot(places, values, color=colour, marker="o", label=label)
    if target_map is not None:
        axes.axhline(target_map, color=GREEN, linestyle="--", label=f"target {target_map:g}")
    axes.set_title("validation")
    axes.set_ylim(0, 1)
    axes.legend(loc="upper left")


def running_mean(values: NDArray[np.float64], *, window: int = 20) -> NDArray[np.float64]:
    """Return means of up to `window` values until each place, without NaN of skipped steps."""
    counted = np.isfinite(values)
    sums = np.cumsum(np.insert(np.where(counted, values, 0.0), 0, 0.0))
    counts = np.cumsum(np.insert(counted, 0, 0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    with np.errstate(invalid="ignore"):  # no value at all has no mean
        means: NDArray[np.float64] = (sums[ends] - sums[starts]) / (counts[ends] - counts[starts])
    return means
