"""From a model and images to detections on the original images, with the data set's own ids.

`detect_split` shares a split among ranks; `evaluate_split` is one process with the metric behind.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from rich.console import Console

from common.console import progress
from common.errors import InputError
from data.annotations import ClassMap
from data.dataset import Batch
from data.loader import DetectionLoader
from data.transforms import normalize
from launch.compute_threads import calling_thread_on
from launch.process_group import ProcessGroup
from retinanet.config_types import DEFAULT_LIBRARY, MetricLibrary
from retinanet.engine.engines import Forward
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import coco_metric
from retinanet.evaluation.output import SplitResult
from retinanet.model.anchors import resize_boxes
from retinanet.model.postprocess import Detections, postprocess
from retinanet.model.retinanet import RetinaNet
from retinanet.training.signals import StopRequest

SCORE_THRESHOLD = 0.05
"""Of evaluations, as in torchvision and MLPerf's reference."""


def detect_batch(
    model: RetinaNet,
    images: torch.Tensor,
    *,
    forward: Forward,
    score_threshold: float = SCORE_THRESHOLD,
) -> list[Detections]:
    """Return the detections in uint8 images [N, 3, S, S], in pixels of the network's input.

    `forward` is the model, which is in evaluation mode, as an engine runs it.
    """
    with torch.inference_mode():
        normalized = normalize(images)
        outputs = forward(normalized)
        height, width = normalized.shape[-2:]
        anchors = model.anchors((height, width), outputs.feature_sizes)
        return postprocess(outputs, anchors, (height, width), score_threshold=score_threshold)


def detect(
    model: RetinaNet,
    batches: Iterable[Batch],
    *,
    classes: ClassMap,
    forward: Forward,
    main_cpus: tuple[int, ...] = (),
) -> Iterator[ImageDetections]:
    """Yield the detections of every image, scaled to the images' original sizes.

    `main_cpus`: where the calling thread computes, see `launch.shares.Share.main_cpus`.
    """
    model.eval()
    for batch in batches:
        height, width = batch.images.shape[-2:]
        with calling_thread_on(main_cpus):
            found = detect_batch(model, batch.images, forward=forward)
        for image_id, original_size, detections in zip(
            batch.image_ids, batch.original_sizes, found, strict=True
        ):
            yield on_original(
                detections,
                classes,
                image_id=image_id,
                input_size=(height, width),
                original_size=original_size,
            )


def on_original(
    detections: Detections,
    classes: ClassMap,
    *,
    image_id: int,
    input_size: tuple[int, int],
    original_size: tuple[int, int],
) -> ImageDetections:
    """Return detections in pixels of the original image; sizes are (height, width)."""
    boxes = resize_boxes(detections.boxes, input_size, original_size)
    return ImageDetections(
        image_id=image_id,
        boxes=boxes.double().numpy(),
        scores=detections.scores.double().numpy(),
        category_ids=classes.category_ids_of(detections.labels.numpy()),
    )


def evaluate_split(
    model: RetinaNet,
    loader: DetectionLoader,
    *,
    classes: ClassMap,
    forward: Forward,
    console: Console,
    library: MetricLibrary = DEFAULT_LIBRARY,
) -> SplitResult:
    """Detect in every image of a split and compute COCO's metric, in one process.

    Raises:
        InputError: An image cannot be read.
    """
    start = time.perf_counter()
    detections = detect_split(model, loader, classes=classes, forward=forward, console=console)
    assert detections is not None, "there is nothing that stops it"
    evaluation = coco_metric(loader.dataset.annotations, detections, library=library)
    return SplitResult(evaluation, detections, seconds=time.perf_counter() - start)


def detect_split(
    model: RetinaNet,
    loader: DetectionLoader,
    *,
    classes: ClassMap,
    forward: Forward,
    console: Console,
    group: ProcessGroup | None = None,
    stop: StopRequest | None = None,
    note_bad_images: Callable[[tuple[str, ...]], None] = lambda problems: None,
    main_cpus: tuple[int, ...] = (),
) -> SplitDetections | None:
    """Detect in every image of a split, each on one rank.

    Return all ranks' detections on rank 0, none on the others; None if a rank was asked to stop
    before the end.

    Args:
        model: Its weights are equal on all ranks.
        loader: This rank's part of the split.
        classes: Of the model's class indices.
        forward: The model as an engine runs it.
        console: Shows the progress.
        group: The ranks that share the work.
        stop: Ends it early.
        note_bad_images: Gets those that could not be read, in which nothing is found.
        main_cpus: See `detect`.

    Raises:
        InputError: A rank cannot read an image; raised on all of them.
    """
    group = group or ProcessGroup()
    stop = StopRequest() if stop is None else stop
    part = detect_part(
        model,
        loader,
        classes=classes,
        forward=forward,
        console=console,
        ranks=group.size,
        stop=stop,
        main_cpus=main_cpus,
    )
    parts = group.all_gather(replace(part, detections=[]))
    stop.agree([other.received for other in parts])
    if error := next((other.error for other in parts if other.error), ""):
        raise InputError(error)
    if stop:
        return None
    note_bad_images(tuple(problem for other in parts for problem in other.bad_images))
    columns = SplitDetections.of(part.detections).columns()
    gathered = group.gather_rows([torch.from_numpy(column) for column in columns])
    return SplitDetections(*(column.numpy() for column in gathered))


@dataclass(frozen=True)
class Part:
    """The result of one rank's images of the split."""

    detections: list[ImageDetections]
    bad_images: list[str]
    error: str = ""
    received: str = ""
    """The signal that asked it to stop."""


def detect_part(
    model: RetinaNet,
    loader: DetectionLoader,
    *,
    classes: ClassMap,
    forward: Forward,
    console: Console,
    ranks: int,
    stop: StopRequest,
    main_cpus: tuple[int, ...],
) -> Part:
    """Detect in this rank's images; the progress is that of all ranks, as if they were as far."""
    part = Part([], [])
    total = len(loader.dataset)
    with progress(console, "evaluation, images", total=total) as advance:
        batches = noted(loader, part.bad_images)
        try:
            for detections in detect(
                model, batches, classes=classes, forward=forward, main_cpus=main_cpus
            ):
                if stop.received:
                    break
                part.detections.append(detections)
                advance(min(total - 1, len(part.detections) * ranks), "")
            else:
                advance(total, "")
        except InputError as error:
            return replace(part, error=str(error))
    return replace(part, received=stop.received)


def noted(batches: Iterable[Batch], bad_images: list[str]) -> Iterator[Batch]:
    """Yield the batches, after noting their bad images."""
    for batch in batches:
        bad_images.extend(batch.bad_images)
        yield batch
