from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from data.annotations import Annotations
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.output import (
    MOST_BOXES,
    category_names,
    draw_boxes,
    draw_detections,
    draw_truth,
    evaluation_sheet,
    save_picture,
    spread_indices,
)
from retinanet.training.recorder import draw_curves, running_mean

WHITE = np.full((500, 600, 3), 255, np.uint8)


def boxes_of(*boxes: tuple[float, float, float, float]) -> NDArray[np.float64]:
    return np.array(boxes, dtype=np.float64).reshape(-1, 4)


def found(boxes: NDArray[np.float64], *, image_id: int = 1, score: float = 0.9) -> ImageDetections:
    return ImageDetections(
        image_id=image_id,
        boxes=boxes,
        scores=np.full(len(boxes), score),
        category_ids=np.full(len(boxes), 4),
    )


def annotations(count: int) -> Annotations:
    """`count` pictures of 100×50 pixels; the first has a box and a crowd, the others none."""
    return Annotations(
        category_ids=np.array([4]),
        category_names=("four",),
        image_ids=np.arange(count) + 10,
        file_names=tuple(f"{index}.png" for index in range(count)),
        widths=np.full(count, 100, np.int32),
        heights=np.full(count, 50, np.int32),
        box_offsets=np.array([0, *([2] * count)]),
        boxes=boxes_of((10, 10, 40, 30), (50, 5, 90, 45)),
        box_category_ids=np.array([4, 4]),
        box_is_crowd=np.array([False, True]),
        box_areas=np.array([600.0, 1600.0]),
        box_ids=np.array([1, 2]),
    )


def test_spread_indices_by_hand() -> None:
    assert spread_indices(6, 2) == [1, 4]
    assert spread_indices(9, 3) == [1, 4, 7]
    assert spread_indices(1, 6) == [0]
    assert spread_indices(4, 4) == [0, 1, 2, 3]
    assert spread_indices(4, 0) == spread_indices(0, 4) == []


@pytest.mark.parametrize(("total", "count"), [(150, 6), (7, 5), (1000, 999), (3, 100)])
def test_spread_indices_are_distinct_places(total: int, count: int) -> None:
    places = spread_indices(total, count)
    assert len(set(places)) == len(places) == min(total, count)
    assert places == sorted(places) and places[0] >= 0 and places[-1] < total


def test_a_box_is_drawn_at_its_edges() -> None:
    drawn = draw_boxes(WHITE, boxes_of((100, 200, 300, 400)), labels=["x"], colours=["#ff0000"])
    red = (drawn == (255, 0, 0)).all(axis=2)
    for row, column in ((300, 100), (300, 300), (200, 280), (400, 280)):
        assert red[row - 3 : row + 4, column - 3 : column + 4].any(), (row, column)
    assert not red[310:390, 110:290].any()  # the object itself stays visible
    assert (drawn[:190] == 255).all() and (drawn[:, :95] == 255).all()


def test_the_given_picture_is_not_changed() -> None:
    pixels = WHITE.copy()
    draw_boxes(pixels, boxes_of((100, 200, 300, 400)), labels=["x"], colours=["#ff0000"])
    assert (pixels == 255).all()


def test_small_pictures_are_enlarged_and_their_boxes_too() -> None:
    drawn = draw_boxes(
        WHITE[:48, :60], boxes_of((10, 20, 30, 40)), labels=["x"], colours=["#ff0000"]
    )
    assert drawn.shape == (480, 600, 3)
    red = (drawn == (255, 0, 0)).all(axis=2)
    assert red[300, 97:104].any() and red[397:404, 280].any()


def test_a_picture_without_boxes_stays_as_it_is() -> None:
    assert (draw_boxes(WHITE, boxes_of(), labels=[], colours=[]) == WHITE).all()


@pytest.mark.parametrize(
    "box",
    [
        (50, 60, 50, 90),
        (50, 60, 90, 60),
        (50, 60, 50, 60),
        (-40, -30, 20, 20),
        (580, 480, 900, 900),
        (700, 700, 800, 800),
        (-20, -20, -10, -10),
        (600, 500, 600, 500),
        (0, 0, 600, 500),
    ],
)
def test_empty_boxes_and_boxes_outside_are_no_trouble(box: tuple[float, ...]) -> None:
    drawn = draw_detections(
        WHITE, found(np.array([box], dtype=np.float64)), names={4: "four"}, least_score=0.5
    )
    assert drawn.shape == WHITE.shape


