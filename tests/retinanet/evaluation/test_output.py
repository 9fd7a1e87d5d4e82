import csv
import io
import json
import math
from pathlib import Path

import matplotlib.font_manager
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFont

from common.errors import InputError
from data.annotations import Annotations
from retinanet.evaluation import output
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import METRICS, ClassResult, Evaluation
from retinanet.evaluation.output import (
    MOST_BOXES,
    Pixels,
    SplitResult,
    category_names,
    classes_as_csv,
    detections_as_json,
    draw_boxes,
    draw_detections,
    draw_truth,
    evaluation_files,
    evaluation_sheet,
    fitting_text,
    free_top,
    save_picture,
    spread_indices,
    write_evaluation,
)
from retinanet.training.recorder import draw_curves, running_mean
from tests.retinanet.report.samples import True_, class_result, split

WHITE = np.full((500, 600, 3), 255, np.uint8)
FONT = ImageFont.truetype(matplotlib.font_manager.findfont("DejaVu Sans"), 15)


def box_array(*boxes: tuple[float, float, float, float]) -> NDArray[np.float64]:
    return np.array(boxes, dtype=np.float64).reshape(-1, 4)


def image_detections(
    boxes: NDArray[np.float64], *, image_id: int = 1, score: float = 0.9
) -> ImageDetections:
    count = len(boxes)
    return ImageDetections(image_id, boxes, np.full(count, score), np.full(count, 4))


def split_detections(count: int) -> SplitDetections:
    return SplitDetections(
        image_ids=np.arange(count) + 5,
        boxes=np.tile(np.array([[10, 20, 30, 50]], np.float32), (count, 1)),
        scores=np.full(count, 0.25, np.float32),
        category_ids=np.full(count, 44),
    )


def annotations(count: int, *, name: str = "four") -> Annotations:
    """`count` images of 200×100 pixels; the first has a box and a crowd, the others none."""
    boxes: list[True_] = [(4, (10, 10, 40, 30)), (4, (50, 5, 90, 45), True)]
    return split(boxes, *[[]] * (count - 1), names=(name,), ids=(4,))


def evaluation(*classes: ClassResult) -> Evaluation:
    curves = {"0.50": np.linspace(1, 0, 101), "0.75": np.full(101, math.nan)}
    return Evaluation(dict.fromkeys(METRICS, 0.5), classes, curves)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_detections_are_written_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "BOXES_AT_ONCE", 3)
    assert json.loads(b"".join(detections_as_json(split_detections(count)))) == [
        {"image_id": index + 5, "category_id": 44, "bbox": [10, 20, 20, 30], "score": 0.25}
        for index in range(count)
    ]


def test_classes_csv_leaves_unmeasured_values_empty_and_escapes_formulas() -> None:
    classes = [
        class_result("Tree, tall", 1 / 3, 3),
        class_result("Cat", math.nan, 4),
        class_result("=HYPERLINK(A1)\x1b[2J", 0.5, 5),
    ]
    first, second, third = csv.DictReader(io.StringIO(classes_as_csv(evaluation(*classes))))
    assert (first["name"], first["map"], first["true_boxes"]) == ("Tree, tall", "0.333333", "7")
    assert (second["map"], second["mar_100"], second["found_boxes"]) == ("", "", "9")
    assert third["name"] == "'=HYPERLINK(A1)�[2J"


@pytest.mark.parametrize("classes", [0, 3, pytest.param(264, marks=pytest.mark.slow)])
def test_write_evaluation_writes_boxes_classes_and_chart(classes: int, tmp_path: Path) -> None:
    results = [class_result(f"$class_{number}^", number / 264, number) for number in range(classes)]
    result = SplitResult(evaluation(*results), split_detections(2), seconds=1.0)
    write_evaluation(result, tmp_path / "eval", name="step-000006")
    files = evaluation_files(tmp_path / "eval", name="step-000006")
    assert sorted(files) == sorted((tmp_path / "eval").iterdir())
    with Image.open(files[2]) as chart:
        assert chart.format == "PNG" and chart.width > 1000 and chart.height < 2000


def test_unwritable_folder_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "eval").write_text("")
    result = SplitResult(evaluation(), split_detections(0), seconds=1.0)
    with pytest.raises(InputError, match=r"eval/step\.json: cannot be written"):
        write_evaluation(result, tmp_path / "eval", name="step")


