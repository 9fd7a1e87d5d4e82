"""Pictures of detections: what was found beside what is there."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib.font_manager
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.utils import draw_bounding_boxes

from data.annotations import Annotations
from retinanet.evaluation.detections import ImageDetections
from retinanet.output_files import write_whole
from retinanet.printable import printable

Pixels = NDArray[np.uint8]
"""[H, W, 3] RGB"""

LEAST_SIDE = 480
"""Smaller pictures are enlarged, so that labels can be read. [pixels]"""

MOST_ENLARGED = 4096
"""The longer side of a picture is enlarged to that at most. [pixels]"""

MOST_BOXES = 40
"""A picture with more boxes than this cannot be read."""

MOST_TRUE_BOXES = 1000
"""True ones are all to be seen, but for what no picture can show."""

LONGEST_NAME = 60
"""Characters of a class's name in a label."""


PALETTE = (
    "#e6194b", "#3c8ddc", "#2f9e44", "#f08c00", "#9c36b5",
    "#0b7285", "#c2255c", "#5f3dc4", "#846358", "#66801a",
)  # fmt: skip
"""Box colours; each carries white text well."""


def draw_boxes(
    pixels: Pixels,
    boxes: NDArray[np.float64],
    *,
    labels: Sequence[str],
    colours: Sequence[str],
) -> Pixels:
    """A copy of a picture, enlarged if it is small, with labelled boxes.

    Args:
        pixels: uint8 [H, W, 3].
        boxes: [B, 4] xyxy in pixels of the picture.
        labels: B texts.
        colours: B colours.
    """
    picture = Image.fromarray(pixels)
    scale = max(1.0, min(LEAST_SIDE / min(picture.size), MOST_ENLARGED / max(picture.size)))
    if scale > 1:
        size = round(picture.width * scale), round(picture.height * scale)
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    tensor = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    if len(boxes):
        line = max(2, round(min(picture.size) / 200))
        tensor = draw_bounding_boxes(
            tensor,
            torch.from_numpy(boxes * scale),
            labels=[f" {printable(label)} " for label in labels],
            colors=list(colours),
            width=line,
            font=matplotlib.font_manager.findfont("DejaVu Sans"),
            font_size=max(13, round(min(picture.size) / 34)),
            label_colors=["white"] * len(boxes),
            fill_labels=True,
        )
    return tensor.permute(1, 2, 0).contiguous().numpy()


def draw_detections(
    pixels: Pixels,
    found: ImageDetections,
    *,
    names: dict[int, str],
    least_score: float,
) -> Pixels:
    """A picture with the boxes found in it, each with its class and score.

    Args:
        pixels: uint8 [H, W, 3].
        found: Detections in pixels of the picture.
        names: Category ids to names.
        least_score: Boxes below it are not drawn; of the rest at most `MOST_BOXES`, the best.
    """
    keep = np.flatnonzero(found.scores >= least_score)[:MOST_BOXES]
    keep = keep[::-1]  # the best is painted last, over the others
    ids = [int(category_id) for category_id in found.category_ids[keep]]
    return draw_boxes(
        pixels,
        found.boxes[keep],
        labels=[
            f"{names[one]} {score:.2f}" for one, score in zip(ids, found.scores[keep], strict=True)
        ],
        colours=[colour_of(one) for one in ids],
    )


def draw_truth(pixels: Pixels, annotations: Annotations, index: int) -> Pixels:
    """The picture of one image with its true boxes; groups and crowds are marked as such."""
    every = annotations.boxes_of(index)
    rows = slice(every.start, min(every.stop, every.start + MOST_TRUE_BOXES))
    names = category_names(annotations)
    ids = [int(category_id) for category_id in annotations.box_category_ids[rows]]
    crowds = annotations.box_is_crowd[rows]
    return draw_boxes(
        pixels,
        annotations.boxes[rows],
        labels=[
            f"{names[one]} (group)" if crowd else names[one]
            for one, crowd in zip(ids, crowds, strict=True)
        ],
        colours=[colour_of(one) for one in ids],
    )


def category_names(annotations: Annotations) -> dict[int, str]:
    """Category ids to names."""
    ids = annotations.category_ids.tolist()
    names = (name[:LONGEST_NAME] for name in annotations.category_names)
    return dict(zip(ids, names, strict=True))


def colour_of(category_id: int) -> str:
    """The colour of a class, the same in every picture."""
    return PALETTE[category_id % len(PALETTE)]


def save_picture(pixels: Pixels, file: Path) -> None:
    """Write a PNG, whole or not at all.

    Raises:
        InputError: It cannot be written there.
    """
    content = io.BytesIO()
    # Half the time of Pillow's own level, and a twentieth more bytes.
    Image.fromarray(pixels).save(content, format="PNG", compress_level=1)
    write_whole(file, content.getvalue())
