import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from rich.console import Console

from common.files import read_json_lines
from common.machine import peak_resident_mb
from data.annotations import ClassMap
from data.coco_json import read_annotations
from data.dataset import DetectionDataset
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import coco_metric
from retinanet.evaluation.output import SplitResult
from retinanet.training.loop import StepResult
from retinanet.training.recorder import Recorder
from retinanet.training.run_folder import RunFolder


@pytest.fixture
def dataset(tmp_path: Path) -> DetectionDataset:
    """Two pictures; ids that are neither counted from 1 nor in order."""
    content = {
        "images": [
            {"id": image_id, "file_name": f"{image_id}.png", "width": 80, "height": 40}
            for image_id in (93, 12)
        ],
        "annotations": [
            {"id": 1, "image_id": 93, "category_id": 44, "bbox": [10, 10, 40, 20]},
            {"id": 2, "image_id": 12, "category_id": 7, "bbox": [0, 0, 30, 30]},
        ],
        "categories": [{"id": 44, "name": "forty-four"}, {"id": 7, "name": "seven"}],
    }
    (tmp_path / "labels.json").write_text(json.dumps(content))
    for image_id in (93, 12):
        Image.new("RGB", (80, 40), (90, 90, 90)).save(tmp_path / f"{image_id}.png")
    annotations = read_annotations(tmp_path / "labels.json")
    classes = ClassMap.contiguous(annotations.category_ids, annotations.category_names)
    return DetectionDataset(annotations, tmp_path, classes, image_size=64, train=False)


def perfect(dataset: DetectionDataset) -> SplitResult:
    annotations = dataset.annotations
    found = [
        ImageDetections(
            image_id=int(image_id),
            boxes=annotations.boxes[annotations.boxes_of(index)],
            scores=np.array([0.75]),
            category_ids=annotations.box_category_ids[annotations.boxes_of(index)],
        )
        for index, image_id in enumerate(annotations.image_ids)
    ]
    detections = SplitDetections.of(found)
    return SplitResult(coco_metric(annotations, detections), detections, seconds=1.0)


def record_in(folder: Path, *, target_map: float | None = None) -> tuple[Recorder, io.StringIO]:
    run = RunFolder(folder / "run")
    for path in (run.pictures, run.evaluations, run.tensorboard):
        path.mkdir(parents=True)
    text = io.StringIO()
    console = Console(file=text, width=200)
    record = Recorder(run, console=console, first_step=0, target_map=target_map)
    return record, text


def test_detections_load_in_pycocotools_with_the_datasets_ids(
    dataset: DetectionDataset, tmp_path: Path
) -> None:
    record, _ = record_in(tmp_path)
    record.evaluation(perfect(dataset), step=6, epoch=1.5)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "labels.json"))
        found = truth.loadRes(str(tmp_path / "run" / "eval" / "step-000006.json"))
    boxes = [
        (box["image_id"], box["category_id"], box["bbox"], box["score"])
        for box in found.dataset["annotations"]
    ]
    assert boxes == [(93, 44, [10, 10, 40, 20], 0.75), (12, 7, [0, 0, 30, 30], 0.75)]


def test_an_evaluation_is_shown_as_a_table_and_noted(
    dataset: DetectionDataset, tmp_path: Path
) -> None:
    record, text = record_in(tmp_path)
    record.evaluation(perfect(dataset), step=6, epoch=1.5)
    shown = text.getvalue()
    assert "after step 6, epoch 1.5" in shown and "mAP50" in shown and "1.000" in shown
    assert "forty-four 1.000" in shown and "seven 1.000" in shown
    [noted] = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert noted["map"] == pytest.approx(1) and noted["epoch"] == 1.5


@pytest.mark.parametrize(("count", "files"), [(0, {"curves.png"}), (2, {"step-000006.png"})])
def test_as_many_pictures_as_asked_for(
    count: int, files: set[str], dataset: DetectionDataset, tmp_path: Path
) -> None:
    record, _ = record_in(tmp_path)
    record.pictures(perfect(dataset), dataset, step=6, count=count)
    names = {file.name for file in (tmp_path / "run" / "pictures").iterdir()}
    assert names == files | {"curves.png"}


def result(step: int, *, classification: float = 1.0, page_faults: int = 0) -> StepResult:
    return StepResult(
        step=step,
        losses={"classification": classification, "bbox_regression": 1.0},
        gradient_norm=2.0,
        learning_rate=0.1,
        images=3,
        seconds=1.5,
        data_seconds=0.1,
        page_faults=page_faults,
        resident_mb=1000.0,
        peak_resident_mb=1200.0,
    )


def test_speed_and_loss_are_means_over_twenty_steps(tmp_path: Path) -> None:
    record, _ = record_in(tmp_path)
    notes = [
        record.step(result(step, classification=10.0 if step == 1 else 1.0), epoch=1)
        for step in range(1, 22)
    ]
    assert notes[0] == "2.00 images/s  loss 11.0000"
    assert notes[19] == "2.00 images/s  loss 2.4500"  # (11 + 19 × 2) / 20
    assert notes[20] == "2.00 images/s  loss 2.0000"


@pytest.mark.parametrize(("reached", "words"), [(True, "reached"), (False, "not reached")])
def test_the_last_words_name_the_end_the_paths_and_the_next_command(
    reached: bool, words: str, tmp_path: Path
) -> None:
    record, text = record_in(tmp_path, target_map=0.34)
    record.closing(is_reached=reached, step=9, best_map=0.25, bad_images=0, example=Path("a.jpg"))
    shown = text.getvalue()
    assert f"finished after 9 steps, target mAP 0.34 {words}, best mAP 0.250" in shown
    best = tmp_path / "run" / "checkpoints" / "best"
    assert f"python -m retinanet predict --checkpoint {best} a.jpg" in shown
    assert str(tmp_path / "run" / "pictures" / "curves.png") in shown


def test_the_last_words_tell_of_memory(tmp_path: Path) -> None:
    record, text = record_in(tmp_path)
    for step, faults in enumerate((90_000, 12, 8, 30), start=1):
        record.step(result(step, page_faults=faults), epoch=1)
    record.closing(is_reached=False, step=4, best_map=None, bad_images=0, example=Path("a.jpg"))
    peak = f"{peak_resident_mb() / 1000:.1f} GB at the peak"
    assert f"{peak}, 21 page faults in the median step" in text.getvalue()


def test_a_resumed_run_without_steps_has_no_median(tmp_path: Path) -> None:
    record, text = record_in(tmp_path)
    record.closing(is_reached=False, step=9, best_map=None, bad_images=0, example=Path("a.jpg"))
    assert "GB at the peak\n" in text.getvalue()