def test_detections_of_an_image_in_any_order() -> None:
    def image(image_id: int, *scores: float) -> ImageDetections:
        boxes = np.tile([1.0, 2.0, 3.0, 4.0], (len(scores), 1))
        return ImageDetections(image_id, boxes, np.array(scores), np.full(len(scores), 4))

    split = SplitDetections.from_images([image(93, 0.75, 0.5), image(12), image(7, 0.25)])
    assert split.in_image(93).scores.tolist() == [0.75, 0.5]
    assert split.in_image(12).scores.tolist() == split.in_image(1).scores.tolist() == []
    assert split.in_image(7).boxes.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("total", "count", "indices"),
    [
        *((6, 2, [1, 4]), (9, 3, [1, 4, 7]), (1, 6, [0]), (4, 4, [0, 1, 2, 3]), (4, 0, [])),
        *((0, 4, []), (150, 6, None), (7, 5, None), (1000, 999, None), (3, 100, None)),
    ],
)
def test_spread_indices(total: int, count: int, indices: list[int] | None) -> None:
    found = spread_indices(total, count)
    assert indices in (None, found)
    assert found == sorted(set(found)) and len(found) == min(total, count)
    assert all(0 <= index < total for index in found)


def test_box_is_drawn_at_its_edges_on_a_copy() -> None:
    pixels = WHITE.copy()
    drawn = draw_boxes(pixels, box_array((100, 200, 300, 400)), labels=["x"], colours=["#ff0000"])
    assert (pixels == 255).all()
    red = (drawn == (255, 0, 0)).all(axis=2)
    for row, column in ((300, 100), (300, 300), (200, 280), (400, 280)):
        assert red[row - 3 : row + 4, column - 3 : column + 4].any(), (row, column)
    assert not red[310:390, 110:290].any()  # the object itself stays visible
    assert (drawn[:190] == 255).all() and (drawn[:, :95] == 255).all()


def label_rows(drawn: Pixels, colour: tuple[int, int, int], columns: slice) -> NDArray[np.bool_]:
    """Return which rows are a label's: of its colour from edge to edge of some columns."""
    return (drawn[:, columns] == colour).all(axis=2).mean(axis=1) > 0.5


def test_labels_are_moved_into_the_picture() -> None:
    boxes = box_array((580, 5, 599, 90), (200, 495, 300, 500), (10, 100, 60, 160))
    labels, colours = ["Christmas tree 0.99", "low", "w" * 200 + " 0.75"], ["#ff0000"] * 3
    drawn = draw_boxes(WHITE, boxes, labels=labels, colours=colours)
    red = (drawn == (255, 0, 0)).all(axis=2)
    assert red[6:20, 430:].mean() > 0.5  # moved to the left of its box, with all of its text
    assert red[482:499, 200:230].mean() > 0.5
    assert red[103:114, 2:598].mean() > 0.4  # its middle is cut
    short = fitting_text(" " + "w" * 200 + " 0.75 ", FONT, 600)
    assert "…" in short and short.endswith(" 0.75 ") and 560 < FONT.getlength(short) <= 600


def test_labels_of_coinciding_boxes_are_apart() -> None:
    colours = ["#ff0000", "#00ff00", "#0000ff"]
    boxes = box_array(*[(100, 200, 300, 400)] * 3)
    drawn = draw_boxes(WHITE, boxes, labels=["person 0.50"] * 3, colours=colours)
    red, green, blue = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    filled = [label_rows(drawn, rgb, slice(104, 170)) for rgb in (red, green, blue)]
    assert all(rows.sum() >= 12 for rows in filled)
    # The last box is the surest: its label is at its corner, and the others are beside it.
    assert filled[2][200:212].any()
    assert not np.any(filled, axis=0)[250:390].any()


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.integers(-50, 500), max_size=12), st.integers(1, 60))
def test_labels_hide_each_other_only_where_there_is_no_room(wanted: list[int], height: int) -> None:
    lowest, taken = 400, list[int]()
    for top in wanted:
        place = free_top(top, height, lowest, taken)
        assert 0 <= place <= lowest
        is_free = all(abs(place - other) >= height for other in taken)
        # Each label takes two heights of room at most.
        assert is_free or len(taken) * 2 * height >= lowest
        taken.append(place)


def test_small_pictures_are_enlarged_with_their_boxes() -> None:
    drawn = draw_boxes(
        WHITE[:48, :60], box_array((10, 20, 30, 40)), labels=["x"], colours=["#ff0000"]
    )
    assert drawn.shape == (480, 600, 3)
    red = (drawn == (255, 0, 0)).all(axis=2)
    assert red[300, 97:104].any() and red[397:404, 280].any()


