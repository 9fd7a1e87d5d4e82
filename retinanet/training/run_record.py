"""What a run leaves behind as it goes: metrics, pictures, detections, console lines."""

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from data.dataset import DetectionDataset
from launch.resources import peak_resident_mb
from retinanet.command_line import installed
from retinanet.errors import InputError
from retinanet.evaluation.beside import EvaluationBeside
from retinanet.evaluation.files import write_evaluation
from retinanet.evaluation.pictures import save_picture
from retinanet.evaluation.result import SplitResult
from retinanet.evaluation.sheet import evaluation_sheet
from retinanet.training.curves import draw_curves
from retinanet.training.loop import StepResult
from retinanet.training.metrics import MetricsLog
from retinanet.training.metrics_file import read_metrics
from retinanet.training.report import print_evaluation, print_summary
from retinanet.training.run_folder import RunFolder

SECONDS_BETWEEN_WARNINGS = 600.0
"""That a disk is full is said by checkpoints too, each time."""
STEPS_AVERAGED = 20
"""Speed and loss on the console are means over so many steps."""


class RunRecord:
    """Writes below the run's folder and on the console; decides nothing about the training."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        console: Console,
        first_step: int,
        target_map: float | None,
    ) -> None:
        self._folder = folder
        self._console = console
        self._target_map = target_map
        self._metrics = MetricsLog(folder.metrics, folder.tensorboard, resumed_step=first_step)
        self._recent: deque[StepResult] = deque(maxlen=STEPS_AVERAGED)
        self._page_faults: list[int] = []
        self._next_warning = 0.0
        self._files: Callable[[], None] | None = None
        """Waits for those that a process writes beside the training."""

    def step(self, result: StepResult, *, epoch: float) -> str:
        """Note a step; returns what to say of it: speed and loss over the last steps."""
        with self._going_on():
            self._metrics.step(result, epoch=epoch)
        self._recent.append(result)
        self._page_faults.append(result.page_faults)
        images = sum(recent.images * recent.groups_at_work for recent in self._recent)
        seconds = sum(recent.seconds for recent in self._recent)
        losses = [recent.loss for recent in self._recent if not recent.nonfinite]
        loss = sum(losses) / len(losses) if losses else math.nan
        return f"{images / seconds:.2f} images/s  loss {loss:.4f}"

    def bad_image(self, problem: str, *, step: int) -> None:
        """Note an image that could not be read."""
        with self._going_on():
            self._metrics.bad_image(problem, step=step)

    def nonfinite(self, report: dict[str, Any]) -> None:
        """Note a step that was skipped."""
        with self._going_on():
            self._metrics.nonfinite(report)

    def evaluation(
        self,
        result: SplitResult,
        *,
        step: int,
        epoch: float,
        beside: EvaluationBeside | None = None,
    ) -> None:
        """Note an evaluation: table, metrics, detections, classes and their chart.

        `beside`: the process that writes the last three, if there is one.
        """
        print_evaluation(
            self._console, result.evaluation, title=f"after step {step}, epoch {epoch:.4g}"
        )
        seconds = result.seconds
        with self._going_on():
            self._metrics.evaluation(result.evaluation, step=step, epoch=epoch, seconds=seconds)
        self.wait_for_files()
        if beside is not None:
            self._files = partial(beside.require_files, result)
            return
        with self._going_on():
            write_evaluation(result, self._folder.evaluations, name=evaluation_name(step))

    def wait_for_files(self) -> None:
        """Until the last evaluation's are there."""
        files, self._files = self._files, None
        with self._going_on():
            if files is not None:
                files()

    def pictures(
        self, result: SplitResult, dataset: DetectionDataset, *, step: int, count: int
    ) -> None:
        """Draw some of an evaluation's images, and the curves as far as the run has come."""
        with self._going_on():
            sheet = evaluation_sheet(
                dataset.annotations, dataset.image_folder, result.detections, count=count
            )
            if sheet is not None:
                save_picture(sheet, self._folder.pictures / f"{evaluation_name(step)}.png")
                self._metrics.picture("validation", sheet, step=step)
            draw_curves(
                read_metrics(self._folder.metrics),
                self._folder.pictures / "curves.png",
                title=self._folder.path.name,
                target_map=self._target_map,
            )

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """A disk that is full, or has gone, must not end a training: it is told of, now and then.

        `metrics.jsonl` gets its lines once there is room; detections and pictures are left out.
        """
        try:
            yield
        except (OSError, InputError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            if time.monotonic() >= self._next_warning:
                self._next_warning = time.monotonic() + SECONDS_BETWEEN_WARNINGS
                text = f"warning: {self._folder.path}: cannot be written: {reason or error}"
                self._console.print(f"{text}; training goes on", soft_wrap=True, markup=False)

    def closing(
        self,
        *,
        is_reached: bool,
        step: int,
        best_map: float | None,
        bad_images: int,
        example: Path,
    ) -> None:
        """The last words: how the run ended, where its work lies, what to try next."""
        self._metrics.close()
        folder = self._folder
        headline = f"finished after {step} steps"
        if self._target_map is not None:
            outcome = "reached" if is_reached else "not reached"
            headline += f", target mAP {self._target_map:g} {outcome}"
        if best_map is not None:
            headline += f", best mAP {best_map:.3f}"
        facts = {"memory": memory_used(self._page_faults)}
        if bad_images:
            facts["bad images"] = f"{bad_images} could not be read, see metrics"
        print_summary(
            self._console,
            headline=headline,
            facts=facts,
            paths={
                "pictures": folder.pictures,
                "curves": folder.pictures / "curves.png",
                "best checkpoint": folder.checkpoints / "best",
                "metrics": folder.metrics,
                "tensorboard": folder.tensorboard,
            },
            next_commands=[
                shlex.join(
                    [
                        installed("python"),
                        "-m",
                        "retinanet",
                        "predict",
                        "--checkpoint",
                        str(folder.checkpoints / "best"),
                        str(example),
                    ]
                ),
                shlex.join([installed("tensorboard"), "--logdir", str(folder.tensorboard)]),
            ],
        )


def evaluation_name(step: int) -> str:
    """Of the files of the evaluation after so many steps."""
    return f"step-{step:06d}"


def memory_used(page_faults: list[int]) -> str:
    """What to say of memory at the end of a run that had so many page faults in each step."""
    text = f"{peak_resident_mb() / 1000:.1f} GB at the most"
    if page_faults:
        text += f", {median(page_faults):.0f} page faults in the median step"
    return text
