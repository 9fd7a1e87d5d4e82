"""What an evaluation leaves on the disk: boxes, the classes' numbers, a chart, and pictures.

A sheet of pictures shows some validation images, the true boxes of each beside the found ones. How
boxes are drawn here is how `python -m retinanet predict` draws them.
"""

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.font_manager
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray
from PIL import Image
from torchvision.utils import draw_bounding_boxes

from common.charts import BLUE, as_png, new_figure
from common.errors import printable
from common.files import as_csv, write_parts, write_whole
from data.annotations import Annotations, image_path
from data.decoding import decode_image
from retinanet.evaluation.matching import ImageDetections, SplitDetections, found_boxes
from retinanet.evaluation.metric import CLASS_METRICS, COLOURS, CURVES, Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOXES_AT_ONCE = 100_000
RESULT_FIELDS = ("image_id", "category_id", "bbox", "score")
"""Of COCO's result format."""
CHART_NAME_LENGTH = 32
"""Characters of a class's name in the chart."""
CLASSES_IN_CHART = 40
"""More bars than this cannot be read: the best and the worst half are shown."""


@dataclass(frozen=True)
class SplitResult:
    """The metric, and the detections that it was computed from."""

    evaluation: Evaluation
    detections: SplitDetections
    seconds: float
    """Detecting and computing the metric."""


def evaluation_name(step: int) -> str:
    """Return the name, without suffix, of the files of the evaluation after so many steps."""
    return f"step-{step:06d}"


def evaluation_files(folder: Path, *, name: str) -> list[Path]:
    """Return the files that `write_evaluation` writes."""
    return [folder / f"{name}{ending}" for ending in (".json", ".classes.csv", ".png")]


def write_evaluation(result: SplitResult, folder: Path, *, name: str) -> None:
    """Write boxes (JSON), classes (CSV) and a chart (PNG) into a folder.

    Raises:
        InputError: One of them cannot be written.
    """
    boxes, classes, chart = evaluation_files(folder, name=name)
    write_parts(boxes, detections_as_json(result.detections))
    write_whole(classes, classes_as_csv(result.evaluation))
    write_whole(chart, evaluation_chart(result.evaluation, title=name))


def detections_as_json(detections: SplitDetections) -> Iterator[bytes]:
    """Yield COCO's result format, with the data set's own ids, a piece at a time."""
    yield b"["
    for first in range(0, len(detections), BOXES_AT_ONCE):
        boxes = found_boxes(detections, slice(first, first + BOXES_AT_ONCE))
        text = json.dumps([{field: box[field] for field in RESULT_FIELDS} for box in boxes])
        yield (", " if first else "").encode() + text[1:-1].encode()
    yield b"]"


def classes_as_csv(evaluation: Evaluation) -> str:
    """Return a line a class; what could not be measured is empty, the rest has six digits."""
    counts = ("true_boxes", "found_boxes")
    rows = []
    for result in evaluation.classes:
        values = (getattr(result, name) for name in CLASS_METRICS)
        numbers = (None if math.isnan(value) else round(value, 6) for value in values)
        counted = (getattr(result, name) for name in counts)
        rows.append((result.category_id, result.name, *numbers, *counted))
    return as_csv(("category_id", "name", *CLASS_METRICS, *counts), rows)


def evaluation_chart(evaluation: Evaluation, *, title: str) -> bytes:
    """Return a PNG: precision against recall at three IoUs, and the classes' mAP, ranked."""
    ranked = sorted(evaluation.per_class.items(), key=lambda item: -item[1])
    bars = min(len(ranked), CLASSES_IN_CHART)
    figure = new_figure(width=12, height=max(4.5, 1.2 + 0.18 * bars))
    left, right = figure.subplots(1, 2)
    figure.suptitle(f"{printable(title)}: mAP {evaluation.map:.3f}")
    draw_curves(left, evaluation)
    draw_classes(right, ranked)
    return as_png(figure)


