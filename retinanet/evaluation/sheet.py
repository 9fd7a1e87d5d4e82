"""One picture of some validation images: what is there beside what was found."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from data.annotations import Annotations
from data.decoding import decode_image
from data.image_paths import image_path
from retinanet.evaluation.detections import ImageDetections, SplitDetections
from retinanet.evaluation.pictures import Pixels, category_names, draw_detections, draw_truth

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
