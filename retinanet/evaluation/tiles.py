"""Detection of small objects in large pictures: tile by tile, with one list of boxes at the end.

The whole picture is a view too, for objects that no tile has room for. A box that reaches an inner
edge of its tile may be a part of an object. Parts are settled by what other tiles see:

1. A part is dropped where another tile sees the same place and more of its surroundings: what is
   there is for that tile to tell. Objects smaller than the overlap are thus reported whole.
2. Boxes are of one object if they agree (IoU) in the region that both views see. A whole box stands
   for its parts; parts that agree with no whole box are joined to the box around them.
3. A part most of which is in a surer whole box of its class is dropped.

Whole boxes of a class that overlap compete as within a picture: non-maximum suppression.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torchvision.ops import batched_nms

from common.console import progress
from data.dataset import DetectionDataset, read_pixels
from data.tiling import Tiling, Window
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.model.postprocess import NMS_IOU

EDGE = 0.02
"""A box so near to an inner edge of its tile may be cut off there. [sides of a tile]"""
SAME_IOU = 0.5  # From which on boxes of two tiles are of one object, where both see it
INSIDE = 0.5  # The share of a part in a surer box from which on it is a part of that object

DetectPictures = Callable[[Sequence[NDArray[np.uint8]]], list[ImageDetections]]
"""Returns the detections in a batch of RGB pictures [H, W, 3], in their pixels, best first."""
Edges = NDArray[np.float64]  # [N, 4] xyxy in pixels of the picture


def detect_in_tiles(
    pixels: NDArray[np.uint8],
    detect: DetectPictures,
    *,
    tiling: Tiling,
    batch_size: int,
    between: Callable[[int, int], None] = lambda done, total: None,
) -> ImageDetections:
    """Return the detections in a picture [H, W, 3], of all of its tiles, best first.

    A picture that is no larger than a tile is detected as without tiles. `detect` gets
    `batch_size` tiles at a time, so that memory does not grow with the picture; `between` is called
    after each batch with the numbers of finished tiles and of all.
    """
    height, width = pixels.shape[:2]
    views = tiling.tiles((height, width))
    if len(views) > 1:
        views.append(Window(0, 0, width, height))
    found: list[ImageDetections] = []
    for start in range(0, len(views), batch_size):
        batch = views[start : start + batch_size]
        found += detect([pixels[tile.top : tile.bottom, tile.left : tile.right] for tile in batch])
        between(len(found), len(views))
    return merge_tiles(views, found) if len(views) > 1 else found[0]


def detect_split_in_tiles(
    dataset: DetectionDataset, detect: Callable[..., ImageDetections], *, console: Console
) -> SplitDetections:
    """Return the detections in all images of a split, in annotated pixels.

    `detect` is `detect_in_tiles` without the pixels and `between`. Raises InputError if an image
    cannot be read.
    """
    images, results = dataset.annotations, list[ImageDetections]()
    with progress(console, "evaluation, images", total=len(dataset)) as advance:
        for row in range(len(images)):
            pixels = read_pixels(images, dataset.image_folder, row, decoder=dataset.rules.decoder)
            found = detect(
                pixels, between=lambda done, total: advance(len(results), f"tile {done} of {total}")
            )
            ratios = np.divide(images.image_size(row), pixels.shape[:2])[[1, 0, 1, 0]]
            image_id, boxes = int(images.image_ids[row]), found.boxes * ratios
            results.append(replace(found, image_id=image_id, boxes=boxes))
            advance(len(results), "")
    return SplitDetections.from_images(results)


@dataclass(frozen=True, eq=False)
class Views:
    """The boxes of all views of a picture, with where their views end."""

    boxes: Edges
    classes: NDArray[np.int64]  # [N]
    views: NDArray[np.intp]  # [N] the number of the view that each was seen in
    edges: Edges
    """[N, 4] of the views; infinitely far away where they are the picture's: nothing is beyond"""


def merge_tiles(views: Sequence[Window], found: Sequence[ImageDetections]) -> ImageDetections:
    """Return one list of boxes, best first, of the detections in each view of a picture.

    The last view is the whole picture; boxes are in pixels of their views.
    """
    tiles = np.array(views, dtype=np.float64)
    margin = EDGE * float((tiles[0, 2:] - tiles[0, :2]).max())
    seen_in = np.repeat(np.arange(len(views)), [len(each.scores) for each in found])
    scores = np.concatenate([each.scores for each in found])
    classes = np.concatenate([each.category_ids for each in found])
    boxes = np.concatenate([each.boxes for each in found]) + tiles[seen_in][:, [0, 1, 0, 1]]
    tiles = np.where(tiles == tiles[-1], [-np.inf, -np.inf, np.inf, np.inf], tiles)
    seen = Views(boxes, classes, seen_in, tiles[seen_in])
    is_part = (clearance(boxes, seen.edges) <= margin).any(axis=1)
    wholes = suppressed(boxes, scores, classes, np.flatnonzero(~is_part))
    parts = np.flatnonzero(is_part)
    parts = parts[~seen_better(seen, parts, tiles[:-1], margin=margin)]
    parts = parts[np.argsort(-scores[parts], kind="stable")]
    boxes, scores, rows = settle_parts(seen, scores, wholes, parts)
    rows = suppressed(boxes, scores, classes, rows)
    return ImageDetections(found[-1].image_id, boxes[rows], scores[rows], classes[rows])


