"""The images on which an exported program is held against its checkpoint."""

from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from data.decoding import decode_image
from data.image_paths import image_path
from data.scenes.drawing import draw_scene
from data.transforms import resize_image
from retinanet.errors import InputError
from retinanet.evaluation.command import validation_split
from retinanet.evaluation.sheet import spread_indices
from retinanet.training.checkpoint import Checkpoint

COUNT = 4


def check_images(checkpoint: Checkpoint, image: Path | None) -> tuple[Tensor, str]:
    """Images uint8 [N, 3, S, S], and what to call them.

    Those of the run's validation split, or drawn scenes where that is not here.

    Args:
        checkpoint: Whose network's input they fit.
        image: A picture of the user's to take instead.

    Raises:
        InputError: The user's picture cannot be read.
    """
    size = checkpoint.model.image_size
    if image is not None:
        pixels = decode_image(image, apply_exif_orientation=True)
        return resize_image(pixels, size)[None], str(image)
    try:
        split = validation_split(checkpoint, annotations=None, images=None)
        annotations = split.annotations
        found = [
            decode_image(
                image_path(split.image_folder, annotations.file_names[row]),
                annotated_size=annotations.size_of(row),
            )
            for row in spread_indices(len(split), COUNT)
        ]
        what = f"{len(found)} validation images"
    except InputError:
        random = Random(0)
        found = [np.asarray(draw_scene(random)[0]) for _ in range(COUNT)]
        what = f"{COUNT} drawn scenes, as the run's validation images are not here"
    return torch.stack([resize_image(pixels.copy(), size) for pixels in found]), what
