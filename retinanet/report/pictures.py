"""The worst images as JPEGs: right boxes, false positives, class swaps and missed objects."""

import io

import numpy as np
from PIL import Image

from common.page import Picture, jpeg_address
from data.annotations import Annotations
from data.dataset import DetectionDataset
from data.decoding import decode_annotated
from retinanet.detector import read_picture
from retinanet.evaluation.output import LONGEST_NAME, Pixels, draw_boxes, draw_detections
from retinanet.report.material import Material
from retinanet.report.mistakes import NONE, ImageResult, Kind
from retinanet.report.unlabelled import Candidate

LONGEST_SIDE = 640  # A larger photo is made smaller before boxes are drawn. [pixels]
MOST_BYTES = 70_000
"""Of a picture: 24 of them take at most 2.3 MB in a page, as base64."""
QUALITIES = (80, 70, 60, 50, 40, 30)
SHRINK = 0.75  # Each step by which a picture is made smaller that no quality fits
MOST_DRAWN = 12  # Boxes of each colour in a picture, the surest; with more it cannot be read
RIGHT, WRONG, SWAPPED, MISSED = "#2f9e44", "#e6194b", "#9c36b5", "#1c7ed6"
LEGEND = (
    (RIGHT, "right (without a text)"),
    (WRONG, "false positive: class and score of a box with no such object"),
    (SWAPPED, "class swap: predicted class and score, then the true class"),
    (MISSED, "missed: a labelled object without a box"),
)
"""Colours and their meanings."""


def worst_picture(dataset: DetectionDataset, result: ImageResult) -> Picture:
    """Return the picture of an image with all its boxes.

    Raises:
        InputError: The image cannot be read.
    """
    annotations = dataset.annotations
    name = annotations.file_names[result.index]
    pixels = decode_annotated(annotations, dataset.image_folder, result.index)
    drawn = draw_result(pixels, annotations, result)
    content, (width, height) = as_jpeg(drawn)
    return Picture(jpeg_address(content), width, height, title=name, caption=describe(result))


def candidate_picture(candidate: Candidate, material: Material) -> Picture:
    """Return a picture to label, with its boxes from half of the best threshold upwards."""
    least = material.best.threshold / 2 if material.best else 0.2
    found, pixels = candidate.detections, read_picture(candidate.file)
    drawn = draw_detections(pixels, found, names=candidate.names, least_score=least)
    content, (width, height) = as_jpeg(drawn)
    why = f"{candidate.reason}: {candidate.evidence}"
    return Picture(jpeg_address(content), width, height, title=candidate.file, caption=why)


def describe(result: ImageResult) -> str:
    """Return the numbers of an image's mistakes."""
    numbers = (
        (result.missed, "missed"),
        (result.false_positives, "false positive" + "s" * (result.false_positives != 1)),
        (result.swaps, "class swap" + "s" * (result.swaps != 1)),
        (result.kinds.count(Kind.RIGHT), "right"),
    )
    return ", ".join(f"{number} {what}" for number, what in numbers if number)


def draw_result(pixels: Pixels, annotations: Annotations, result: ImageResult) -> Pixels:
    """Return a picture, made smaller if it is large, with right, wrong and missed boxes."""
    picture = Image.fromarray(pixels)
    scale = min(1.0, LONGEST_SIDE / max(picture.size))
    if scale < 1:
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    names = dict(zip(annotations.category_ids.tolist(), annotations.category_names, strict=True))
    rows = annotations.box_slice(result.index)
    true_names = [names[number] for number in annotations.box_category_ids[rows].tolist()]
    sorts: dict[str, list[tuple[int, str | None]]] = {RIGHT: [], SWAPPED: [], WRONG: []}
    for row, kind in enumerate(result.kinds):
        number = int(result.detections.category_ids[row])
        text = f"{names[number][:LONGEST_NAME]} {result.detections.scores[row]:.2f}"
        if kind is Kind.RIGHT:
            sorts[RIGHT].append((row, None))
        elif result.partners[row] != NONE:
            true = true_names[result.partners[row]][:LONGEST_NAME]
            sorts[SWAPPED].append((row, f"{text}, is {true}"))
        elif kind is not Kind.IGNORED:
            sorts[WRONG].append((row, text))
    boxes, labels, colours = [], [], []
    # What comes last is painted over the others: right boxes below mistakes, sure ones on top.
    for colour in (RIGHT, WRONG, SWAPPED):
        shown = sorts[colour][:MOST_DRAWN][::-1]
        boxes.append(result.detections.boxes[[row for row, _ in shown]])
        labels += [text for _, text in shown]
        colours += [colour] * len(shown)
    missed = np.flatnonzero(result.is_missed)[:MOST_DRAWN]
    boxes.append(annotations.boxes[rows][missed])
    labels += [f"missed {true_names[row][:LONGEST_NAME]}" for row in missed]
    colours += [MISSED] * len(missed)
    return draw_boxes(
        np.asarray(picture), np.concatenate(boxes) * scale, labels=labels, colours=colours
    )


def as_jpeg(pixels: Pixels, *, most_bytes: int = MOST_BYTES) -> tuple[bytes, tuple[int, int]]:
    """Return a JPEG of at most some bytes with its (width, height): less quality, then smaller."""
    picture = Image.fromarray(pixels)
    while True:
        for quality in QUALITIES:
            content = io.BytesIO()
            picture.save(content, format="JPEG", quality=quality, optimize=True)
            if content.tell() <= most_bytes:
                return content.getvalue(), picture.size
        size = max(1, round(picture.width * SHRINK)), max(1, round(picture.height * SHRINK))
        if size == picture.size:  # A limit below the size of any JPEG
            return content.getvalue(), picture.size
        picture = picture.resize(size, Image.Resampling.BICUBIC)
