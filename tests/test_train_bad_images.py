"""Training on a data set with images that cannot be read."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.data.samples import write_json
from tests.launch.ranks import TrainHere
from tests.support.commands import run_program
from tests.support.fast_precision import FAST_PRECISION
from tests.support.training_runs import read_records

pytestmark = pytest.mark.slow

NUM_IMAGES = 4


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return a COCO folder with 4 images, all for training, the first two also for validation."""
    folder = tmp_path / "coco"
    for split, count in (("train2017", NUM_IMAGES), ("val2017", 2)):
        (folder / split).mkdir(parents=True)
        names = [f"{index}.png" for index in range(count)]
        for index, name in enumerate(names):
            Image.new("RGB", (64, 64), (30 * index, 80, 120)).save(folder / split / name)
        content = {
            "images": [
                {"id": index, "file_name": name, "width": 64, "height": 64}
                for index, name in enumerate(names)
            ],
            "annotations": [
                {"id": index, "image_id": index, "category_id": 1, "bbox": [9, 9, 30, 30]}
                for index in range(count)
            ],
            "categories": [{"id": 1, "name": "one"}],
        }
        (folder / "annotations").mkdir(exist_ok=True)
        write_json(folder / "annotations" / f"instances_{split}.json", content)
    return folder


def settings_in(dataset: Path, *changes: str) -> list[str]:
    return [
        *("--config", "coco.yaml", f"data.root={dataset}"),
        *(f"run.root={dataset.parent / 'runs'}", "run.name=bad", "data.image_size=64"),
        *("data.class_indices=contiguous", "model.num_classes=null", "model.norm=batch"),
        *("model.trainable_layers=5", "model.pretrained_backbone=null", "training.batch_size=2"),
        *("training.epochs=2", "evaluation.every=2", "evaluation.pictures=0", *changes),
        "training.optimizer=sgd",
        *("launch.threads=1", f"engine.precision={FAST_PRECISION}"),
    ]


def records(dataset: Path, kind: str) -> list[dict[str, Any]]:
    return read_records(dataset.parent / "runs" / "bad", kind=kind)


@pytest.fixture
def clean_up(dataset: Path) -> object:
    yield
    shutil.rmtree(dataset.parent / "runs", ignore_errors=True)  # a checkpoint has 400 MB


@pytest.mark.usefixtures("clean_up")
def test_bad_images_are_replaced_and_recorded_once(dataset: Path, train_here: TrainHere) -> None:
    bad = dataset / "train2017" / "3.png"
    bad.write_bytes(bad.read_bytes()[:80])
    (dataset / "val2017" / "1.png").unlink()
    done = train_here(*settings_in(dataset, "data.on_bad_image=skip"))
    assert done.code == 0, done.errors
    assert done.output.count(f"{bad}: damaged image") == 1
    assert "another image is used instead" in done.output
    assert "1.png: no such image file" in done.output
    assert "evaluated as an image without detections" in done.output
    assert len(records(dataset, "bad_image")) == 2
    assert "2 could not be read, see metrics" in done.output
    assert len(records(dataset, "step")) == NUM_IMAGES


@pytest.mark.usefixtures("clean_up")
def test_bad_image_stops_the_run_which_resumes_after_repair(
    dataset: Path, train_here: TrainHere
) -> None:
    bad = dataset / "val2017" / "1.png"
    content = bad.read_bytes()
    bad.write_bytes(content[:80])
    done = train_here(*settings_in(dataset))
    assert done.code == 2
    (line,) = done.errors.splitlines()
    assert line.startswith(f"error: {bad}: damaged image") and line.endswith("--resume")
    assert len(records(dataset, "step")) == NUM_IMAGES
    bad.write_bytes(content)
    done = train_here(*settings_in(dataset, "--resume"))
    assert done.code == 0, done.errors
    assert len(records(dataset, "step")) == NUM_IMAGES
    assert len(records(dataset, "evaluation")) == 1


@pytest.mark.exhaustive
@pytest.mark.usefixtures("clean_up")
def test_more_bad_images_than_the_limit_end_the_run(dataset: Path, train_here: TrainHere) -> None:
    for index in range(NUM_IMAGES - 1):
        (dataset / "train2017" / f"{index}.png").write_bytes(b"no image")
    done = train_here(*settings_in(dataset, "data.on_bad_image=skip", "data.bad_image_limit=2"))
    assert done.code == 2
    (line,) = done.errors.splitlines()
    assert "more than data.bad_image_limit=2 images could not be read" in line
    assert "retinanet data verify" in line


@pytest.mark.exhaustive
@pytest.mark.usefixtures("clean_up")
@pytest.mark.whole_machine
def test_reserved_core_loads_images(dataset: Path) -> None:
    arguments = settings_in(dataset, "data.reserve_cores=1")
    done = run_program(sys.executable, "train.py", *arguments, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(records(dataset, "step")) == NUM_IMAGES
