"""The files of an evaluation: detections, table of classes, chart, and pictures.

A sheet of pictures shows some validation images, true boxes beside predicted boxes.
`retinanet predict` draws boxes in the same way.
"""

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import matplotlib.font_manager
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from common.charts import BLUE, as_png, new_figure
from common.errors import printable
from common.files import as_csv, write_atomically, write_parts
from data.annotations import Annotations
from data.decoding import decode_annotated
from retinanet.evaluation.matching import ImageDetections, SplitDetections, detection_dicts
from retinanet.evaluation.metric import CLASS_METRICS, COLOURS, CURVES, Evaluation

BOXES_AT_ONCE = 100_000
RESULT_FIELDS = ("image_id", "category_id", "bbox", "score")  # COCO's result format
CHART_NAME_LENGTH = 32  # Characters of a class's name in the chart
CLASSES_IN_CHART = 40  # Of more classes, the best and the worst are shown


@dataclass(frozen=True)
class SplitResult:
    """The metric, the detections it was computed from, and the time of both in seconds."""

    evaluation: Evaluation
    detections: SplitDetections
    seconds: float


def evaluation_name(step: int) -> str:
    """Return the name, without suffix, of the files of the evaluation after `step` steps."""
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
    write_atomically(classes, classes_as_csv(result.evaluation))
    write_atomically(chart, evaluation_chart(result.evaluation, title=name))


def detections_as_json(detections: SplitDetections) -> Iterator[bytes]:
    """Yield COCO's result format, with the data set's ids, in pieces."""
    yield b"["
    for first in range(0, len(detections), BOXES_AT_ONCE):
        boxes = detection_dicts(detections, slice(first, first + BOXES_AT_ONCE))
        text = json.dumps([{field: box[field] for field in RESULT_FIELDS} for box in boxes])
        # Without the brackets of each part: all parts form one list.
        yield (", " if first else "").encode() + text[1:-1].encode()
    yield b"]"


def classes_as_csv(evaluation: Evaluation) -> str:
    """Return one line per class; unmeasured values are empty, others have six digits."""
    counts = ("true_boxes", "found_boxes")
    rows = []
    for result in evaluation.classes:
        values = (getattr(result, name) for name in CLASS_METRICS)
        numbers = (None if math.isnan(value) else round(value, 6) for value in values)
        rows.append((result.category_id, result.name, *numbers, *attrgetter(*counts)(result)))
    return as_csv(("category_id", "name", *CLASS_METRICS, *counts), rows)


def evaluation_chart(evaluation: Evaluation, *, title: str) -> bytes:
    """Return a PNG: precision against recall at three IoUs, and the classes' mAP, ranked."""
    ranked = sorted(evaluation.per_class.items(), key=lambda item: -item[1])
    shown, half = ranked, CLASSES_IN_CHART // 2
    classes_title = f"mAP of {len(ranked)} classes"
    if len(ranked) > CLASSES_IN_CHART:
        shown = [*ranked[:half], *ranked[-half:]]
        classes_title = f"mAP of the {half} best and {half} worst of {len(ranked)} classes"
    figure = new_figure(width=12, height=max(4.5, 1.2 + 0.18 * len(shown)))
    left, right = figure.subplots(1, 2)
    figure.suptitle(f"{printable(title)}: mAP {evaluation.map:.3f}")

    for name, precision in evaluation.curves.items():
        area = 0.0 if np.isnan(precision).all() else float(precision.mean())
        label = f"IoU {name}: area {area:.3f}"
        left.plot(np.linspace(0, 1, 101), precision, color=COLOURS[CURVES[name]], label=label)
    left.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    left.set_title("precision and recall, mean over classes", fontsize=11)
    left.grid(alpha=0.3)
    left.legend(loc="best")

    if len(shown) < len(ranked):
        right.axhline(half - 0.5, color="#333333", linewidth=0.8)
    places = range(len(shown))
    right.barh(places, [value for _, value in shown], color=BLUE)
    right.set_yticks(places, [printable(name)[:CHART_NAME_LENGTH] for name, _ in shown], fontsize=8)
    right.invert_yaxis()
    right.set(xlabel="mAP, IoU 0.50:0.95", xlim=(0, 1), ylim=(max(len(shown), 1) - 0.5, -0.5))
    right.set_title(classes_title, fontsize=11)
    right.grid(alpha=0.3, axis="x")
    return as_png(figure)


