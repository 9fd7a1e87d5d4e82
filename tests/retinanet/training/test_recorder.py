import contextlib
import io
import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from common.files import read_json_lines
from common.machine import peak_resident_mb
from data.annotations import ClassMap, TrainingRules
from data.coco_json import read_annotations
from data.dataset import DetectionDataset
from retinanet.evaluation.matching import ImageDetections, SplitDetections
from retinanet.evaluation.metric import METRICS, ClassResult, Evaluation, coco_metric
from retinanet.evaluation.output import SplitResult
from retinanet.training.loop import StepResult
from retinanet.training.recorder import MetricsLog, Recorder, drop_later_lines
from retinanet.training.run_folder import RunFolder
from retinanet.training.schedule import Ending
from tests.support.mounts import needs_root, tmpfs
from tests.support.step_results import step_result


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
    rules = TrainingRules(image_size=64)
    return DetectionDataset(annotations, tmp_path, classes, rules, train=False)


def perfect(dataset: DetectionDataset) -> SplitResult:
    annotations = dataset.annotations
    images = [
        ImageDetections(
            image_id=int(image_id),
            boxes=annotations.boxes[annotations.box_slice(index)],
            scores=np.array([0.75]),
            category_ids=annotations.box_category_ids[annotations.box_slice(index)],
        )
        for index, image_id in enumerate(annotations.image_ids)
    ]
    detections = SplitDetections.from_images(images)
    return SplitResult(coco_metric(annotations, detections), detections, seconds=1.0)


def make_recorder(folder: Path, *, target_map: float | None = None) -> tuple[Recorder, io.StringIO]:
    run = RunFolder(folder / "run")
    for path in (run.pictures, run.evaluations, run.tensorboard):
        path.mkdir(parents=True)
    text = io.StringIO()
    console = Console(file=text, width=200)
    return Recorder(run, console=console, first_step=0, target_map=target_map), text


def result(step: int, *, loss: float = 0.5, page_faults: int = 7) -> StepResult:
    return step_result(
        step,
        losses={"classification": loss, "bbox_regression": 0.25},
        gradient_norm=2.5,
        learning_rate=step * 1e-4,
        images=6,
        seconds=1.5,
        page_faults=page_faults,
        resident_mb=1500.5,
        peak_resident_mb=2000.0,
    )


def test_evaluation_is_printed_and_written(dataset: DetectionDataset, tmp_path: Path) -> None:
    recorder, text = make_recorder(tmp_path)
    recorder.evaluation(perfect(dataset), step=6, epoch=1.5)
    output = text.getvalue()
    assert "after step 6, epoch 1.5" in output and "mAP50" in output and "1.000" in output
    assert "forty-four 1.000" in output and "seven 1.000" in output
    [record] = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert record["map"] == pytest.approx(1) and record["epoch"] == 1.5
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "labels.json"))
        result = truth.loadRes(str(tmp_path / "run" / "eval" / "step-000006.json"))
    boxes = [
        (box["image_id"], box["category_id"], box["bbox"], box["score"])
        for box in result.dataset["annotations"]
    ]
    assert boxes == [(93, 44, [10, 10, 40, 20], 0.75), (12, 7, [0, 0, 30, 30], 0.75)]


@pytest.mark.parametrize(("count", "files"), [(0, set[str]()), (2, {"step-000006.png"})])
def test_number_of_pictures(
    count: int, files: set[str], dataset: DetectionDataset, tmp_path: Path
) -> None:
    recorder, _ = make_recorder(tmp_path)
    recorder.pictures(perfect(dataset), dataset, step=6, count=count)
    names = {file.name for file in (tmp_path / "run" / "pictures").iterdir()}
    assert names == files | {"curves.png"}


def test_speed_and_loss_are_means_over_twenty_steps(tmp_path: Path) -> None:
    recorder, _ = make_recorder(tmp_path)
    notes = [
        recorder.step(result(step, loss=10.5 if step == 1 else 1.5), epoch=1)
        for step in range(1, 22)
    ]
    assert notes[0] == "4.00 images/s  loss 10.7500"
    assert notes[19] == "4.00 images/s  loss 2.2000"  # (10.75 + 19 × 1.75) / 20
    assert notes[20] == "4.00 images/s  loss 1.7500"


def close(recorder: Recorder, *, ending: Ending | None, best_map: float | None) -> None:
    example = Path("a.jpg")
    recorder.closing(
        ending=ending, patience=3, step=9, best_map=best_map, bad_images=0, example=example
    )


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("target", "reached"),
        ("length", "not reached"),
        ("patience", "not reached, no better mAP in 3 evaluations (training.patience)"),
        (None, "not reached"),
    ],
)
def test_summary_has_outcome_paths_memory_and_next_command(
    ending: Ending | None, outcome: str, tmp_path: Path
) -> None:
    recorder, text = make_recorder(tmp_path, target_map=0.34)
    for step, faults in enumerate((90_000, 12, 8, 30), start=1):
        recorder.step(result(step, page_faults=faults), epoch=1)
    best = tmp_path / "run" / "checkpoints" / "best"
    best.parent.mkdir()
    best.symlink_to("step-000006")
    close(recorder, ending=ending, best_map=0.25)
    output = text.getvalue()
    assert f"finished after 9 steps, target mAP 0.34 {outcome}, best mAP 0.250" in output
    assert f"best checkpoint  {best} (step-000006)\n" in output
    assert f"retinanet report {tmp_path / 'run'}\n" in output
    assert f"retinanet predict --checkpoint {best} a.jpg" in output
    assert str(tmp_path / "run" / "pictures" / "curves.png") in output
    peak = f"{peak_resident_mb() / 1000:.1f} GB at the peak"
    assert f"{peak}, 21 page faults in the median step" in output


