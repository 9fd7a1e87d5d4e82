"""A checkpoint's model as it is used on pictures of any size."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from data.classes import ClassMap
from data.transforms import resize_image
from retinanet.engine.engines import torch_forward
from retinanet.errors import InputError
from retinanet.evaluation.detect import SCORE_THRESHOLD, detect_batch, on_original
from retinanet.evaluation.detections import ImageDetections
from retinanet.evaluation.pictures import LONGEST_NAME
from retinanet.training.checkpoint import Checkpoint


class PictureDetector:
    """Finds a checkpoint's classes in pictures."""

    def __init__(
        self, checkpoint: Checkpoint, *, least_score: float, only: Sequence[str] = ()
    ) -> None:
        """Load the checkpoint's weights.

        Args:
            checkpoint: Whose model it is; it runs in the precision in which it was trained.
            least_score: Boxes below it are left out.
            only: Names of the classes that are wanted; none given: all.

        Raises:
            InputError: A class is not known, or the weights cannot be read.
        """
        self._classes = ClassMap.from_json(checkpoint.model.classes)
        self._wanted = np.array(wanted_ids(self._classes, only), dtype=np.int64)
        self._size = checkpoint.model.image_size
        self._least_score = least_score
        self._model = checkpoint.build_model().eval()
        self._forward = torch_forward(self._model, precision=checkpoint.model.precision)
        self.names = {
            category_id: name[:LONGEST_NAME]
            for category_id, name in zip(
                self._classes.category_ids, self._classes.names, strict=True
            )
        }
        """Category ids to names."""

    def find(self, pictures: Sequence[NDArray[np.uint8]]) -> list[ImageDetections]:
        """Detections in pixels of the pictures, best first.

        Args:
            pictures: RGB uint8 [H, W, 3] each, of any sizes.
        """
        shape = (len(pictures), 3, self._size, self._size)
        images = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        for image, pixels in zip(images, pictures, strict=True):
            image.copy_(resize_image(pixels, self._size))
        found = detect_batch(
            self._model,
            images,
            forward=self._forward,
            score_threshold=min(SCORE_THRESHOLD, self._least_score),
        )
        return [
            self._chosen(
                on_original(
                    detections,
                    self._classes,
                    image_id=place,
                    input_size=(self._size, self._size),
                    original_size=(pixels.shape[0], pixels.shape[1]),
                )
            )
            for place, (pixels, detections) in enumerate(zip(pictures, found, strict=True))
        ]

    def _chosen(self, found: ImageDetections) -> ImageDetections:
        rows = found.scores >= self._least_score
        rows &= np.isin(found.category_ids, self._wanted)
        return ImageDetections(
            image_id=found.image_id,
            boxes=found.boxes[rows],
            scores=found.scores[rows],
            category_ids=found.category_ids[rows],
        )


def wanted_ids(classes: ClassMap, only: Collection[str]) -> list[int]:
    """The category ids of the classes with these names; of all, if there are none.

    Raises:
        InputError: A name is not known.
    """
    for name in only:
        if name not in classes.names:
            known = ", ".join(sorted(set(classes.names)))
            raise InputError(f"--class: {name!r} is none of the checkpoint's classes: {known}")
    pairs = zip(classes.category_ids, classes.names, strict=True)
    return [category_id for category_id, name in pairs if not only or name in only]
