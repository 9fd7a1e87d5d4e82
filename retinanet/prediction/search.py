"""What looking at pictures and at videos share: what finds boxes, and where these go."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from retinanet.evaluation.detections import ImageDetections
from retinanet.prediction.box_file import BoxFile, box_records
from retinanet.prediction.detector import PictureDetector
from retinanet.prediction.tally import Tally
from retinanet.training.signals import StopRequest


@dataclass(frozen=True, kw_only=True)
class Search:
    """One `predict` at work."""

    detector: PictureDetector
    batch_size: int
    """Pictures or frames at once."""
    draws: bool
    """Whether drawn copies are written."""
    box_file: BoxFile
    tally: Tally
    console: Console
    """Shows a line each, or the progress."""
    stop: StopRequest
    """Looked at between two batches."""

    def note(self, file: Path, found: ImageDetections, **more: float) -> list[dict[str, Any]]:
        """Write and count the boxes of a picture or frame; returns them as `box_records`.

        Raises:
            InputError: They cannot be written.
        """
        records = box_records(file, found, names=self.detector.names, **more)
        self.box_file.add(records)
        self.tally.found(record["category"] for record in records)
        return records
