"""From a model and images to detections on the original images, with the data set's own ids.

TODO-DOC Evaluate a model on a split while a person watches.
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
from retinanet.evaluation.detections import ImageDetections, SplitDetections
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
    """Detections in pixels of the network's input.

    Args:
        model: In evaluation mode.
        images: uint8 [N, 3, S, S].
        forward: The model as an engine runs it.
        score_threshold: Detections are surer than this.
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
    """Detections of every image, one at a time, scaled to the images' original sizes.

    A generator, so that whoever drives it may show progress or stop. `main_cpus`: where the calling
    thread computes, see `launch.shares.Share.main_cpus`.
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
    """Detections in pixels of the original image, with category ids; sizes are (height, width)."""
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

    Args:
        model: A trained one.
        loader: Of the split.
        classes: Of the model's class indices.
        forward: The model as an engine runs it.
        console: Shows the progress.
        library: What computes the metric, see `coco_metric`.

    Raises:
        InputError: An image cannot be read.
    """
    start = time.perf_counter()
    detections = detect_split(model, loader, classes=classes, forward=forward, console=console)
    assert detections is not None, "nobody can stop it"
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

    Args:
        model: Its weights are equal on all ranks.
        loader: This rank's part of the split.
        classes: Of the model's class indices.
        forward: The model as an engine runs it.
        console: Shows the progress.
        group: The ranks that share the work.
        stop: Ends it early.
        note_bad_images: Told of those that could not be read and in which nothing is found.
        main_cpus: See `detect`.

    Returns:
        All ranks' detections on rank 0, none on the others; None if a rank was asked to stop
        before the end.

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
    parts = group.all_gather(part.without_detections())
    stop.agree([one.received for one in parts])
    require_readable(parts)
    if stop:
        return None
    note_bad_images(tuple(problem for one in parts for problem in one.bad_images))
    return gathered(group, SplitDetections.of(part.detections))


def gathered(group: ProcessGroup, own: SplitDetections) -> SplitDetections:
    """All ranks' detections on rank 0, as they are in memory, in order of rank; others keep none.

    All ranks call it.
    """
    columns = group.gather_rows([torch.from_numpy(column) for column in own.columns()])
    return SplitDetections(*(column.numpy() for column in columns))


@dataclass(frozen=True)
class Part:
    """What one rank's part of the split came to."""

    detections: list[ImageDetections]
    bad_images: list[str]
    error: str = ""
    """Why it could not go on."""
    received: str = ""
    """The signal that asked it to stop."""

    def without_detections(self) -> "Part":
        """What all ranks need to know of it."""
        return replace(self, detections=[])


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


def require_readable(parts: list[Part]) -> None:
    """Raise the first rank's error on all ranks."""
    for part in parts:
        if part.error:
            raise InputError(part.error)


def noted(batches: Iterable[Batch], bad_images: list[str]) -> Iterator[Batch]:
    """The batches, after noting their bad images."""
    for batch in batches:
        bad_images.extend(batch.bad_images)
        yield batch
