import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.errors import InputError
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import METRICS, ClassResult, Evaluation
from retinanet.evaluation.output import (
    BOXES_AT_ONCE,
    SplitResult,
    classes_as_csv,
    detections_as_json,
    evaluation_files,
    write_evaluation,
)


def class_result(number: int, *, name: str, precision: float) -> ClassResult:
    return ClassResult(
        category_id=number,
        name=name,
        map=precision,
        map_50=precision,
        map_75=precision,
        mar_100=precision,
        true_boxes=0 if math.isnan(precision) else 7,
        found_boxes=9,
    )


def evaluation_of(*classes: ClassResult) -> Evaluation:
    curves = {"0.50": np.linspace(1, 0, 101), "0.75": np.full(101, math.nan)}
    return Evaluation(dict.fromkeys(METRICS, 0.5), classes, curves)


def detections_of(count: int) -> SplitDetections:
    return SplitDetections(
        image_ids=np.arange(count) + 5,
        boxes=np.tile(np.array([[10, 20, 30, 50]], np.float32), (count, 1)),
        scores=np.full(count, 0.25, np.float32),
        category_ids=np.full(count, 44),
    )


@pytest.mark.parametrize("count", [0, 1, BOXES_AT_ONCE, BOXES_AT_ONCE + 1])
def test_boxes_written_in_pieces_are_one_list_in_cocos_format(count: int) -> None:
    boxes = json.loads(b"".join(detections_as_json(detections_of(count))))
    assert len(boxes) == count
    for number in (0, count - 1) if count else ():
        box = [10.0, 20.0, 20.0, 30.0]
        expected = {"image_id": number + 5, "category_id": 44, "bbox": box, "score": 0.25}
        assert boxes[number] == expected


def test_a_class_that_could_not_be_measured_is_empty_in_the_table() -> None:
    measured = class_result(3, name="Tree, tall", precision=1 / 3)
    text = classes_as_csv(evaluation_of(measured, class_result(4, name="Cat", precision=math.nan)))
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["name"], first["map"], first["true_boxes"]) == ("Tree, tall", "0.333333", "7")
    assert (second["map"], second["mar_100"], second["found_boxes"]) == ("", "", "9")


def test_a_name_from_outside_is_no_formula_in_a_spreadsheet() -> None:
    hostile = class_result(3, name="=HYPERLINK(A1)\x1b[2J", precision=0.5)
    [row] = csv.DictReader(io.StringIO(classes_as_csv(evaluation_of(hostile))))
    assert row["name"] == "'=HYPERLINK(A1)�[2J"


@pytest.mark.parametrize("classes", [0, 3, 264])
def test_boxes_classes_and_chart_lie_beside_each_other(classes: int, tmp_path: Path) -> None:
    results = [
        class_result(number, name=f"$class_{number}^", precision=number / 264)
        for number in range(classes)
    ]
    result = SplitResult(evaluation_of(*results), detections_of(2), seconds=1.0)
    write_evaluation(result, tmp_path / "eval", name="step-000006")
    files = evaluation_files(tmp_path / "eval", name="step-000006")
    assert sorted(files) == sorted((tmp_path / "eval").iterdir())
    with Image.open(files[2]) as chart:
        assert chart.format == "PNG" and chart.width > 1000 and chart.height < 2000


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "eval").write_text("")
    result = SplitResult(evaluation_of(), detections_of(0), seconds=1.0)
    with pytest.raises(InputError, match=r"eval/step\.json: cannot be written"):
        write_evaluation(result, tmp_path / "eval", name="step")


def test_an_images_detections_are_found_wherever_they_lie() -> None:
    def image(image_id: int, *scores: float) -> ImageDetections:
        boxes = np.tile([1.0, 2.0, 3.0, 4.0], (len(scores), 1))
        return ImageDetections(image_id, boxes, np.array(scores), np.full(len(scores), 4))

    found = SplitDetections.of([image(93, 0.75, 0.5), image(12), image(7, 0.25)])
    assert found.of_image(93).scores.tolist() == [0.75, 0.5]
    assert found.of_image(12).scores.tolist() == found.of_image(1).scores.tolist() == []
    assert found.of_image(7).boxes.tolist() == [[1, 2, 3, 4]]