def test_only_certain_boxes_are_drawn() -> None:
    unsure = found(boxes_of((100, 200, 300, 400)), score=0.3)
    assert (draw_detections(WHITE, unsure, names={4: "four"}, least_score=0.4) == 255).all()
    assert (draw_detections(WHITE, unsure, names={4: "four"}, least_score=0.3) != 255).any()


def test_only_the_best_of_very_many_boxes_are_drawn() -> None:
    many = boxes_of(*[(10, 10, 100, 100)] * MOST_BOXES, (300, 300, 500, 480))
    drawn = draw_detections(WHITE, found(many), names={4: "four"}, least_score=0)
    assert (drawn[10:101, 8:101] != 255).any() and (drawn[250:, 250:] == 255).all()


def test_true_boxes_and_crowds_are_drawn() -> None:
    pixels = np.full((50, 100, 3), 255, np.uint8)
    drawn = draw_truth(pixels, annotations(2), 0)
    scale = drawn.shape[0] / 50
    for column in (10, 40, 50, 90):  # the vertical edges of both boxes
        place = round(column * scale)
        strip = drawn[round(22 * scale), max(0, place - 4) : place + 5]
        assert (strip != 255).any(), column
    assert (draw_truth(pixels, annotations(2), 1) == 255).all()


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 1), (3, 2), (6, 3)])
def test_a_sheet_has_two_pairs_a_row(count: int, rows: int, tmp_path: Path) -> None:
    split = annotations(6)
    for name in split.file_names:
        Image.fromarray(np.full((50, 100, 3), 128, np.uint8)).save(tmp_path / name)
    detections = [found(boxes_of((0, 0, 50, 50)), image_id=index + 10) for index in range(6)]
    sheet = evaluation_sheet(split, tmp_path, SplitDetections.of(detections), count=count)
    assert sheet is not None and sheet.dtype == np.uint8
    assert sheet.shape == (430 * rows, 1600, 3)


def test_no_pictures_asked_for_gives_no_sheet(tmp_path: Path) -> None:
    assert evaluation_sheet(annotations(2), tmp_path, SplitDetections.of([]), count=0) is None


def test_a_saved_picture_is_a_png_of_the_same_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    save_picture(pixels, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG" and (np.asarray(image) == pixels).all()
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_a_line_of_pixels_is_not_enlarged_beyond_reason() -> None:
    line = np.zeros((1, 60_000, 3), dtype=np.uint8)
    assert draw_boxes(line, np.zeros((0, 4)), labels=[], colours=[]).shape == line.shape
    wide = np.zeros((2, 1024, 3), dtype=np.uint8)
    assert draw_boxes(wide, np.zeros((0, 4)), labels=[], colours=[]).shape == (8, 4096, 3)


def test_hostile_names_become_labels() -> None:
    grey = np.full((480, 480, 3), 128, dtype=np.uint8)
    boxes = np.array([[10.0, 200.0, 100.0, 300.0]])
    for name in ("\x1b[2J\n\n\n", "\ud800", "$x^{", "w" * 10**6):
        named = annotations_named(name)
        label = category_names(named)[int(named.category_ids[0])]
        assert len(label) <= 60
        drawn = draw_boxes(grey, boxes, labels=[label], colours=["#e6194b"])
        assert drawn.shape == grey.shape and (drawn != grey).any()


def annotations_named(name: str) -> Annotations:
    found = annotations(1)
    return replace(found, category_names=tuple(name for _ in found.category_names))


def test_running_mean_by_hand() -> None:
    values = np.array([1.0, 3.0, 5.0, 7.0])
    assert running_mean(values, window=2).tolist() == [1, 2, 4, 6]
    assert running_mean(values).tolist() == [1, 2, 3, 4]
    assert running_mean(np.array([])).tolist() == []


@pytest.mark.parametrize("filled", [False, True])
def test_curves_are_drawn_from_any_records(filled: bool, tmp_path: Path) -> None:
    step = {"kind": "step", "step": 1, "loss": 1.0, "classification": 0.5, "bbox_regression": 0.5}
    evaluation = {"kind": "evaluation", "step": 1, "map": 0.1, "map_50": None, "map_75": 0.0}
    records = [step, evaluation] if filled else []
    draw_curves(records, tmp_path / "curves.png", title="a run", target_map=0.3)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (1320, 495)
