"""Numbers of a run: a JSON object a line in `metrics.jsonl`, and the same in TensorBoard."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retinanet.evaluation.metric import Evaluation
from retinanet.line_file import LineFile
from retinanet.training.loop import StepResult
from retinanet.training.metrics_file import drop_later_lines
from retinanet.training.tensorboard_log import TensorBoardLog


class MetricsLog:
    """Appends to both files. A resumed run's later lines are dropped, since it makes them again.

    What cannot be written raises OSError; lines then wait for the next that can.
    """

    def __init__(self, file: Path, tensorboard: Path, *, resumed_step: int = 0) -> None:
        drop_later_lines(file, step=resumed_step)
        self._lines = LineFile(file)
        self._tensorboard = TensorBoardLog(tensorboard, purge_step=resumed_step + 1)

    def step(self, result: StepResult, *, epoch: float) -> None:
        """One optimizer step."""
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
            record |= {"group": result.group, "staleness": result.staleness}
        self._write(record)
        train = ("loss", *result.losses, "gradient_norm", "learning_rate", "images_per_second")
        memory = ("page_faults", "resident_mb", "peak_resident_mb")
        shown = {f"train/{name}": record[name] for name in train}
        shown |= {f"memory/{name}": record[name] for name in memory}
        if result.group is not None:
            shown["train/staleness"] = result.staleness
        self._tensorboard.scalars(shown, step=result.step)

    def evaluation(
        self, evaluation: Evaluation, *, step: int, epoch: float, seconds: float
    ) -> None:
        """One evaluation."""
        record = {
            "kind": "evaluation",
            "step": step,
            "epoch": round(epoch, 4),
            **evaluation.summary,
            "per_class": evaluation.per_class,
            "seconds": seconds,
        }
        self._write(record)
        known = {name: one for name, one in evaluation.summary.items() if not math.isnan(one)}
        shown = {f"evaluation/{name}": one for name, one in known.items()}
        self._tensorboard.scalars(shown, step=step)

    def bad_image(self, problem: str, *, step: int) -> None:
        """An image that could not be read."""
        self._write({"kind": "bad_image", "step": step, "problem": problem})

    def nonfinite(self, report: dict[str, Any]) -> None:
        """A skipped step; see `nonfinite_report`."""
        self._write({"kind": "nonfinite", **report})

    def picture(self, name: str, pixels: NDArray[np.uint8], *, step: int) -> None:
        """A picture [H, W, 3] for TensorBoard."""
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
