"""Evaluate a model on a split while a person watches."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console

from data.classes import ClassMap
from data.dataset import Batch
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
    note_bad_images: Callable[[tuple[str, ...]], None] = lambda problems: None,
) -> SplitResult | None:
    """Detect in every image of a split and compute COCO's metric.

    `note_bad_images` is told of those that could not be read and in which nothing is found.

    Returns:
        None if `stop` came true before the end.
    """
    found: list[ImageDetections] = []
    start = time.perf_counter()
    with progress(console, "evaluation, images", total=len(loader.dataset)) as advance:
        batches = noted(loader, note_bad_images)
        for detections in detect(model, batches, classes=classes, forward=forward):
            if stop:
                return None
            found.append(detections)
            advance(len(found), "")
    evaluation = coco_metric(loader.dataset.annotations, found)
    return SplitResult(evaluation, found, seconds=time.perf_counter() - start)


def noted(
    batches: Iterable[Batch], note_bad_images: Callable[[tuple[str, ...]], None]
) -> Iterator[Batch]:
    """The batches, after telling of their bad images."""
    for batch in batches:
        if batch.bad_images:
            note_bad_images(batch.bad_images)
        yield batch
