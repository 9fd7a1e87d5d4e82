"""Evaluate a model on a split while a person watches."""

import time
from dataclasses import dataclass

from rich.console import Console

from data.classes import ClassMap
from data.loader import DetectionLoader
from retinanet.engine.engines import Forward
from retinanet.model import RetinaNet
from retinanet.progress import progress
from retinanet.training.coco_metric import Evaluation, coco_metric
from retinanet.training.evaluate import ImageDetections, detect
from retinanet.training.signals import StopRequest


@dataclass(frozen=True)
class SplitResult:
    """The metric, and the detections that it was computed from."""

    evaluation: Evaluation
    detections: list[ImageDetections]
    seconds: float
    """Detecting and computing the metric."""


def evaluate_split(
    model: RetinaNet,
    loader: DetectionLoader,
    *,
    classes: ClassMap,
    forward: Forward,
    console: Console,
    stop: StopRequest | None = None,
) -> SplitResult | None:
    """Detect in every image of a split and compute COCO's metric.

    Returns:
        None if `stop` came true before the end.
    """
    found: list[ImageDetections] = []
    start = time.perf_counter()
    with progress(console, "evaluation, images", total=len(loader.dataset)) as advance:
        for detections in detect(model, loader, classes=classes, forward=forward):
            if stop:
                return None
            found.append(detections)
            advance(len(found), "")
    evaluation = coco_metric(loader.dataset.annotations, found)
    return SplitResult(evaluation, found, seconds=time.perf_counter() - start)
