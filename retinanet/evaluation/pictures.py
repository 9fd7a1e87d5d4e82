"""Pictures of detections: what was found beside what is there.

TODO-DOC One picture of some validation images: what is there beside what was found.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib.font_manager
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torchvision.utils import draw_bounding_boxes

from common.errors import printable
from common.files import write_whole
from data.annotations import Annotations
from data.decoding import decode_image
from data.sources import image_path
from retinanet.evaluation.detections import ImageDetections, SplitDetections

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


SHOWN_SCORE = 0.4
"""Predictions below this are not drawn in a run's pictures, where any reaches it."""

UNSURE_BOXES = 3
"""So many are drawn where none does."""


def spread_indices(total: int, count: int) -> list[int]:
    """At most `count` places, evenly spread over `total`: the same images at each evaluation."""
    count = min(count, total)
    return [round((2 * place + 1) * total / (2 * count) - 0.5) for place in range(count)]


def evaluation_sheet(
    annotations: Annotations,
    image_folder: Path,
    detections: SplitDetections,
    *,
    count: int,
) -> Pixels | None:
    """One picture of some validation images: true boxes left, predictions right, two pairs a row.

    Args:
        annotations: The split.
        image_folder: Its images.
        detections: Of all images of the split.
        count: Images to show; 0 gives no picture.

    Returns:
        uint8 [H, W, 3], or None where there is nothing to show.
    """
    names = category_names(annotations)
    pairs = []
    for index in spread_indices(len(annotations), count):
        pixels = decode_image(
            image_path(image_folder, annotations.file_names[index]),
            annotated_size=annotations.size_of(index),
        )
        truth = draw_truth(pixels, annotations, index)
        found = detections.of_image(int(annotations.image_ids[index]))
        least_score, caption = shown_scores(found)
        prediction = draw_detections(pixels, found, names=names, least_score=least_score)
        pairs.append((truth, prediction, caption))
    return compose_sheet(pairs) if pairs else None


def shown_scores(found: ImageDetections) -> tuple[float, str]:
    """The score from which an image's boxes are drawn, and the caption that says so.

    A detector that has seen little is sure of nothing: then its best boxes say what it has learnt.
    """
    if not len(found.scores):
        return SHOWN_SCORE, "predicted: nothing"
    if found.scores[0] >= SHOWN_SCORE:
        return SHOWN_SCORE, f"predicted, score ≥ {SHOWN_SCORE:g}"
    best = found.scores[:UNSURE_BOXES]
    return float(best[-1]), f"predicted, none ≥ {SHOWN_SCORE:g}: the best {len(best)}"


def compose_sheet(pairs: Sequence[tuple[Pixels, Pixels, str]]) -> Pixels:
    """Pairs of pictures with the second's caption, two pairs a row, as one picture."""
    # matplotlib by its objects: pyplot would keep figures and choose a window system.
    rows = -(-len(pairs) // 2)
    figure = Figure(figsize=(16, 4.3 * rows), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 4, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for place, (truth, prediction, predicted) in enumerate(pairs):
        row, column = divmod(place, 2)
        for offset, picture, caption in ((0, truth, "true"), (1, prediction, predicted)):
            axis = axes[row, 2 * column + offset]
            axis.imshow(picture)
            axis.set_title(caption, fontsize=11)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
