"""Run a model on images; return detections on the original images with the data set's ids.

`detect_split` divides a split among ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from common.console import progress
from common.errors import InputError
from data.annotations import ClassMap, ImageSize, Resize, Size, input_size
from data.augmentation import whole_view
from data.dataset import Batch, stack_images
from data.loader import DetectionLoader
from data.transforms import fit_image, normalize, scale_boxes
from launch.compute_threads import calling_thread_on
from launch.process_group import ProcessGroup
from retinanet.engine.engines import Forward
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.model.anchors import clip_boxes
from retinanet.model.postprocess import Detections, postprocess
from retinanet.model.retinanet import RetinaNet
from retinanet.training.signals import StopRequest

SCORE_THRESHOLD = 0.05  # As in torchvision and MLPerf's reference


def detect_batch(
    model: RetinaNet,
    images: torch.Tensor,
    *,
    forward: Forward,
    score_threshold: float = SCORE_THRESHOLD,
) -> list[Detections]:
    """Return the detections in uint8 images [N, 3, H, W], in pixels of the network's input.

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
    resize: Resize = "square",
    main_cpus: tuple[int, ...] = (),
    bad_images: list[str] | None = None,
) -> Iterator[ImageDetections]:
    """Yield the detections of every image, scaled to the images' original sizes.

    `resize` is how the batches' images were resized. `main_cpus`: CPUs of the calling thread, see
    `launch.shares.Share.main_cpus`. Images that cannot be read are appended to `bad_images`.
    """
    model.eval()
    for batch in chain.from_iterable(batch.parts() for batch in batches):
        if bad_images is not None:
            bad_images.extend(batch.bad_images)
        # Bound only while it computes: processes that the main thread starts inherit its CPUs.
        with calling_thread_on(main_cpus):
            batch_detections = detect_batch(model, batch.images, forward=forward)
        for image_id, original_size, detections in zip(
            batch.image_ids, batch.original_sizes, batch_detections, strict=True
        ):
            yield to_original_size(
                detections,
                classes,
                image_id=image_id,
                size=(batch.images.shape[2], batch.images.shape[3]),
                resize=resize,
                original_size=original_size,
            )


def detect_pictures(
    model: RetinaNet,
    pictures: Sequence[NDArray[np.uint8]],
    *,
    classes: ClassMap,
    forward: Forward,
    image_size: ImageSize,
    resize: Resize,
    score_threshold: float = SCORE_THRESHOLD,
) -> list[ImageDetections]:
    """Return the detections in one batch of RGB pictures [H, W, 3], in their pixels, best first.

    They may differ in size, and are resized to `image_size`, those of each orientation together;
    their places in the batch are the `image_id`. `forward` is as in `detect_batch`.
    """
    shapes = [(pixels.shape[0], pixels.shape[1]) for pixels in pictures]
    sizes = [input_size(shape, image_size) for shape in shapes]
    results: dict[int, ImageDetections] = {}
    for size in dict.fromkeys(sizes):
        places = [place for place, each in enumerate(sizes) if each == size]
        fitted = [fit_image(pictures[place], size=size, resize=resize) for place in places]
        images = stack_images(fitted)
        batch = detect_batch(model, images, forward=forward, score_threshold=score_threshold)
        for place, detections in zip(places, batch, strict=True):
            results[place] = to_original_size(
                detections,
                classes,
                image_id=place,
                size=size,
                resize=resize,
                original_size=shapes[place],
            )
    return [results[place] for place in range(len(pictures))]


def to_original_size(
    detections: Detections,
    classes: ClassMap,
    *,
    image_id: int,
    size: Size,
    resize: Resize,
    original_size: Size,
) -> ImageDetections:
    """Return detections in pixels of the original image, of (height, width).

    `size` is that of the network's input. On padding, which only a letterbox has, boxes are cut
    off, and those that are outside of the image are left out.
    """
    view = whole_view(original_size, size=size, resize=resize)
    boxes = scale_boxes(detections.boxes, original_size=view.size, size=original_size)
    if view.size != size:
        boxes = clip_boxes(boxes, original_size)
        keep = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
        detections = Detections(boxes[keep], detections.scores[keep], detections.labels[keep])
        boxes = detections.boxes
    return ImageDetections(
        image_id=image_id,
        boxes=boxes.double().numpy(),
        scores=detections.scores.double().numpy(),
        category_ids=classes.to_category_ids(detections.labels.numpy()),
    )


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
    """Detect in every image of a split, each on one rank of `group`; weights are equal on all.

    Return all ranks' detections on rank 0 and no rows on other ranks; None if a rank received a
    `stop` request before the end. `loader` has this rank's part of the split. `note_bad_images`
    gets the images that cannot be read; they have no detections. `main_cpus`: see `detect`.

    Raises:
        InputError: A rank cannot read an image; raised on all of them.
    """
    group = group or ProcessGroup()
    stop = StopRequest() if stop is None else stop
    detections: list[ImageDetections] = []
    bad_images: list[str] = []
    error = ""
    total = len(loader.dataset)
    with progress(console, "evaluation, images", total=total) as advance:
        try:
            for image in detect(
                model,
                loader,
                classes=classes,
                forward=forward,
                resize=loader.dataset.rules.resize,
                main_cpus=main_cpus,
                bad_images=bad_images,
            ):
                if stop.received:
                    break
                detections.append(image)
                # Estimate the progress of all ranks from this one: no communication per image.
                advance(min(total - 1, len(detections) * group.size), "")
            else:
                advance(total, "")
        except InputError as problem:
            error = str(problem)
    # Ranks exchange errors and signals once, at the end: raising earlier on one rank would leave
    # the others waiting in a collective operation.
    received = "" if error else stop.received
    outcomes = group.all_gather((received, error, bad_images), tuple[str, str, list[str]])
    signals, errors, problems = zip(*outcomes, strict=True)
    stop.agree(signals)
    if any(errors):
        raise InputError(next(filter(None, errors)))
    if stop:
        return None
    note_bad_images(tuple(chain.from_iterable(problems)))
    columns = SplitDetections.from_images(detections).columns()
    gathered = group.gather_rows([torch.from_numpy(column) for column in columns])
    return SplitDetections(*(column.numpy() for column in gathered))
