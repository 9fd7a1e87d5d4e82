"""Generated annotations, detections and oneDNN logs of any size, to measure scaling with size.

The numbers are those of OpenImages' validation split as MLPerf uses it: 24,781 images of 1024×768
pixels, 264 classes of which few have most boxes, 7.3 true boxes an image (Kuznetsova et al., 2020,
The Open Images Dataset V4, table 5: 303,980 boxes in 41,620 images), and 300 boxes found in each,
the most that the model's postprocessing keeps. Annotations have the fields of MLPerf's export, and
logs the time stamps and foreign lines of a long run.
"""

import io
import json
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from common.console import Advance
from common.files import in_place_when_whole
from data.annotations import Annotations
from retinanet.evaluation.matching import SplitDetections

CLASSES = 264
WIDTH, HEIGHT = 1024, 768
GROUPS = 0.05  # Share of boxes around several objects
IMAGES_AT_ONCE = 20_000


def write_annotations(path: Path, *, images: int, boxes: int, advance: Advance) -> None:
    """Write COCO-format JSON with a number of random boxes, spread over the images at random.

    `advance` is called as `advance(images done, "")`.
    """
    random = np.random.default_rng(0)
    boxes_of_image = np.bincount(random.integers(images, size=boxes), minlength=images)
    categories = [
        {"id": index, "name": f"class {index}", "supercategory": None} for index in range(CLASSES)
    ]
    parts = [
        range(start, min(images, start + IMAGES_AT_ONCE))
        for start in range(0, images, IMAGES_AT_ONCE)
    ]

    def boxes_of_parts() -> Iterator[list[str]]:
        first = 1
        for part in parts:
            image_ids = np.repeat(np.array(part) + 1, boxes_of_image[part.start : part.stop])
            yield box_texts(image_ids, first=first, random=random)
            first += len(image_ids)
            advance(part.stop, "")

    with (
        in_place_when_whole(path, flush=False) as stream,
        io.TextIOWrapper(stream, "utf-8") as file,
    ):
        file.write(f'{{"info": {{}}, "licenses": [], "categories": {json.dumps(categories)}')
        write_list(file, "images", map(image_texts, parts))
        write_list(file, "annotations", boxes_of_parts())
        file.write("}\n")


def write_list(file: TextIO, name: str, blocks: Iterable[list[str]]) -> None:
    """Write a list of entries, given in blocks, as a member of a JSON object."""
    file.write(f', "{name}": [')
    separator = ""
    for texts in filter(None, blocks):
        file.write(separator + ", ".join(texts))
        separator = ", "
    file.write("]")


def image_texts(images: range) -> list[str]:
    """Return entries of `images` as JSON."""
    return [
        # Multiples of a large odd number: unique names that look like OpenImages' hashes.
        f'{{"id": {index + 1}, "file_name": "{index * 2654435761:016x}.jpg", "height": {HEIGHT}, '
        f'"width": {WIDTH}, "license": null, "coco_url": null}}'
        for index in images
    ]


def box_texts(
    image_ids: NDArray[np.int64], *, first: int, random: np.random.Generator
) -> list[str]:
    """Return entries of `annotations` from id `first` on as JSON."""
    count = len(image_ids)
    corners = random.random((count, 2)) * (0.6 * WIDTH, 0.6 * HEIGHT)
    sides = random.random((count, 2)) * (0.4 * WIDTH, 0.4 * HEIGHT) + 1
    categories = random.integers(CLASSES, size=count)
    groups = random.random(count) < GROUPS
    # As lists: NumPy 2 prints its own numbers as `np.float64(0.5)`, which is no JSON.
    columns = (column.tolist() for column in (image_ids, categories, corners, sides, groups))
    # `json.dumps` takes 1.7 times as long for each of ten million boxes.
    return [
        f'{{"id": {number}, "image_id": {image}, "category_id": {category}, '
        f'"bbox": [{x!r}, {y!r}, {w!r}, {h!r}], "area": {w * h!r}, "iscrowd": {int(group)}, '
        f'"IsOccluded": false, "IsInside": false, "IsDepiction": false, "IsTruncated": true, '
        f'"IsGroupOf": {"true" if group else "false"}}}'
        for number, (image, category, (x, y), (w, h), group) in enumerate(
            zip(*columns, strict=True), start=first
        )
    ]


BOXES_OF_IMAGE = 7.3
DETECTIONS_PER_BOX = 3  # Detections near each true box, as far as `per_image` allows


def generated_truth(*, images: int, random: np.random.Generator) -> Annotations:
    """Return images with random boxes: at least one, 7.3 in the mean."""
    counts = random.geometric(1 / BOXES_OF_IMAGE, images)
    boxes = random_boxes(int(counts.sum()), random)
    return Annotations(
        category_ids=np.arange(1, CLASSES + 1),
        category_names=tuple(f"class {number}" for number in range(1, CLASSES + 1)),
        image_ids=np.arange(1, images + 1),
        file_names=tuple(f"{number:016x}.jpg" for number in range(images)),
        widths=np.full(images, WIDTH, np.int32),
        heights=np.full(images, HEIGHT, np.int32),
        is_displayed=np.zeros(images, dtype=np.bool_),
        box_offsets=np.concatenate([[0], np.cumsum(counts)]),
        boxes=boxes,
        box_category_ids=random_classes(len(boxes), random),
        box_is_crowd=random.random(len(boxes)) < GROUPS,
        box_areas=np.prod(boxes[:, 2:] - boxes[:, :2], axis=1),
        box_ids=np.arange(1, len(boxes) + 1),
    )