def draw_curves(axes: "Axes", evaluation: Evaluation) -> None:
    """Draw precision against recall, the mean over classes."""
    recalls = np.linspace(0, 1, 101)
    for name, precision in evaluation.curves.items():
        area = 0.0 if np.isnan(precision).all() else float(precision.mean())
        label = f"IoU {name}: area {area:.3f}"
        axes.plot(recalls, precision, color=COLOURS[CURVES[name]], label=label)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title("precision and recall, mean over classes", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def draw_classes(axes: "Axes", ranked: Sequence[tuple[str, float]]) -> None:
    """Draw a bar for each class; of many classes for the best and the worst."""
    shown = list(ranked)
    title = f"mAP of {len(ranked)} classes"
    if len(ranked) > CLASSES_IN_CHART:
        half = CLASSES_IN_CHART // 2
        shown = [*ranked[:half], *ranked[-half:]]
        title = f"mAP of the {half} best and the {half} worst of {len(ranked)} classes"
        axes.axhline(half - 0.5, color="#333333", linewidth=0.8)
    places = range(len(shown))
    axes.barh(places, [value for _, value in shown], color=BLUE)
    axes.set_yticks(places, [printable(name)[:CHART_NAME_LENGTH] for name, _ in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="mAP, IoU 0.50:0.95", xlim=(0, 1), ylim=(max(len(shown), 1) - 0.5, -0.5))
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3, axis="x")


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
    """Return a copy of a picture, enlarged if it is small, with labelled boxes.

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
    """Return a picture with the boxes found in it, each with its class and score.

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
            f"{names[category_id]} {score:.2f}"
            for category_id, score in zip(ids, found.scores[keep], strict=True)
        ],
        colours=[colour_of(category_id) for category_id in ids],
    )


def draw_truth(pixels: Pixels, annotations: Annotations, index: int) -> Pixels:
    """Return the picture of one image with its true boxes; groups and crowds are marked as such."""
    every = annotations.boxes_of(index)
    rows = slice(every.start, min(every.stop, every.start + MOST_TRUE_BOXES))
    names = category_names(annotations)
    ids = [int(category_id) for category_id in annotations.box_category_ids[rows]]
    crowds = annotations.box_is_crowd[rows]
    return draw_boxes(
        pixels,
        annotations.boxes[rows],
        labels=[
            f"{names[category_id]} (group)" if crowd else names[category_id]
            for category_id, crowd in zip(ids, crowds, strict=True)
        ],
        colours=[colour_of(category_id) for category_id in ids],
    )


def category_names(annotations: Annotations) -> dict[int, str]:
    """Return category ids to names."""
    ids = annotations.category_ids.tolist()
    names = (name[:LONGEST_NAME] for name in annotations.category_names)
    return dict(zip(ids, names, strict=True))


def colour_of(category_id: int) -> str:
    """Return the colour of a class, the same in every picture."""
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
    """Return at most `count` places, evenly spread over `total`."""
    count = min(count, total)
    return [round((2 * place + 1) * total / (2 * count) - 0.5) for place in range(count)]


def spread_images(
    annotations: Annotations, image_folder: Path, *, count: int
) -> Iterator[tuple[int, Pixels]]:
    """Yield index and pixels of up to `count` images, evenly spread: the same at each call.

    Raises:
        InputError: An image cannot be read.
    """
    for index in spread_indices(len(annotations), count):
        file = image_path(image_folder, annotations.file_names[index])
        yield index, decode_image(file, annotated_size=annotations.size_of(index))


def evaluation_sheet(
    annotations: Annotations,
    image_folder: Path,
    detections: SplitDetections,
    *,
    count: int,
) -> Pixels | None:
    """Return one picture of some images: true boxes left, predictions right, two pairs a row.

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
    for index, pixels in spread_images(annotations, image_folder, count=count):
        truth = draw_truth(pixels, annotations, index)
        found = detections.of_image(int(annotations.image_ids[index]))
        least_score, caption = shown_scores(found)
        prediction = draw_detections(pixels, found, names=names, least_score=least_score)
        pairs.append((truth, prediction, caption))
    return compose_sheet(pairs) if pairs else None


def shown_scores(found: ImageDetections) -> tuple[float, str]:
    """Return the score from which an image's boxes are drawn, and the caption with it.

    A detector that has seen little is sure of nothing: then its best boxes are drawn.
    """
    if not len(found.scores):
        return SHOWN_SCORE, "predicted: nothing"
    if found.scores[0] >= SHOWN_SCORE:
        return SHOWN_SCORE, f"predicted, score ≥ {SHOWN_SCORE:g}"
    best = found.scores[:UNSURE_BOXES]
    return float(best[-1]), f"predicted, none ≥ {SHOWN_SCORE:g}: the best {len(best)}"


def compose_sheet(pairs: Sequence[tuple[Pixels, Pixels, str]]) -> Pixels:
    """Return pairs of pictures with the second's caption, two pairs a row, as one picture."""
    rows = -(-len(pairs) // 2)
    figure = new_figure(width=16, height=4.3 * rows)
    figure.set_dpi(100)
    axes = figure.subplots(rows, 4, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for place, (truth, prediction, predicted) in enumerate(pairs):
        row, column = divmod(place, 2)
        for offset, picture, caption in ((0, truth, "true"), (1, prediction, predicted)):
            axis = axes[row, 2 * column + offset]
            axis.imshow(picture)
            axis.set_title(caption, fontsize=11)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