Pixels = NDArray[np.uint8]  # [H, W, 3] RGB
LEAST_SIDE = 480  # Smaller pictures are enlarged, to keep labels readable. [pixels]
MOST_ENLARGED = 4096  # Upper limit of the longer side of an enlarged picture. [pixels]
MOST_BOXES = 40  # Limit of predicted boxes in a picture, to keep it readable
MOST_TRUE_BOXES = 1000  # Limit of true boxes in a picture
LONGEST_NAME = 60  # Characters of a class's name in a label
PALETTE = (
    "#e6194b", "#3c8ddc", "#2f9e44", "#f08c00", "#9c36b5",
    "#0b7285", "#c2255c", "#5f3dc4", "#846358", "#66801a",
)  # fmt: skip
"""Box colours; white text is readable on each."""


def draw_boxes(
    pixels: Pixels,
    boxes: NDArray[np.float64],
    *,
    labels: Sequence[str | None],
    colours: Sequence[str],
) -> Pixels:
    """Return a copy of a picture, enlarged if it is small, with labelled boxes.

    `boxes` [B, 4] are xyxy in pixels of the picture; each has a label, or None, and a colour. Later
    boxes are over earlier ones. A label is at its box's top left corner, as far as the picture and
    the labels of later boxes leave it there.
    """
    picture = Image.fromarray(pixels).copy()
    scale = max(1.0, min(LEAST_SIDE / min(picture.size), MOST_ENLARGED / max(picture.size)))
    if scale > 1:
        size = round(picture.width * scale), round(picture.height * scale)
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    draw, line = ImageDraw.Draw(picture), max(2, round(min(picture.size) / 200))
    corners = (boxes * scale).tolist()
    for corner, colour in zip(corners, colours, strict=True):
        draw.rectangle(corner, outline=colour, width=line)
    # DejaVu Sans is a part of matplotlib.
    family = matplotlib.font_manager.findfont("DejaVu Sans")
    font = ImageFont.truetype(family, max(13, round(min(picture.size) / 34)))
    height = sum(font.getmetrics())
    taken: list[tuple[int, int, int]] = []  # left, right, top of labels
    for corner, label, colour in reversed([*zip(corners, labels, colours, strict=True)]):
        if label is None:
            continue
        text = fitting_text(f" {printable(label)} ", font, picture.width)
        width = math.ceil(font.getlength(text))
        left = max(0, min(round(corner[0]), picture.width - width))
        beside = [top for start, end, top in taken if start < left + width and left < end]
        top = free_top(round(corner[1]), height, picture.height - height, beside)
        taken.append((left, left + width, top))
        draw.rectangle((left, top, left + width - 1, top + height - 1), fill=colour)
        draw.text((left, top), text, fill="white", font=font)
    return np.array(picture)


