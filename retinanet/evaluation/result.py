"""What evaluating a split came to."""

from dataclasses import dataclass

from retinanet.evaluation.detections import SplitDetections
from retinanet.evaluation.metric import Evaluation


@dataclass(frozen=True)
class SplitResult:
    """The metric, and the detections that it was computed from."""

    evaluation: Evaluation
    detections: SplitDetections
    seconds: float
    """Detecting and computing the metric."""