def generated_detections(
    truth: Annotations, *, per_image: int, random: np.random.Generator
) -> SplitDetections:
    """Return `per_image` boxes in each image: about three near each true box, others anywhere.

    Scores are as a detector's: many low ones, and higher ones where something is. The boxes of an
    image are sorted by score, the best first.
    """
    images = []
    for index in range(len(truth)):
        rows = np.arange(len(truth.boxes))[truth.box_slice(index)]
        near = np.repeat(rows, DETECTIONS_PER_BOX)[:per_image]
        elsewhere = per_image - len(near)
        sides = np.tile(truth.boxes[near, 2:] - truth.boxes[near, :2], 2)
        shaken = truth.boxes[near] + sides * random.normal(0, 0.1, sides.shape)
        wrong = random.random(len(near)) < 0.2
        classes = np.where(wrong, random_classes(len(near), random), truth.box_category_ids[near])
        of_objects, others = random.beta(2, 3, len(near)), 0.05 + random.beta(1, 12, elsewhere)
        scores = np.concatenate([of_objects, others])
        order = np.argsort(-scores)
        boxes = np.concatenate([shaken, random_boxes(elsewhere, random)])
        classes = np.concatenate([classes, random_classes(elsewhere, random)])
        images.append((boxes[order], scores[order], classes[order]))
    boxes, scores, classes = map(np.concatenate, zip(*images, strict=True))
    return SplitDetections(
        image_ids=np.repeat(truth.image_ids, per_image),
        boxes=boxes.astype(np.float32),
        scores=scores.astype(np.float32),
        category_ids=classes,
    )


def random_boxes(count: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return [count, 4] xyxy in pixels: sides from a fiftieth of the image's to all of it."""
    # Uniform in the logarithm: as many sides from 2 to 4 % of the image as from 50 to 100 %.
    sides = np.exp(random.uniform(np.log(0.02), 0, (count, 2))) * (WIDTH, HEIGHT)
    corners = random.random((count, 2)) * ((WIDTH, HEIGHT) - sides)
    return np.concatenate([corners, corners + sides], axis=1)


def random_classes(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return category ids, the n-th as often as 1/n: a third of all boxes are of the first six."""
    shares = 1 / np.arange(1, CLASSES + 1)
    return random.choice(np.arange(1, CLASSES + 1), count, p=shares / shares.sum())


HEADER = """\
onednn_verbose,v1,info,oneDNN v3.7.1 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:OpenMP,nthr:28
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support
"""
DIRECTIONS = ("forward_training", "backward_data", "backward_weights")
FOREIGN_EVERY = 50  # A line of another program follows so many lines
FIRST_TIME_STAMP = 1_795_230_198_092.0


def write_log(file: Path, *, lines: int, problems: int) -> float:
    """Write `lines` executions of `problems` distinct problems; return their sum in milliseconds.

    Every second problem is a convolution, every second one the reorder of its weights.
    """
    total = 0.0
    with (
        in_place_when_whole(file, flush=False) as stream,
        io.TextIOWrapper(stream, "ascii") as out,
    ):
        out.write(HEADER)
        bodies = cycle(map(log_body, range(problems)))
        for number, body in enumerate(islice(bodies, lines)):
            # Exact in binary, so that the sum does not depend on the order.
            milliseconds = 0.0625 * (1 + number % 7)
            total += milliseconds
            stamp = f"{FIRST_TIME_STAMP + number / 4:.6f}"
            out.write(f"onednn_verbose,v1,{stamp},primitive,exec,cpu,{body},{milliseconds:g}\n")
            if number % FOREIGN_EVERY == 0:
                out.write(f"epoch 1, step {number}: loss 0.3\n")
    return total


def log_body(number: int) -> str:
    """Return a problem's fields between the engine and the time."""
    channels = 16 * (1 + number // 2)
    if number % 2:
        return (
            "reorder,jit:uni,undef,src:bf16::blocked:acdb::f0 "
            f"dst:bf16::blocked:AcdB16a2b::f0,attr-scratchpad:user,,{channels}x256x3x3"
        )
    return (
        "convolution,brg_conv_fwd:avx512_core_bf16,"
        f"{DIRECTIONS[number // 2 % 3]},src:bf16::blocked:acdb::f0 "
        "wei:bf16:a:blocked:AcdB16a2b::f0 bia:f32:a:blocked:a::f0 dst:bf16::blocked:acdb::f0,"
        "attr-scratchpad:user,alg:convolution_direct,"
        f"mb2_ic256oc{channels}_ih100oh100kh3sh1dh0ph1_iw100ow100kw3sw1dw0pw1"
    )