def suppressed(
    boxes: Edges, scores: NDArray[np.float64], classes: NDArray[np.int64], rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return those of some rows that no better one of their class overlaps, best first."""
    # Labels from 0: ids may be too large for the numbers that the classes' boxes are moved by.
    labels = np.unique(classes, return_inverse=True)[1]
    columns = (torch.from_numpy(column[rows]) for column in (boxes, scores, labels))
    kept: NDArray[np.intp] = rows[batched_nms(*columns, NMS_IOU).numpy()]
    return kept


def clearance(boxes: Edges, edges: Edges) -> NDArray[np.float64]:
    """Return the distances [N, 4] of boxes' sides from the edges of a view, from the inside."""
    return np.concatenate([boxes[:, :2] - edges[:, :2], edges[:, 2:] - boxes[:, 2:]], axis=1)


def seen_better(
    seen: Views, parts: NDArray[np.intp], tiles: Edges, *, margin: float
) -> NDArray[np.bool_]:
    """Return which parts [P] another tile sees with more of their surroundings.

    It is clear of the part by twice the margin where that may be cut off, and nowhere nearer: two
    tiles leave an object to each other only if their boxes of it differ by more than the margin.
    """
    boxes, own = seen.boxes[parts], clearance(seen.boxes[parts], seen.edges[parts])
    needed = np.minimum(own, 2 * margin)
    is_better = np.zeros(len(parts), dtype=np.bool_)
    for tile in tiles:
        other = clearance(boxes, tile[None])
        is_clear = ((other >= 2 * margin) & (own <= margin)).any(axis=1)
        is_better |= is_clear & (other >= needed).all(axis=1)
    return is_better


def settle_parts(
    seen: Views,
    scores: NDArray[np.float64],
    wholes: NDArray[np.intp],
    parts: NDArray[np.intp],
) -> tuple[Edges, NDArray[np.float64], NDArray[np.intp]]:
    """Return boxes and scores of all rows, and the rows that are left, without settled `parts`.

    Of a group of parts the best is left, with the box around all; `parts` are in its order.
    """
    scores, is_whole = scores.copy(), np.zeros(len(scores), dtype=np.bool_)
    is_whole[wholes] = True
    is_rival = is_whole.copy()  # What later parts are compared with
    head = np.arange(len(scores))  # The best of each part's group
    groups: dict[int, list[int]] = {}
    for row in parts.tolist():
        is_other = is_rival & (seen.classes == seen.classes[row]) & (seen.views != seen.views[row])
        rivals = np.flatnonzero(is_other)
        agreeing = rivals[agreement(seen, row, rivals) >= SAME_IOU]
        if len(same := agreeing[is_whole[agreeing]]):
            best = same[np.argmax(scores[same])]
            scores[best] = max(scores[best], scores[row])
            continue
        surer = rivals[is_whole[rivals] & (scores[rivals] >= scores[row])]
        box = seen.boxes[row][None]
        if (area(shared(box, seen.boxes[surer])) >= INSIDE * area(box)).any():
            continue
        heads = np.unique(head[agreeing])
        joined = [row]
        for first in heads[np.argsort(-scores[heads], kind="stable")].tolist():
            # A second box of a tile is less sure, or of another object.
            if not np.isin(seen.views[groups[first]], seen.views[joined]).any():
                joined += groups.pop(first)
        if len(heads) and joined == [row]:
            continue
        best = joined[int(np.argmax(scores[joined]))]
        groups[best], head[joined], is_rival[row] = joined, best, True
    boxes = seen.boxes.copy()
    for first, members in groups.items():
        boxes[first, :2] = seen.boxes[members, :2].min(axis=0)
        boxes[first, 2:] = seen.boxes[members, 2:].max(axis=0)
    return boxes, scores, np.concatenate([wholes, np.array([*groups], dtype=np.intp)])


def agreement(seen: Views, row: int, rivals: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the IoU [R] of a box with some others in the region that both their views see."""
    first = shared(seen.boxes[row][None], seen.edges[rivals])
    second = shared(seen.boxes[rivals], seen.edges[row][None])
    common = area(shared(first, second))
    union = area(first) + area(second) - common
    return common / np.maximum(union, np.finfo(np.float64).tiny)


def shared(first: Edges, second: Edges) -> Edges:
    """Return the intersections [N, 4] of boxes; without an area where there is none."""
    top_left = np.maximum(first[:, :2], second[:, :2])
    return np.concatenate([top_left, np.minimum(first[:, 2:], second[:, 2:])], axis=1)


def area(boxes: Edges) -> NDArray[np.float64]:
    """Return the areas [N] of boxes, 0 for those without one."""
    sides: NDArray[np.float64] = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    return sides[:, 0] * sides[:, 1]
