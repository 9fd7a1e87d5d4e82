"""`retinanet learn`: from photos and labels in three formats to a detector and its page."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

from common.console import make_console
from common.errors import FINISHED, INTERRUPTED, STOPPED_BY_SIGNAL
from common.locks import FileLock, LockHeldError
from data.annotations import Annotations
from data.coco_json import read_annotations
from data.formats.convert import write_annotations
from data.formats.labels import LabelOptions
from retinanet.__main__ import main
from retinanet.config_file import load_config
from retinanet.learn import choose_start, prepare, read_photos
from retinanet.learn_command import LearnOptions
from retinanet.training.checkpoint import read_checkpoint
from retinanet.training.published import COCO, IMAGENET, cached_file, published_weights
from tests.data.formats.written import random_annotations, write_photos, write_voc, write_yolo
from tests.support.commands import RunHere, error_line, error_message, run_program, start_program
from tests.support.training_runs import wait_for_steps

IMAGES = 12


def one_class(images: int = IMAGES) -> Annotations:
    """Return images with a large box each, all of one class."""
    drawn = random_annotations(images=images, boxes=images, names=("Cat",))
    box = np.array([16.0, 8.0, 80.0, 56.0])
    return replace(
        drawn,
        box_offsets=np.arange(images + 1),
        boxes=np.tile(box, (images, 1)),
        box_areas=np.full(images, 64.0 * 48.0),
    )


def write_yolo_set(folder: Path, images: int = IMAGES) -> None:
    write_photos(folder / "images" / "train", one_class(images))
    write_yolo(folder, one_class(images))
    (folder / "classes.txt").write_text("Cat\n")


def write_voc_set(folder: Path) -> None:
    write_photos(folder / "JPEGImages", one_class())
    write_voc(folder, one_class())


def write_coco_set(folder: Path) -> None:
    write_photos(folder / "images", one_class())
    write_annotations(folder / "result.json", one_class(), console=make_console(quiet=True))


@pytest.mark.parametrize("write", [write_yolo_set, write_voc_set, write_coco_set])
def test_each_format_is_read_and_divided(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "photos")
    options = LearnOptions(labels=LabelOptions(source=tmp_path / "photos"))
    splits = read_photos(options, tmp_path / "out", make_console(quiet=True))
    parts = {name: read_annotations(split.annotations) for name, split in splits.items()}
    assert {name: len(part) for name, part in parts.items()} == {"train": 10, "validation": 2}
    for name, part in parts.items():
        assert part.category_names == ("Cat",) and len(part.boxes) == len(part)
        assert all((splits[name].images / file).is_file() for file in part.file_names)


def test_name_of_a_file_that_says_nothing_is_no_format(tmp_path: Path) -> None:
    write_coco_set(tmp_path)
    labels = (tmp_path / "result.json").rename(tmp_path / "labels.coco")
    options = LearnOptions(labels=LabelOptions(source=labels))
    assert set(read_photos(options, tmp_path / "out", make_console(quiet=True)))


@pytest.fixture(scope="module")
def photos(root: Path) -> Path:
    write_yolo_set(root / "my photos")
    return root / "my photos"


@pytest.fixture(scope="module")
def learned(root: Path, photos: Path) -> tuple[Path, CompletedProcess[str]]:
    """The folder and the output of a call with time for a step at most."""
    command = (sys.executable, "-m", "retinanet", "learn", photos, "--out", root / "out")
    return root / "out", run_program(*command, "--hours", "1e-5")


@pytest.mark.slow
def test_photos_become_a_detector_and_a_page(
    learned: tuple[Path, CompletedProcess[str]], photos: Path
) -> None:
    out, done = learned
    assert done.returncode == FINISHED, done.stderr
    file = out / "my-photos.yaml"
    assert file.read_text() in done.stdout and "random numbers" in done.stdout
    config = load_config(str(file))
    # A step takes longer than the time that was given.
    assert config.training.max_steps == config.training.epochs == 1
    assert config.data.image_size == 128 and config.training.batch_size == 8
    checkpoint = read_checkpoint(out / "detector")
    assert checkpoint.position.step == 1 and checkpoint.model.num_classes == 1
    assert (out / "detector" / "report.html").is_file()
    assert sorted(path.name for path in out.iterdir()) == [
        *("all.json", "all.json.index", "detector", "divided", "my-photos.yaml"),
    ]
    assert sorted(path.name for path in photos.iterdir()) == ["classes.txt", "images", "labels"]


@pytest.mark.slow
def test_second_call_goes_on_and_another_one_is_refused(
    learned: tuple[Path, CompletedProcess[str]], photos: Path, run_here: RunHere
) -> None:
    out, _ = learned
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    command = ("learn", photos, "--out", out, "--hours")
    done = run_here(main, *command, "1e-5")
    assert done.returncode == FINISHED and "goes on with it" in done.stdout, done.stderr
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert after == before
    line = error_line(run_here(main, *command, "3"))
    assert line.startswith(f"error: {out}/my-photos.yaml: not of ") and "hours 3.0" in line


@pytest.mark.slow
def test_ctrl_c_in_training_leaves_what_the_same_command_goes_on_with(
    learned: tuple[Path, CompletedProcess[str]], photos: Path, tmp_path: Path, run_here: RunHere
) -> None:
    out = tmp_path / "out"
    shutil.copytree(learned[0], out, ignore=shutil.ignore_patterns("detector"))
    file = out / "my-photos.yaml"
    text = file.read_text().replace(f'"{learned[0].parent}/out"', f'"{out}"')
    text = text.replace("epochs: 1 ", "epochs: 6 ").replace("max_steps: 1", "max_steps: null")
    file.write_text(text.replace("every: 1", "every: 6"))
    command = ("learn", photos, "--out", out, "--hours", "1e-5")
    job = start_program(sys.executable, "-m", "retinanet", *command)
    wait_for_steps(out / "detector", job, count=2)
    second = run_here(main, *command)
    assert error_line(second).startswith(f"error: --out: {out}: another learn is running in")
    job.send_signal(signal.SIGINT)
    stdout, stderr = job.communicate()
    assert job.returncode == STOPPED_BY_SIGNAL, stderr
    assert stdout.endswith("or repeat this command, which goes on from there\n")
    assert 2 <= read_checkpoint(out / "detector").position.step < 6
    begun = (out / "detector" / "metrics.jsonl").read_text()
    done = run_here(main, *command)
    assert done.returncode == FINISHED, done.stderr
    assert (out / "detector" / "metrics.jsonl").read_text().startswith(begun)
    assert read_checkpoint(out / "detector").position.step == 6


@pytest.mark.slow
def test_ctrl_c_in_preparation_leaves_nothing(
    photos: Path, tmp_path: Path, run_here: RunHere
) -> None:
    out = tmp_path / "new" / "out"
    job = start_program(sys.executable, "-m", "retinanet", "learn", photos, "--out", out)
    assert job.stdout is not None
    assert any("measuring" in line for line in job.stdout)
    second = run_here(main, "learn", photos, "--out", out)
    assert error_line(second).startswith(f"error: --out: {out}: another learn is running in")
    job.send_signal(signal.SIGINT)
    _, stderr = job.communicate()
    assert job.returncode == INTERRUPTED, stderr
    assert list(tmp_path.iterdir()) == []


def make_nothing(folder: Path) -> None:
    folder.mkdir()


def remove_labels(folder: Path) -> None:
    write_yolo_set(folder)
    shutil.rmtree(folder / "labels")


def remove_photos(folder: Path) -> None:
    write_coco_set(folder)
    shutil.rmtree(folder / "images")


def write_two_formats(folder: Path) -> None:
    write_voc_set(folder)
    write_coco_set(folder)


def damage_photo(folder: Path) -> None:
    write_coco_set(folder)
    photo = folder / "images" / "part 1" / "003.jpg"
    photo.write_bytes(photo.read_bytes()[:200])


def write_labelme_set(folder: Path) -> None:
    write_photos(folder, one_class())
    shape = {"label": "Cat", "points": [[16, 8], [80, 56]], "shape_type": "rectangle"}
    for photo in folder.rglob("*.jpg"):
        content = {"version": "5.5.0", "flags": {}, "shapes": [shape], "imagePath": photo.name}
        photo.with_suffix(".json").write_text(json.dumps(content))


def write_one_photo(folder: Path) -> None:
    write_yolo_set(folder, images=1)


def write_wrong_line(folder: Path) -> None:
    write_yolo_set(folder)
    (folder / "labels" / "train" / "part 1" / "003.txt").write_text("0 0.5 1.5 0.2 0.2\n")


def write_boxes(folder: Path, count: int) -> None:
    some = one_class().select(boxes=np.arange(IMAGES) < count)
    write_photos(folder / "images", some)
    write_annotations(folder / "result.json", some, console=make_console(quiet=True))


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (make_nothing, ("photos: ", "data.yaml", "XML", "JSON")),
        (
            remove_labels,
            (
                "error: as yolo: ",
                "photos/images/train/part 0/000.jpg: no image has a file of labels",
            ),
        ),
        (remove_photos, ("result.json: images[0].file_name", "'part 0/000.jpg'")),
        (write_two_formats, ("photos: has labels of voc and coco", "--from")),
        (damage_photo, ("photos/images: image_damaged: 1, first images[", "part 1/003.jpg")),
        (
            write_labelme_set,
            (
                "error: as coco: ",
                "000.json: this is labelme's format, a file for each photo",
                "convert all of them by labelme2coco.py",
            ),
        ),
        (write_one_photo, ("photos: one photo; training and validation need one each",)),
        (
            write_wrong_line,
            ("error: as yolo: ", "003.txt: line 1: y centre: 1.5", "--skip-bad-labels"),
        ),
        (partial(write_boxes, count=0), ("nothing_to_train_on",)),
        (partial(write_boxes, count=1), ("photos/images: no box to validate with",)),
        (lambda folder: None, ("photos: cannot be read: No such file",)),
    ],
)
def test_what_cannot_be_learned_is_refused_in_a_line(
    tmp_path: Path, run_here: RunHere, make: Callable[[Path], None], parts: tuple[str, ...]
) -> None:
    make(tmp_path / "photos")
    line = error_line(run_here(main, "learn", tmp_path / "photos", "--out", tmp_path / "out"))
    assert [part for part in parts if part not in line] == [], line
    assert not (tmp_path / "out").exists()


def test_folder_of_something_else_is_refused(tmp_path: Path, run_here: RunHere) -> None:
    write_yolo_set(tmp_path / "photos")
    (tmp_path / "out").mkdir()
    line = error_line(run_here(main, "learn", tmp_path / "photos", "--out", tmp_path / "out"))
    assert line.startswith(f"error: {tmp_path}/out: exists") and "another --out" in line
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("000.json", "as coco: PHOTOS/000.json: this is labelme's format"),
        ("000.xml", "as voc: PHOTOS/000.xml: is not a folder; expected one with Annotations/"),
        ("classes.txt", "as yolo: PHOTOS/000.jpg: no image has a file of labels"),
    ],
)
def test_faults_of_a_file_are_those_of_the_format_of_its_name(
    tmp_path: Path, run_here: RunHere, name: str, begin: str
) -> None:
    write_labelme_set(tmp_path)
    photos = tmp_path / "part 0"
    for other in ("000.xml", "classes.txt"):
        (photos / other).write_text("Cat\n")
    line = error_line(run_here(main, "learn", photos / name, "--out", tmp_path / "out"))
    assert line.startswith("error: " + begin.replace("PHOTOS", str(photos))), line
    assert "; as " not in line


@pytest.mark.parametrize("name", ["all.json", "my-photos.yaml"])
def test_folder_of_a_call_that_began_first_stays(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    take, file = FileLock.take, tmp_path / "out" / name

    def take_after_another(lock: FileLock) -> None:
        file.write_text("of another call\n")
        if name == "all.json":  # it still prepares its run
            raise LockHeldError
        take(lock)

    monkeypatch.setattr(FileLock, "take", take_after_another)
    make_nothing(tmp_path / "photos")
    line = error_line(run_here(main, "learn", tmp_path / "photos", "--out", tmp_path / "out"))
    assert ("another learn is running" if name == "all.json" else f"{name}: not of ") in line
    assert file.read_text() == "of another call\n"


def test_start_is_the_best_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert choose_start(None)[0] == {"norm": "batch", "trainable_layers": 5}
    assert choose_start("torchvision")[0] == {"weights": "torchvision"}
    assert error_message(choose_start, "none").startswith("--weights: none does not exist")
    for name, data, settings in (
        ("resnext50_32x4d", IMAGENET, {"pretrained_backbone": "torchvision"}),
        ("retinanet_resnet50_fpn", COCO, {"weights": "retinanet_resnet50_fpn"}),
        ("retinanet_resnet50_fpn_v2", COCO, {"weights": "retinanet_resnet50_fpn_v2"}),
    ):
        file = cached_file(published_weights(name, data))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        assert choose_start(None)[0] == settings


@pytest.mark.slow
def test_start_from_a_run_keeps_the_shape_of_the_photos(
    learned: tuple[Path, CompletedProcess[str]],
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retinanet.learn.measure_steps", lambda file: (0.5, 2))
    run, file = learned[0] / "detector", tmp_path / "out" / "my-photos.yaml"
    labels = LabelOptions(source=photos)
    options = LearnOptions(labels=labels, hours=1e-5, weights=str(run))
    prepare(options, file, "made by a test", make_console(quiet=True))
    config = load_config(str(file))
    assert config.model.weights == str(run) and config.model.norm == "frozen"
    assert config.model.backbone == "resnext50_32x4d" and config.model.variant == "v1"
    assert config.data.resize == "letterbox" and config.data.image_size == (96, 128)