def fitting_text(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """Return a text of at most `width` pixels, cut in its middle, since its end is a score."""
    kept, short = len(text), text
    while font.getlength(short) > width and kept > 2:
        kept -= 1
        short = f"{text[: kept // 2]}…{text[-(kept - kept // 2) :]}"
    return short


def free_top(wanted: int, height: int, lowest: int, beside: Sequence[int]) -> int:
    """Return the top nearest to `wanted`, from 0 to `lowest`, for a label that hides no other.

    `beside` has the tops of labels in the same columns. Where they leave no room, labels overlap.
    """
    wanted = max(0, min(wanted, lowest))
    # The nearest free place touches another label.
    tops = [wanted, *(top + step for top in beside for step in (-height, height))]
    free = [
        top
        for top in tops
        if 0 <= top <= lowest and all(abs(top - other) >= height for other in beside)
    ]
    return min(free, key=lambda top: abs(top - wanted), default=wanted)


def draw_detections(
    pixels: Pixels,
    detections: ImageDetections,
    *,
    names: dict[int, str],
    least_score: float,
) -> Pixels:
    """Return a picture with its detections, each labelled with class and score.

    At most the `MOST_BOXES` best detections with a score of at least `least_score` are drawn.
    `names` maps category ids to names.
    """
    rows = np.flatnonzero(detections.scores >= least_score)[:MOST_BOXES]
    # The best detection is painted last, over the others.
    rows = rows[::-1]
    ids = detections.category_ids[rows].tolist()
    scores = detections.scores[rows]
    labels = [f"{names[number]} {score:.2f}" for number, score in zip(ids, scores, strict=True)]
    return draw_boxes(
        pixels, detections.boxes[rows], labels=labels, colours=[*map(class_colour, ids)]
    )


def draw_truth(pixels: Pixels, annotations: Annotations, index: int) -> Pixels:
    """Return the picture of one image with its true boxes; groups and crowds are marked."""
    image_rows = annotations.box_slice(index)
    rows = slice(image_rows.start, min(image_rows.stop, image_rows.start + MOST_TRUE_BOXES))
    names = category_names(annotations)
    ids = annotations.box_category_ids[rows].tolist()
    crowds = annotations.box_is_crowd[rows]
    labels = [f"{names[number]} (group)" if crowd else names[number]
              for number, crowd in zip(ids, crowds, strict=True)]  # fmt: skip
    boxes = annotations.boxes[rows]
    return draw_boxes(pixels, boxes, labels=labels, colours=[*map(class_colour, ids)])


def category_names(annotations: Annotations) -> dict[int, str]:
    """Return a dict of category ids to names."""
    ids = annotations.category_ids.tolist()
    names = (name[:LONGEST_NAME] for name in annotations.category_names)
    return dict(zip(ids, names, strict=True))


def class_colour(category_id: int) -> str:
    """Return the colour of a class, the same in every picture."""
    return PALETTE[category_id % len(PALETTE)]


def save_picture(pixels: Pixels, file: Path) -> None:
    """Write a PNG atomically.

    Raises:
        InputError: It cannot be written there.
    """
    content = io.BytesIO()
    # Half the time of Pillow's default level, and 5 % more bytes.
    Image.fromarray(pixels).save(content, format="PNG", compress_level=1)
    write_atomically(file, content.getvalue())


SHOWN_SCORE = 0.4  # Lowest score that is drawn, if any prediction of an image reaches it
UNSURE_BOXES = 3  # Number of predictions that are drawn if none reaches it


def spread_indices(total: int, count: int) -> list[int]:
    """Return at most `count` indices, evenly spread over `total`."""
    count = min(count, total)
    # The middles of `count` equal parts of the range.
    return [round((2 * index + 1) * total / (2 * count) - 0.5) for index in range(count)]


def evaluation_sheet(
    annotations: Annotations,
    image_folder: Path,
    detections: SplitDetections,
    *,
    count: int,
) -> Pixels | None:
    """Return one picture of up to `count` images: true boxes left, predictions right.

    Each row has two images, the same at each call. `detections` are those of the whole split. None
    if there is no image. Raises InputError if one cannot be read.
    """
    names = category_names(annotations)
    pictures = []
    for index in spread_indices(len(annotations), count):
        pixels = decode_annotated(annotations, image_folder, index)
        detected = detections.in_image(int(annotations.image_ids[index]))
        scores, least_score = detected.scores, SHOWN_SCORE
        caption = f"predicted, score ≥ {SHOWN_SCORE:g}" if len(scores) else "predicted: no boxes"
        # Early in training all scores are low: draw the best boxes, so that progress is visible.
        if len(scores) and scores[0] < SHOWN_SCORE:
            best = scores[:UNSURE_BOXES]
            least_score = float(best[-1])
            caption = f"predicted, none ≥ {SHOWN_SCORE:g}: {len(best)} best"
        prediction = draw_detections(pixels, detected, names=names, least_score=least_score)
        pictures += [(draw_truth(pixels, annotations, index), "true"), (prediction, caption)]
    if not pictures:
        return None
    return picture_grid([pictures[start : start + 4] for start in range(0, len(pictures), 4)])


def picture_grid(rows: Sequence[Sequence[tuple[Pixels, str]]], *, title: str = "") -> Pixels:
    """Return one picture of rows of pictures, each below its caption.

    No row has more pictures than the first.
    """
    columns = len(rows[0])
    lines = max(caption.count("\n") for row in rows for _, caption in row)
    height = (4.3 + 0.2 * lines) * len(rows) + (0.5 if title else 0)
    figure = new_figure(width=4 * columns, height=height)
    figure.set_dpi(100)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    if title:
        figure.suptitle(title, fontsize=13)
    for axis in axes.flat:
        axis.set_axis_off()
        axis.set_anchor("N")  # pictures of a row begin at one height
    for row, row_axes in zip(rows, axes, strict=True):
        for (picture, caption), axis in zip(row, row_axes, strict=False):
            axis.imshow(picture)
            axis.set_title(caption, fontsize=11)
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    # A copy, since the buffer belongs to the canvas.
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
