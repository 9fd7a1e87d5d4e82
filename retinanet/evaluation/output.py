"""What an evaluation leaves on the disk.

TODO-DOC What evaluating a split came to.
"""

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from common.errors import printable
from common.files import as_csv, write_parts, write_whole
from retinanet.evaluation.detections import SplitDetections, found_boxes
from retinanet.evaluation.metric import Evaluation

BOXES_AT_ONCE = 100_000
RESULT_FIELDS = ("image_id", "category_id", "bbox", "score")
"""Of COCO's result format."""
CURVE_COLOURS = {"0.50": "#f08c00", "0.75": "#9c36b5", "0.50:0.95": "#2f9e44"}
LONGEST_NAME = 32
"""Characters of a class's name."""
CLASSES_IN_CHART = 40
"""More bars than this cannot be read: the best and the worst half are shown."""


@dataclass(frozen=True)
class SplitResult:
    """The metric, and the detections that it was computed from."""

    evaluation: Evaluation
    detections: SplitDetections
    seconds: float
    """Detecting and computing the metric."""


def write_evaluation(result: SplitResult, folder: Path, *, name: str) -> None:
    """Write boxes (JSON), classes (CSV) and a chart (PNG) into a folder.

    Raises:
        InputError: One of them cannot be written.
    """
    boxes, classes, chart = evaluation_files(folder, name=name)
    write_parts(boxes, detections_as_json(result.detections))
    write_whole(classes, classes_as_csv(result.evaluation))
    write_whole(chart, evaluation_chart(result.evaluation, title=name))


def evaluation_files(folder: Path, *, name: str) -> list[Path]:
    """Where they go."""
    return [folder / f"{name}{ending}" for ending in (".json", ".classes.csv", ".png")]


def detections_as_json(detections: SplitDetections) -> Iterator[bytes]:
    """COCO's result format, with the data set's own ids; a piece at a time."""
    yield b"["
    for first in range(0, len(detections), BOXES_AT_ONCE):
        boxes = found_boxes(detections, slice(first, first + BOXES_AT_ONCE))
        text = json.dumps([{field: box[field] for field in RESULT_FIELDS} for box in boxes])
        yield (", " if first else "").encode() + text[1:-1].encode()
    yield b"]"


def classes_as_csv(evaluation: Evaluation) -> str:
    """A line a class; what could not be measured is empty."""
    numbers = ("map", "map_50", "map_75", "mar_100")
    counts = ("true_boxes", "found_boxes")
    rows = (
        (
            one.category_id,
            one.name,
            *(rounded(getattr(one, name)) for name in numbers),
            *(getattr(one, name) for name in counts),
        )
        for one in evaluation.classes
    )
    return as_csv(("category_id", "name", *numbers, *counts), rows)


def rounded(value: float) -> float | None:
    """Six digits; None for nan."""
    return None if math.isnan(value) else round(value, 6)


def evaluation_chart(evaluation: Evaluation, *, title: str) -> bytes:
    """A PNG: precision against recall at three IoUs, and the classes' mAP, the best first."""
    ranked = sorted(evaluation.per_class.items(), key=lambda item: -item[1])
    bars = min(len(ranked), CLASSES_IN_CHART)
    figure = Figure(figsize=(12, max(4.5, 1.2 + 0.18 * bars)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(f"{printable(title)}: mAP {evaluation.map:.3f}", parse_math=False)
    draw_curves(left, evaluation)
    draw_classes(right, ranked)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def draw_curves(axes: Axes, evaluation: Evaluation) -> None:
    """Precision against recall, the mean over classes."""
    recalls = np.linspace(0, 1, 101)
    for name, precision in evaluation.curves.items():
        area = 0.0 if np.isnan(precision).all() else float(precision.mean())
        colour = CURVE_COLOURS[name]
        axes.plot(recalls, precision, color=colour, label=f"IoU {name}: area {area:.3f}")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.set_title("precision and recall, mean over classes", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def draw_classes(axes: Axes, ranked: Sequence[tuple[str, float]]) -> None:
    """A bar a class; of many classes the best and the worst."""
    shown = list(ranked)
    title = f"mAP of {len(ranked)} classes"
    if len(ranked) > CLASSES_IN_CHART:
        half = CLASSES_IN_CHART // 2
        shown = [*ranked[:half], *ranked[-half:]]
        title = f"mAP of the {half} best and the {half} worst of {len(ranked)} classes"
        axes.axhline(half - 0.5, color="#333333", linewidth=0.8)
    places = range(len(shown))
    axes.barh(places, [value for _, value in shown], color="#3c8ddc")
    names = [printable(name)[:LONGEST_NAME] for name, _ in shown]
    axes.set_yticks(places, names, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set(xlabel="mAP, IoU 0.50:0.95", xlim=(0, 1), ylim=(max(len(shown), 1) - 0.5, -0.5))
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3, axis="x")


def evaluation_name(step: int) -> str:
    """Of the files of the evaluation after so many steps."""
    return f"step-{step:06d}"
