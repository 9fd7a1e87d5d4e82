"""Boxes of tiles become one list: by an oracle that knows every object, exactly and inexactly."""

import numpy as np
import pytest
from numpy.typing import NDArray

from data.tiling import Tiling, Window
from retinanet.evaluation.matching import ImageDetections
from retinanet.evaluation.tiles import DetectPictures, detect_in_tiles, merge_tiles

Boxes = NDArray[np.float64]
PANORAMA = (400, 2000)  # height, width
TILING = Tiling(200, 0.2)


def picture_of(size: tuple[int, int]) -> NDArray[np.uint8]:
    """A picture whose pixels say where they are: a tile knows its place by its first pixel."""
    rows, columns = np.indices(size)
    place = np.stack([columns % 256, rows % 256, columns // 256 * 16 + rows // 256], axis=-1)
    return place.astype(np.uint8)


def oracle(
    boxes: Boxes,
    classes: NDArray[np.int64],
    *,
    least_side: float = 0.0,
    noise: float = 0.0,
    network: int = 200,
) -> DetectPictures:
    """A detector that finds what is in a picture of `picture_of`, cut off at its edges.

    Objects with a side below `least_side` in pixels of the network are not found: so the whole
    picture shows only large ones. Sides are wrong by up to `noise` pixels, never beyond the edges.
    """
    random = np.random.default_rng(0)

    def detect(pictures: object) -> list[ImageDetections]:
        results = []
        for pixels in pictures:  # type: ignore[attr-defined]
            height, width = pixels.shape[:2]
            x, y, high = map(int, pixels[0, 0])
            left, top = x + high // 16 * 256, y + high % 16 * 256
            edges = np.array([0, 0, width, height])
            found = np.clip(boxes - [left, top, left, top], 0, edges[[2, 3, 2, 3]])
            is_seen = (found[:, 2:] > found[:, :2]).all(axis=1)
            sides = (found[:, 2:] - found[:, :2]).min(axis=1) * network / max(height, width)
            is_seen &= sides >= least_side
            found = found[is_seen]
            found = np.clip(
                found + random.uniform(-noise, noise, found.shape), 0, edges[[2, 3, 2, 3]]
            )
            order = np.argsort(-(scores := random.uniform(0.3, 0.9, len(found))))
            results.append(ImageDetections(0, found[order], scores[order], classes[is_seen][order]))
        return results

    return detect


def require_each_once(found: ImageDetections, boxes: Boxes, *, within: float = 1e-6) -> None:
    """Each object has one box, no side of which is further off than `within` pixels."""
    assert len(found.scores) == len(boxes)
    distances = np.abs(found.boxes[:, None] - boxes[None]).max(axis=2)
    nearest = distances.argmin(axis=0)
    assert len(set(nearest.tolist())) == len(boxes)
    assert distances[nearest, np.arange(len(boxes))].max() <= within
    assert (np.diff(found.scores) <= 0).all()


def detected(
    boxes: Boxes,
    classes: NDArray[np.int64] | None = None,
    *,
    size: tuple[int, int] = PANORAMA,
    tiling: Tiling = TILING,
    **facts: float,
) -> ImageDetections:
    classes = np.zeros(len(boxes), np.int64) if classes is None else classes
    detect = oracle(boxes, classes, **facts)  # type: ignore[arg-type]
    return detect_in_tiles(picture_of(size), detect, tiling=tiling, batch_size=7)


def at_seams(side: float) -> Boxes:
    """Objects of a side, each across an edge of a tile or a corner of four."""
    (height, width), tiles = PANORAMA, TILING.tiles(PANORAMA)
    columns = {x for tile in tiles for x in (tile.left, tile.right)} - {0, width}
    rows = {y for tile in tiles for y in (tile.top, tile.bottom)} - {0, height}
    seams = [(x, y) for x in sorted(columns) for y in (60, *sorted(rows), 340)]
    centres = np.array([*seams, *((x + 21, y) for x in (0, 1900) for y in rows)], dtype=np.float64)
    boxes = np.concatenate([centres - side / 2, centres + side / 2], axis=1)
    kept: list[Boxes] = []
    for box in boxes:  # without those that touch another
        sides = [np.minimum(box[2:], b[2:]) - np.maximum(box[:2], b[:2]) for b in kept]
        if not any((each > -2).all() for each in sides):
            kept.append(box)
    return np.array(kept)


@pytest.mark.parametrize(
    "side, noise", [(3, 0.0), (12, 0.0), (12, 0.8), (24, 0.8), (39, 0.0), (40, 0.8), (41, 0.8)]
)
def test_objects_across_seams_are_found_once_each(side: float, noise: float) -> None:
    boxes = at_seams(side)
    assert len(boxes) > 30
    found = detected(boxes, least_side=1.0, noise=noise)
    require_each_once(found, boxes, within=1e-6 + 1.01 * noise)


def test_objects_larger_than_the_overlap_are_joined_from_parts() -> None:
    long = np.array([[10, 20, 900, 60], [950, 90, 1990, 390], [300, 120, 420, 300]], dtype=float)
    found = detected(long, least_side=3.0)  # the network sees tiles as they are
    require_each_once(found, long)


@pytest.mark.parametrize("seed", range(20))
def test_random_objects_are_found_once_each(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(150, 700)), int(random.integers(150, 1500))
    noise = 0.4 * (seed % 2)
    least = 12 if noise else 2  # IoU of smaller ones is too low for the noise
    tiling = Tiling(int(random.integers(60, 240)), float(random.uniform(0.3 * (seed % 2), 0.6)))
    kept: list[Boxes] = []
    for _ in range(60):
        sides = least + random.uniform(2, 10 + 240 * random.random() ** 4, 2)
        start = random.uniform(0, 1, 2) * (np.array(size)[::-1] - sides)
        box = np.clip([*start, *(start + sides)], 0, [size[1], size[0]] * 2)
        if all((np.minimum(box[2:], b[2:]) <= np.maximum(box[:2], b[:2])).any() for b in kept):
            kept.append(box)
    boxes = np.array(kept)
    classes = random.integers(0, 3, len(boxes))
    found = detected(boxes, classes, size=size, tiling=tiling, noise=noise)
    require_each_once(found, boxes, within=1e-6 + 2.01 * noise)


def merged(*found: tuple[list[float], float, int]) -> ImageDetections:
    """Merge boxes, each (box in the picture, score, number of its view), of a class by default.

    Two tiles of 100 × 100 share 20 columns; the third view is the whole picture, 180 × 100.
    """
    views = (Window(0, 0, 100, 100), Window(80, 0, 180, 100), Window(0, 0, 180, 100))
    lists = []
    for number, view in enumerate(views):
        own = sorted((each for each in found if each[2] == number), key=lambda each: -each[1])
        boxes = np.array([box for box, _, _ in own], dtype=float).reshape(-1, 4)
        boxes -= [view.left, view.top, view.left, view.top]
        scores = np.array([score for _, score, _ in own])
        lists.append(ImageDetections(0, boxes, scores, np.zeros(len(own), dtype=np.int64)))
    return merge_tiles(views, lists)


def rows(found: ImageDetections) -> list[tuple[list[float], float]]:
    return [(box, score) for box, score in zip(found.boxes.tolist(), found.scores, strict=True)]


def test_a_part_is_left_to_the_tile_that_sees_more() -> None:
    whole = [90.0, 10, 115, 40]
    # Half of it in the first tile, surer than the whole one in the second.
    assert rows(merged(([90, 10, 100, 40], 0.9, 0), (whole, 0.5, 1))) == [(whole, 0.5)]
    # The second tile has nothing there: it knows better.
    assert rows(merged(([90, 10, 100, 40], 0.9, 0))) == []
    # At the edge of the picture nothing is cut off.
    assert rows(merged(([0, 10, 30, 40], 0.9, 0))) == [([0, 10, 30, 40], 0.9)]


def test_a_whole_box_stands_for_its_parts() -> None:
    large, left, right = [20.0, 10, 160, 90], [20.0, 10, 100, 90], [80.0, 12, 160, 90]
    parts = (left, 0.8, 0), (right, 0.7, 1)
    assert rows(merged(*parts)) == [([20, 10, 160, 90], 0.8)]
    assert rows(merged(*parts, (large, 0.3, 2))) == [(large, 0.8)]
    # A part that agrees with nothing goes if it is mostly in a surer box, and only then.
    window = [60.0, 40, 100, 60]
    assert rows(merged((window, 0.4, 0), (large, 0.5, 2))) == [(large, 0.5)]
    assert rows(merged((window, 0.6, 0), (large, 0.5, 2))) == [(window, 0.6), (large, 0.5)]


def test_parts_of_two_objects_are_not_joined() -> None:
    upper, lower = [20.0, 10, 100, 40], [80.0, 45, 160, 80]
    assert rows(merged((upper, 0.8, 0), (lower, 0.7, 1))) == [(upper, 0.8), (lower, 0.7)]
    # The second box of a tile at a place, less sure than the first, is not joined to it.
    assert rows(
        merged((upper, 0.8, 0), ([80, 10, 160, 40], 0.7, 1), ([80, 8, 110, 44], 0.1, 1))
    ) == [([20, 10, 160, 40], 0.8)]


def test_classes_are_merged_by_themselves() -> None:
    boxes = np.array([[300, 50, 1200, 150], [310, 55, 1210, 155]], dtype=float)
    require_each_once(detected(boxes, np.array([4, 9]), least_side=3.0), boxes)
    only = detected(boxes[:1], np.array([9]))
    assert only.category_ids.tolist() == [9]


def test_a_picture_no_larger_than_a_tile_is_detected_as_it_is() -> None:
    found = ImageDetections(0, np.array([[0.0, 1, 2, 3]]), np.array([0.5]), np.array([1]))
    calls: list[tuple[int, ...]] = []

    def detect(pictures: object) -> list[ImageDetections]:
        calls.extend(pixels.shape for pixels in pictures)  # type: ignore[attr-defined]
        return [found]

    pixels = picture_of((200, 150))
    assert detect_in_tiles(pixels, detect, tiling=TILING, batch_size=3) is found
    assert calls == [(200, 150, 3)]


def test_a_batch_holds_no_more_tiles_than_asked() -> None:
    sizes: list[int] = []
    seen: list[tuple[int, int]] = []
    detect = oracle(np.zeros((0, 4)), np.zeros(0, np.int64))

    def counted(pictures: object) -> list[ImageDetections]:
        sizes.append(len(pictures))  # type: ignore[arg-type]
        assert all(p.base is not None for p in pictures)  # type: ignore[attr-defined]  # no copies
        return detect(pictures)  # type: ignore[arg-type]

    found = detect_in_tiles(
        picture_of(PANORAMA), counted, tiling=TILING, batch_size=7,
        between=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert sizes == [7, 7, 7, 7, 7, 5] and len(found.scores) == 0
    assert seen == [(done, 40) for done in (7, 14, 21, 28, 35, 40)]
