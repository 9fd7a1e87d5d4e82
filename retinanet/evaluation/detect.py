"""From a model and images to detections on the original images, with the data set's own ids."""

from collections.abc import Iterable, Iterator

import torch

from data.classes import ClassMap
from data.dataset import Batch
from data.transforms import normalize
from launch.pinning.compute_threads import calling_thread_on
from retinanet.engine.engines import Forward
from retinanet.evaluation.detections import ImageDetections
from retinanet.model import Detections, RetinaNet, postprocess, resize_boxes

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
    thread computes, see `launch.placement.share.Share.main_cpus`.
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