def test_summary_of_a_resumed_run_without_steps_has_no_median(tmp_path: Path) -> None:
    recorder, text = make_recorder(tmp_path)
    close(recorder, ending="length", best_map=None)
    assert "checkpoints/best\n" in text.getvalue()  # no checkpoint is there
    assert "GB at the peak\n" in text.getvalue()


@contextmanager
def open_log(folder: Path, *, resumed_step: int = 0) -> Iterator[MetricsLog]:
    log = MetricsLog(folder / "metrics.jsonl", folder / "tensorboard", resumed_step=resumed_step)
    try:
        yield log
    finally:
        log.close()


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_step_is_one_line_that_is_written_at_once(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.step(result(3), epoch=0.123456)
        [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "kind": "step",
        "step": 3,
        "epoch": 0.1235,
        "loss": 0.75,
        "classification": 0.5,
        "bbox_regression": 0.25,
        "gradient_norm": 2.5,
        "learning_rate": pytest.approx(3e-4),
        "images": 6,
        "images_per_second": 4.0,
        "seconds": 1.5,
        "data_seconds": 0.5,
        "exchange_seconds": 0.0,
        "page_faults": 7,
        "resident_mb": 1500.5,
        "peak_resident_mb": 2000.0,
    }


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    summary = dict.fromkeys(METRICS, 0.25) | {"map_small": math.nan}
    with open_log(tmp_path) as log:
        for step in (1, 2, 3):
            log.step(result(step, loss=0.5 * step), epoch=0.1)
        log.evaluation(Evaluation(summary, (), {}), step=3, epoch=1.0, seconds=2.0)
        log.picture("validation", np.zeros((4, 6, 3), np.uint8), step=3)
    assert scalars(tmp_path, "train/loss") == [(1, 0.75), (2, 1.25), (3, 1.75)]
    assert scalars(tmp_path, "memory/page_faults") == [(1, 7), (2, 7), (3, 7)]
    assert scalars(tmp_path, "memory/peak_resident_mb")[0] == (1, 2000.0)
    assert scalars(tmp_path, "train/classification") == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert scalars(tmp_path, "evaluation/map") == [(3, 0.25)]
    with pytest.raises(KeyError):
        scalars(tmp_path, "evaluation/map_small")


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    summary = dict.fromkeys(METRICS, 0.5) | {"map_small": math.nan}
    with open_log(tmp_path) as log:
        cat = ClassResult(
            category_id=1,
            name="cat",
            map=0.5,
            map_50=0.5,
            map_75=0.5,
            mar_100=0.5,
            true_boxes=1,
            found_boxes=1,
        )
        log.evaluation(Evaluation(summary, (cat,), {}), step=4, epoch=1, seconds=2.0)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    record = json.loads(text)
    assert record["map_small"] is None and record["map"] == 0.5
    assert record["per_class"] == {"cat": 0.5} and record["kind"] == "evaluation"


def test_resumed_log_replaces_later_lines(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for step in range(1, 6):
            log.step(result(step), epoch=0.1)
    # TensorBoard orders files by the second in their names, then as text: 10 before 9.
    time.sleep(1 - time.time() % 1)
    with open_log(tmp_path, resumed_step=3) as log:
        for step in range(4, 7):
            log.step(result(step, loss=9.0), epoch=0.1)
    records = read_json_lines(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["classification"] for record in records] == [0.5] * 3 + [9.0] * 3
    # TensorBoard's reader drops what a later file purges
    assert [step for step, _ in scalars(tmp_path, "train/loss")] == [1, 2, 3, 4, 5, 6]


def test_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    drop_later_lines(file, step=3)
    assert read_json_lines(file) == [] and not file.exists()
    file.write_text('{"kind": "step", "step": 1}\n{"kind": "step", "st')
    assert read_json_lines(file) == [{"kind": "step", "step": 1}]
    drop_later_lines(file, step=10)
    assert file.read_text() == '{"kind": "step", "step": 1}\n'


@needs_root
def test_lines_wait_until_a_full_disk_has_space(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=256k") as disk:
        log = MetricsLog(disk / "metrics.jsonl", disk / "tensorboard")
        log.step(result(1), epoch=0)
        with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space"):
            ballast.write(bytes(1_000_000))
        failures = 0
        for step in range(2, 40):
            try:
                log.step(result(step), epoch=0)
            except OSError:
                failures += 1
        assert failures > 0
        shutil.copy(disk / "metrics.jsonl", tmp_path / "while-full")
        (disk / "ballast").unlink()
        log.step(result(40), epoch=0)
        log.close()
        *lines, _ = (tmp_path / "while-full").read_bytes().split(b"\n")
        assert all(line.endswith(b"}") for line in lines)
        records = read_json_lines(disk / "metrics.jsonl")
        assert [record["step"] for record in records] == list(range(1, 41))
