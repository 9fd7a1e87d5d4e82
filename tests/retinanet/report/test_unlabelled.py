"""`retinanet report --unlabelled`: which pictures of a folder are proposed, and why."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retinanet.__main__ import main
from retinanet.detector import Detector
from retinanet.evaluation.matching import ImageDetections
from retinanet.evaluation.metric import coco_metric
from tests.retinanet.report.samples import predictions, split, write_split
from tests.retinanet.report.test_report_command import (
    IDS,
    LEFT,
    LOW,
    ONE,
    TWO,
    keep,
    write_config,
    write_records,
)
from tests.support.commands import RunHere, error_line
from tests.support.random_detectors import NAMES

pytestmark = pytest.mark.slow
SIZE = (200, 100)
THREE = IDS[2]
VALIDATION = split([(ONE, LEFT)], [(TWO, LEFT)], [(THREE, LEFT)], names=NAMES, ids=IDS)
FOUND = predictions(*[[(number, LEFT, 0.9), (number, LOW, 0.1)] for number in IDS])
"""Boxes of 0.9 are right and those of 0.1 wrong: all thresholds are 0.5."""
TRAINED = split(*[[(ONE, LEFT), (TWO, LEFT)]] * 11, [(THREE, LEFT)], names=NAMES, ids=IDS)
"""One class has a single object of 23."""
BOXES = {
    "sure": [(ONE, 0.95), (TWO, 0.93)],
    "blank": [],
    "unsure": [(ONE, 0.52), (ONE, 0.47), (TWO, 0.06)],
    "copy of unsure": [(ONE, 0.51)],
    "less unsure": [(TWO, 0.7), (TWO, 0.06)],
    "rare": [(ONE, 0.97), (THREE, 0.9)],
    "rarely": [(THREE, 0.05)],
    "night": [],
    "labelled": [(ONE, 0.5), (THREE, 0.5)],
}
"""The detector's boxes in each picture: class and score."""


def grass(seed: int, *, colours: int) -> Image.Image:
    """A picture like those of the training: green with some noise, and more or less of it."""
    random = np.random.default_rng(seed)
    noise = random.integers(-30, 31, (SIZE[1], SIZE[0], 3))
    green = np.array((90, 140, 70)) + random.integers(-colours, colours + 1, 3)
    return Image.fromarray(np.uint8(np.clip(noise + green, 0, 255)))


def write_pictures(folder: Path) -> None:
    folder.mkdir()
    for seed, name in enumerate(BOXES):
        picture = grass(100 + seed, colours=5)
        if name == "copy of unsure":
            picture = grass(100 + seed - 1, colours=5)
        if name == "night":
            picture = Image.new("RGB", SIZE, (10, 10, 30))
            picture.paste((255, 255, 240), (20, 20, 90, 80))
        # The detector of this test knows the pictures by their first pixel.
        picture.putpixel((0, 0), (seed, 0, 0))
        picture.save(folder / f"{name}.png")


def detect(self: Detector, pictures: Any, *, least_score: float) -> list[ImageDetections]:
    found = [list(BOXES.values())[int(pixels[0, 0, 0])] for pixels in pictures]
    return [
        ImageDetections(
            image_id=0,
            boxes=np.array([LEFT] * len(boxes), float).reshape(-1, 4),
            scores=np.array([score for _, score in boxes if score >= least_score]),
            category_ids=np.array([number for number, _ in boxes], np.int64),
        )
        for boxes in found
    ]


@pytest.fixture
def run(detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with kept detections and training images."""
    run = tmp_path / "run"
    best = run / "checkpoints" / "best"
    best.mkdir(parents=True)
    shutil.copy(detector / "state.json", best)
    (best / "model.safetensors").symlink_to(detector / "model.safetensors")
    write_config(run)
    for name, annotations in (("validation", VALIDATION), ("train", TRAINED)):
        write_split(run / "scenes" / name, annotations)
        for seed, file in enumerate(annotations.file_names):
            grass(seed, colours=20).save(run / "scenes" / name / "data" / file)
    keep(run, FOUND)
    write_records(run, last_map=coco_metric(VALIDATION, FOUND).map)
    monkeypatch.setattr(Detector, "detect", detect)
    return run


def test_reasons_take_turns(run: Path, tmp_path: Path, run_here: RunHere) -> None:
    write_pictures(tmp_path / "new")
    trained = run / "scenes" / "train" / "data" / "0.png"
    trained.unlink()
    trained.symlink_to(tmp_path / "new" / "labelled.png")
    (tmp_path / "new" / "damaged.png").write_bytes(b"no picture")
    numbers = tmp_path / "numbers.json"
    done = run_here(main, "report", run, "--unlabelled", tmp_path / "new", "--json", numbers)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    listed = [Path(line).stem for line in (run / "report.next.txt").read_text().splitlines()]
    assert listed == ["unsure", "rare", "night", "less unsure"]
    assert f"Label next: 4 of 8 pictures, listed in {run}/report.next.txt" in done.stdout
    assert "left out: " in done.stdout and "damaged.png" in done.stdout
    content = json.loads(numbers.read_text())["label_next"]
    assert [each["reason"] for each in content] == ["uncertain", "rare", "unlike", "uncertain"]
    assert content[0]["evidence"] == "2 unsure boxes: one 0.52, threshold 0.5"
    assert content[1]["evidence"] == "perhaps three 0.90; 1 of its objects are labelled"
    assert "times as far from the nearest training picture" in content[2]["evidence"]
    page = (run / "report.html").read_text("utf-8")
    assert "Which pictures to label next" in page and page.count("unsure.png") >= 2
    arguments = ("report", run, "--unlabelled", tmp_path / "new", "--next", "2")
    line = error_line(run_here(main, *arguments))
    assert f"{run}/report.html: exists; give --overwrite" in line
    done = run_here(main, *arguments, "--overwrite")
    assert done.returncode == 0 and "2 of 8 pictures" in done.stdout
    assert (run / "report.next.txt").read_text().count("\n") == 2


def test_folder_without_other_pictures_is_refused(run: Path, run_here: RunHere) -> None:
    folder = run / "scenes" / "train" / "data"
    line = error_line(run_here(main, "report", run, "--unlabelled", folder))
    assert line == f"error: {folder}: no picture without labels; give a folder that has some"
    assert not (run / "report.html").exists()
    line = error_line(run_here(main, "report", run, "--unlabelled", folder / "0.png"))
    assert line == f"error: --unlabelled: {folder / '0.png'} is not a folder"


def test_without_the_training_pictures_only_doubt_counts(
    run: Path, tmp_path: Path, run_here: RunHere
) -> None:
    write_pictures(tmp_path / "new")
    shutil.rmtree(run / "scenes" / "train")
    done = run_here(main, "report", run, "--unlabelled", tmp_path / "new")
    assert (done.returncode, done.stderr) == (0, "")
    listed = [Path(line).stem for line in (run / "report.next.txt").read_text().splitlines()]
    assert listed == ["labelled", "unsure", "copy of unsure", "less unsure"]