@pytest.mark.parametrize(
    ("shape", "enlarged"),
    [((500, 600), (500, 600)), ((1, 60_000), (1, 60_000)), ((2, 1024), (8, 4096))],
)
def test_enlargement_is_limited(shape: tuple[int, int], enlarged: tuple[int, int]) -> None:
    drawn = draw_boxes(np.full((*shape, 3), 255, np.uint8), box_array(), labels=[], colours=[])
    assert drawn.shape == (*enlarged, 3) and (drawn == 255).all()


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
def test_empty_and_outside_boxes_can_be_drawn(box: tuple[float, float, float, float]) -> None:
    detections = image_detections(box_array(box))
    drawn = draw_detections(WHITE, detections, names={4: "four"}, least_score=0.5)
    assert drawn.shape == WHITE.shape


def test_detections_below_the_least_score_are_not_drawn() -> None:
    unsure = image_detections(box_array((100, 200, 300, 400)), score=0.3)
    assert (draw_detections(WHITE, unsure, names={4: "four"}, least_score=0.4) == 255).all()
    assert (draw_detections(WHITE, unsure, names={4: "four"}, least_score=0.3) != 255).any()


def test_number_of_drawn_detections_is_limited() -> None:
    boxes = box_array(*[(10, 10, 100, 100)] * MOST_BOXES, (300, 300, 500, 480))
    drawn = draw_detections(WHITE, image_detections(boxes), names={4: "four"}, least_score=0)
    assert (drawn[10:101, 8:101] != 255).any() and (drawn[250:, 250:] == 255).all()


def test_true_boxes_and_crowds_are_drawn() -> None:
    pixels = np.full((50, 100, 3), 255, np.uint8)
    drawn = draw_truth(pixels, annotations(2), 0)
    scale = drawn.shape[0] / 50
    for column in (10, 40, 50, 90):  # the vertical edges of both boxes
        position = round(column * scale)
        strip = drawn[round(22 * scale), max(0, position - 4) : position + 5]
        assert (strip != 255).any(), column
    assert (draw_truth(pixels, annotations(2), 1) == 255).all()


@pytest.mark.parametrize(("count", "rows"), [(0, 0), (2, 1), (3, 2)])
def test_sheet_has_two_images_per_row(count: int, rows: int, tmp_path: Path) -> None:
    split = annotations(6)
    for name in split.file_names:
        Image.fromarray(np.full((100, 200, 3), 128, np.uint8)).save(tmp_path / name)
    images = [
        image_detections(box_array((0, 0, 50, 50)), image_id=index + 10) for index in range(6)
    ]
    detections = SplitDetections.from_images(images)
    sheet = evaluation_sheet(split, tmp_path, detections, count=count)
    assert (None if sheet is None else sheet.shape) == ((430 * rows, 1600, 3) if rows else None)


def test_saved_picture_is_a_png_of_the_same_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    save_picture(pixels, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG" and (np.asarray(image) == pixels).all()
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("name", ["\x1b[2J\n\n\n", "\ud800", "$x^{", "w" * 10**6])
def test_hostile_class_names_become_labels(name: str) -> None:
    grey = np.full((480, 480, 3), 128, dtype=np.uint8)
    label = category_names(annotations(1, name=name))[4]
    assert len(label) <= 60
    drawn = draw_boxes(grey, box_array((10, 200, 100, 300)), labels=[label], colours=["#e6194b"])
    assert drawn.shape == grey.shape and (drawn != grey).any()


@pytest.mark.parametrize(
    ("values", "window", "means"),
    [([1, 3, 5, 7], 2, [1, 2, 4, 6]), ([1, 3, 5, 7], 10, [1, 2, 3, 4]), ([], 10, [])],
)
def test_running_mean(values: list[float], window: int, means: list[float]) -> None:
    assert running_mean(np.array(values, dtype=np.float64), window=window).tolist() == means


@pytest.mark.parametrize("filled", [False, True])
def test_curves_are_drawn_from_any_records(filled: bool, tmp_path: Path) -> None:
    step = {"kind": "step", "step": 1, "loss": 1.0, "classification": 0.5, "bbox_regression": 0.5}
    record = {"kind": "evaluation", "step": 1, "map": 0.1, "map_50": None, "map_75": 0.0}
    records = [step, record] if filled else []
    draw_curves(records, tmp_path / "curves.png", title="a run", target_map=0.3)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (1320, 495)
