"""`retinanet data convert --from`, from files of other programs to what training reads."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import data.formats.convert
from common.console import make_console
from data.__main__ import main
from data.annotations import Annotations, TextColumn
from data.coco_json import read_annotations
from data.decoding import decode_annotated, decode_image
from data.formats.convert import write_annotations
from data.index import open_annotations
from retinanet.config_file import load_config
from tests.data.formats.written import (
    NAMES,
    random_annotations,
    write_data_yaml,
    write_photos,
    write_voc,
    write_yolo,
)
from tests.data.samples import assert_same_annotations
from tests.support.commands import RunHere, error_line, start_program


def yolo_set(folder: Path, *, images: int = 12, boxes: int = 30) -> Path:
    for split, seed in (("train", 0), ("val", 1)):
        annotations = random_annotations(images=images, boxes=boxes, seed=seed)
        write_photos(folder / "images" / split, annotations)
        write_yolo(folder, annotations, split=split)
    return write_data_yaml(folder, NAMES, train="images/train", val="images/val")


def test_both_splits_are_written_with_findings_and_the_next_command(
    tmp_path: Path, run_here: RunHere
) -> None:
    out = tmp_path / "out"
    done = run_here(main, "convert", yolo_set(tmp_path / "set"), "--from", "yolo", "--out", out)
    assert done.returncode == 0, done.stderr
    for name in ("train", "validation"):
        opened = open_annotations(out / f"{name}.json")
        assert_same_annotations(opened, read_annotations(out / f"{name}.json"))
        assert f"{name}: {out}/{name}.json, images in {tmp_path}/set/images/" in done.stdout
    assert done.stdout.count("12 images, 30 boxes (0 of crowds), 3 classes") == 2
    assert done.stdout.splitlines()[-1].endswith(f"data verify --config {out}/my-photos.yaml")
    config = load_config(str(out / "my-photos.yaml"))
    assert config.data.validation_images == tmp_path / "set" / "images" / "val"
    assert (config.data.class_indices, config.model.num_classes) == ("contiguous", None)
    assert not (out / "images").exists()
    words = done.stdout.splitlines()[-1].split()
    done = run_here(main, *words[words.index("verify") :])
    assert done.returncode == 0 and "nothing stops training" in done.stdout


def test_configuration_works_elsewhere_and_is_not_replaced(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    yolo_set(tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    convert = ("convert", "set", "--from", "yolo", "--out", "my out", "--overwrite")
    assert run_here(main, *convert).returncode == 0
    file = tmp_path / "my out" / "my-photos.yaml"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    done = run_here(main, "verify", "--config", file)
    assert done.returncode == 0 and "nothing stops training" in done.stdout
    file.write_text("run:\n  seed: 7\n")
    monkeypatch.chdir(tmp_path)
    done = run_here(main, *convert)
    assert "my-photos.yaml exists and stays as it is" in done.stdout
    assert file.read_text() == "run:\n  seed: 7\n"


def test_findings_are_those_of_verify(tmp_path: Path, run_here: RunHere) -> None:
    source = yolo_set(tmp_path / "set")
    labels = next((tmp_path / "set" / "labels" / "val").rglob("*.txt"))
    line = "0 0.5 0.5 0.25 0.5"
    labels.write_text(f"{line}\n{line}\n0 0.5 0.5 0 0.1\n0 1 0.5 0.5 0.5\n")
    done = run_here(main, "convert", source, "--from", "yolo", "--out", tmp_path / "out")
    assert done.returncode == 0
    validation = done.stdout[done.stdout.index("validation: ") :]
    for name in ("box_zero_size", "box_partly_outside", "box_duplicate"):
        assert f"{name} " in validation, name


def test_one_folder_for_both_splits_is_noted(tmp_path: Path, run_here: RunHere) -> None:
    """As in the description of COCO128 that Ultralytics publishes."""
    yolo_set(tmp_path / "set")
    source = write_data_yaml(tmp_path / "set", NAMES, train="images/train", val="images/train")
    done = run_here(main, "convert", source, "--from", "yolo", "--out", tmp_path / "out")
    assert done.returncode == 0 and "image_in_both_splits  12  note" in done.stdout
    assert "12 of 12 validation images are training images too" in done.stdout


def test_labels_without_splits_are_divided_next(tmp_path: Path, run_here: RunHere) -> None:
    annotations = random_annotations(images=10, boxes=30)
    write_photos(tmp_path / "set" / "images", annotations)
    write_yolo(tmp_path / "set", annotations, split="")
    (tmp_path / "set" / "classes.txt").write_text("\n".join(NAMES), encoding="utf-8")
    out = tmp_path / "out"
    done = run_here(main, "convert", tmp_path / "set", "--from", "yolo", "--out", out)
    assert done.returncode == 0 and (out / "all.json").is_file()
    words = done.stdout.splitlines()[-1].split()
    done = run_here(main, *words[words.index("split") :])
    assert done.returncode == 0 and len(read_annotations(out / "train.json")) == 8


def test_split_shortens_names_of_another_machine(tmp_path: Path, run_here: RunHere) -> None:
    annotations = random_annotations(images=10, boxes=30)
    write_photos(tmp_path / "set" / "images", annotations)
    names = [f"../../studio/upload/{name}" for name in annotations.file_names]
    export = tmp_path / "set" / "result.json"
    foreign = replace(annotations, file_names=TextColumn.of(names))
    write_annotations(export, foreign, console=Console(file=io.StringIO()))
    for place, options in enumerate([(), ("--images", tmp_path / "set" / "images")]):
        out = tmp_path / f"out{place}"
        done = run_here(main, "split", export, "--out", out, *options)
        assert done.returncode == 0, done.stderr
        assert "note: file names are shortened to the parts that exist" in done.stdout
        found = [*read_annotations(out / "train.json").file_names]
        found += read_annotations(out / "validation.json").file_names
        assert sorted(found) == sorted(annotations.file_names)
    refused = run_here(main, "split", export, "--out", tmp_path / "no", "--images", out)
    assert f"is not in {out}" in error_line(refused)


def test_images_are_copied_if_asked(tmp_path: Path, run_here: RunHere) -> None:
    source, out = yolo_set(tmp_path / "set"), tmp_path / "out"
    arguments = ("convert", source, "--from", "yolo", "--out", out, "--copy-images")
    done = run_here(main, *arguments)
    assert done.returncode == 0, done.stderr
    assert load_config(str(out / "my-photos.yaml")).data.train_images == out / "images" / "train"
    for name in read_annotations(out / "train.json").file_names:
        copied = out / "images" / "train" / name
        assert copied.read_bytes() == (tmp_path / "set/images/train" / name).read_bytes()
    assert "--overwrite" in error_line(run_here(main, *arguments))
    assert run_here(main, *arguments, "--overwrite").returncode == 0


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--merge-classes", f"{NAMES[2]}={NAMES[0]}"], NAMES[:2]),
        (["--classes", "{}/wanted.txt"], (NAMES[2], NAMES[0])),
    ],
)
def test_classes_are_merged_or_chosen(
    tmp_path: Path, run_here: RunHere, options: list[str], names: tuple[str, ...]
) -> None:
    source, out = yolo_set(tmp_path / "set"), tmp_path / "out"
    (tmp_path / "wanted.txt").write_text(f"{NAMES[2]}\n{NAMES[0]}\n", encoding="utf-8")
    given = [text.format(tmp_path) for text in options]
    done = run_here(main, "convert", source, "--from", "yolo", "--out", out, *given)
    assert done.returncode == 0, done.stderr
    assert read_annotations(out / "train.json").category_names == names


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from", "yolo"], "--out: missing; --from needs a folder to write"),
        (["--from", "yolo", "--out", "/dev/null"], "/dev/null/train.json: cannot be written"),
        (["--from", "yolo", "--out", "{file}"], "data.yaml: would replace "),
        (["--from", "yolo", "--out", "{out}", "--image-ids", "x"], "--image-ids: only for a CSV"),
        (["--from", "voc", "--out", "{out}"], "is not a folder; expected one with Annotations/"),
        (["--from", "coco", "--out", "{out}"], "data.yaml: "),
        (["--copy-images"], "--copy-images: only with --from"),
        (["--classes", "cat"], "--classes: only with --from, or for a CSV"),
    ],
)
def test_bad_arguments_are_one_line(
    tmp_path: Path, run_here: RunHere, arguments: list[str], expected: str
) -> None:
    source, out = yolo_set(tmp_path / "set", images=3, boxes=3), tmp_path / "out"
    words = [word.format(file=source, out=out) for word in arguments]
    done = run_here(main, "convert", source, *words)
    assert expected in error_line(done)
    assert not list(out.glob("*.json")) if out.exists() else True


def test_existing_files_are_kept(tmp_path: Path, run_here: RunHere) -> None:
    source, out = yolo_set(tmp_path / "set"), tmp_path / "out"
    out.mkdir()
    (out / "validation.json").write_text("mine")
    arguments = ("convert", source, "--from", "yolo", "--out", out)
    assert "--overwrite" in error_line(run_here(main, *arguments))
    assert (out / "validation.json").read_text() == "mine" and not (out / "train.json").exists()
    assert run_here(main, *arguments, "--overwrite").returncode == 0
    assert len(json.loads((out / "validation.json").read_text())["images"]) == 12


@pytest.mark.parametrize("name", ["set", "link"])
def test_files_of_the_data_set_are_not_replaced(
    tmp_path: Path, run_here: RunHere, name: str
) -> None:
    folder = tmp_path / "set"
    (tmp_path / "link").symlink_to(folder)
    annotations = random_annotations(images=3, boxes=3, seed=0)
    write_photos(folder / "images", annotations)
    source = folder / "train.json"
    write_annotations(source, annotations, console=make_console(quiet=True))
    before = source.read_bytes()
    arguments = ("convert", folder, "--from", "coco", "--out", tmp_path / name, "--overwrite")
    line = error_line(run_here(main, *arguments))
    assert line.startswith(f"error: {tmp_path / name}/train.json: would replace {source}, which")
    assert source.read_bytes() == before and not (folder / "train.json.index").exists()


def test_copied_image_replaces_no_other_image_of_the_data_set(
    tmp_path: Path, run_here: RunHere
) -> None:
    folder = tmp_path / "set"
    # The images of `train` are where copies of the other split's would be.
    for split, seed in (("validation", 0), ("val", 1)):
        annotations = random_annotations(images=3, boxes=3, seed=seed)
        write_photos(folder / "images" / split, annotations)
        write_yolo(folder, annotations, split=split)
    source = write_data_yaml(folder, NAMES, train="images/validation", val="images/val")
    images = {file: file.read_bytes() for file in folder.rglob("*.jpg")}
    assert images
    options = ("--from", "yolo", "--out", folder, "--copy-images", "--overwrite")
    line = error_line(run_here(main, "convert", source, *options))
    assert f"{folder}/images/validation/" in line and "which this command reads" in line
    assert {file: file.read_bytes() for file in folder.rglob("*.jpg")} == images


@pytest.mark.parametrize("option", [None, "--copy-images"])
def test_refused_outputs_are_found_before_the_labels_are_read(
    tmp_path: Path, run_here: RunHere, option: str | None
) -> None:
    source, out = yolo_set(tmp_path / "set", images=3, boxes=3), tmp_path / "out"
    for labels in (tmp_path / "set" / "labels").rglob("*.txt"):
        labels.write_text("a fault\n")
    output = out / ("images/validation" if option else "validation.json")
    output.parent.mkdir(parents=True)
    output.mkdir() if option else output.write_text("mine")
    arguments = ["convert", source, "--from", "yolo", "--out", out, *filter(None, [option])]
    done = run_here(main, *arguments)
    assert error_line(done) == f"error: {output}: exists; give --overwrite or another --out"
    # What belongs to a split that this data set does not have is not in the way.
    output.rename(output.with_name("test" + output.suffix))
    assert "2 columns" in error_line(run_here(main, *arguments))


def test_refused_data_set_leaves_no_folder(tmp_path: Path, run_here: RunHere) -> None:
    source, out = yolo_set(tmp_path / "set", images=3, boxes=3), tmp_path / "new" / "out"
    next((tmp_path / "set" / "labels" / "val").rglob("*.txt")).write_text("a fault\n")
    arguments = ("convert", source, "--from", "yolo", "--out", out)
    assert "2 columns" in error_line(run_here(main, *arguments))
    assert not (tmp_path / "new").exists()
    out.mkdir(parents=True)
    assert "2 columns" in error_line(run_here(main, *arguments))
    assert list(out.iterdir()) == []


def test_images_that_cannot_be_copied_leave_nothing(tmp_path: Path, run_here: RunHere) -> None:
    source, out = yolo_set(tmp_path / "set", images=4, boxes=9), tmp_path / "out"
    unreadable = sorted((tmp_path / "set" / "images" / "val").rglob("*.jpg"))[-1]
    content, original = unreadable.read_bytes(), data.formats.convert.copy_atomically
    assert content

    def copy(image: Path, target: Path, *, open_source: Callable[[Path], BinaryIO]) -> None:
        if image == unreadable:
            unreadable.unlink()
        original(image, target, open_source=open_source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.formats.convert, "copy_atomically", copy)
        done = run_here(main, "convert", source, "--from", "yolo", "--out", out, "--copy-images")
    target = out / "images" / "validation" / unreadable.relative_to(tmp_path / "set/images/val")
    expected = f"error: {target}: cannot be copied from {unreadable}: No such file or directory"
    assert error_line(done) == expected
    assert not out.exists()


def interrupt(*arguments: str | Path, when: Callable[[], bool]) -> subprocess.Popen[str]:
    """Run `data convert` in a process of its own, and press Ctrl-C at a moment."""
    command = [sys.executable, "-m", "data", "convert", *arguments]
    # In a group of its own, as a terminal gives it, which Ctrl-C signals as a whole.
    process = start_program(*command, process_group=0)
    while True:
        assert process.poll() is None, process.communicate()
        # Stopped, it cannot leave the moment before the signal arrives, however busy the machine.
        os.killpg(process.pid, signal.SIGSTOP)
        if when():
            break
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "interrupted\n"
    return process


def large_set(folder: Path, *, images: int) -> Path:
    """Write a YOLO data set with many images, links to one, and a box for each."""
    photos, labels = folder / "images" / "train", folder / "labels" / "train"
    photos.mkdir(parents=True)
    labels.mkdir(parents=True)
    Image.new("RGB", (96, 64), (90, 120, 150)).save(folder / "photo.jpg")
    for row in range(images):
        (photos / f"{row:05}.jpg").symlink_to(folder / "photo.jpg")
        (labels / f"{row:05}.txt").write_text("0 0.5 0.5 0.25 0.5\n")
    return write_data_yaml(folder, NAMES, train="images/train")


@pytest.mark.parametrize("step", ["copy_files", "write_parts", "find_or_make_index"])
@pytest.mark.parametrize("is_new", [False, True])
def test_interruption_after_a_step_leaves_nothing(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch, step: str, *, is_new: bool
) -> None:
    source, out = yolo_set(tmp_path / "set", images=2, boxes=2), tmp_path / "new" / "out"
    if not is_new:
        out.mkdir(parents=True)
    original = getattr(data.formats.convert, step)

    def interrupted(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(data.formats.convert, step, interrupted)
    done = run_here(main, "convert", source, "--from", "yolo", "--out", out, "--copy-images")
    assert done.returncode == 130 and done.stderr == "interrupted\n"
    assert not out.parent.exists() if is_new else list(out.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_while_images_are_copied_leaves_nothing(tmp_path: Path, run_here: RunHere) -> None:
    source, out = large_set(tmp_path / "set", images=1_000), tmp_path / "out"
    out.mkdir()
    copies = out / "images" / "train"
    arguments = (source, "--from", "yolo", "--out", out, "--copy-images")
    interrupt(*arguments, when=lambda: copies.exists() and any(copies.iterdir()))
    assert list(out.iterdir()) == []
    # The same command works without --overwrite; interrupted again, it keeps what there was.
    assert run_here(main, "convert", *arguments).returncode == 0
    before = {file: file.stat().st_ino for file in copies.iterdir()}
    interrupt(
        *arguments,
        "--overwrite",
        when=lambda: next(iter(before)).stat().st_ino != next(iter(before.values())),
    )
    assert {file.name for file in copies.iterdir()} == {f"{row:05}.jpg" for row in range(1_000)}
    assert {file.stat().st_size for file in copies.iterdir()} == {
        (tmp_path / "set" / "photo.jpg").stat().st_size
    }


RED = (200, 0, 0)
STORED_AS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""How a camera stores a photo that is displayed by an EXIF orientation."""


def photos_of_all_orientations(folder: Path, sizes: Sequence[tuple[int, int]]) -> Annotations:
    """Write photos with a red object in each orientation; return the labels of the displayed ones.

    `folder/images/SIZE-ORIENTATION.png`, as PNG so that the colours are exact.
    """
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    names, boxes, sides = [], [], []
    for width, height in sizes:
        for orientation, change in STORED_AS.items():
            x, y = random.integers(0, (width // 2, height // 2)).tolist()
            box = (x, y, x + 9, y + 14)
            shown = Image.new("RGB", (width, height), "white")
            shown.paste(RED, box)
            exif = Image.Exif()
            exif[0x0112] = orientation
            stored = shown if change is None else shown.transpose(change)
            names.append(f"{width}-{height}-{orientation}.png")
            stored.save(folder / "images" / names[-1], exif=exif)
            boxes.append(box)
            sides.append((width, height))
    widths, heights = np.array(sides, dtype=np.int32).T
    count = len(names)
    return replace(
        random_annotations(images=count, boxes=count),
        file_names=names,
        widths=widths,
        heights=heights,
        box_offsets=np.arange(count + 1),
        boxes=np.array(boxes, dtype=np.float64),
    )


@pytest.mark.parametrize("name", ["yolo", "voc", "coco"])
@pytest.mark.parametrize("sizes", [[(64, 48)], [(48, 64), (56, 56)], [(56, 56)]])
def test_box_covers_the_object_in_the_pixels_of_training_and_predict(
    tmp_path: Path, run_here: RunHere, name: str, sizes: list[tuple[int, int]]
) -> None:
    source, out = tmp_path / "set", tmp_path / "out"
    labels = photos_of_all_orientations(source, sizes)
    if name == "yolo":
        write_yolo(source, labels, split="")
        (source / "classes.txt").write_text("\n".join(NAMES), encoding="utf-8")
    elif name == "voc":
        write_voc(source, labels)
        (source / "ImageSets" / "Main" / "train.txt").rename(source / "listed")
    else:
        write_annotations(source / "labels.json", labels, console=make_console(quiet=True))
    done = run_here(main, "convert", source, "--from", name, "--out", out)
    assert done.returncode == 0, done.stderr
    if sizes == [(56, 56)] and name != "yolo":  # nothing shows what the tool does
        assert "no size shows whether EXIF applies (read as stored): 7" in done.stdout
        return
    turned = 7 * len(sizes)
    assert f"rotates or mirrors (labels are of the displayed photo): {turned}\n" in done.stdout
    found = open_annotations(out / "all.json")
    images = source if name == "yolo" else source / "images"
    for row, file in enumerate(found.file_names):
        pixels = decode_annotated(found, images, row)
        shown = decode_image(images / file, apply_exif_orientation=True)
        np.testing.assert_array_equal(pixels, shown)  # as `predict` reads it
        is_red = (pixels == RED).all(axis=2)
        ys, xs = np.nonzero(is_red)
        covered = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
        np.testing.assert_allclose(found.boxes[row], covered, atol=1e-3, err_msg=file)


def test_photos_that_a_tool_labels_as_stored_stay_so(tmp_path: Path, run_here: RunHere) -> None:
    labels = photos_of_all_orientations(tmp_path / "set", [(64, 48)])
    stored = [int(name.split("-")[2][0]) in (5, 6, 7, 8) for name in labels.file_names]
    sides = np.stack([labels.widths, labels.heights], axis=1)
    sides[stored] = sides[stored][:, ::-1]
    labels = replace(labels, widths=sides[:, 0], heights=sides[:, 1])
    source = tmp_path / "set" / "labels.json"
    write_annotations(source, labels, console=make_console(quiet=True))
    done = run_here(main, "convert", source, "--from", "coco", "--out", tmp_path / "out")
    assert done.returncode == 0 and "(read as stored): 3" in done.stdout
    assert not open_annotations(tmp_path / "out" / "all.json").is_displayed.any()


def test_every_column_is_written(tmp_path: Path) -> None:
    labels, random = random_annotations(images=9, boxes=40), np.random.default_rng(1)
    labels = replace(
        labels, box_is_crowd=random.random(40) < 0.3, is_displayed=random.random(9) < 0.5,
        box_areas=random.uniform(1, 9, 40), boxes=labels.boxes + random.uniform(0, 0.1, (40, 1)),
    )  # fmt: skip
    write_annotations(tmp_path / "a.json", labels, console=make_console(quiet=True))
    found = read_annotations(tmp_path / "a.json")
    np.testing.assert_allclose(found.boxes, labels.boxes, atol=1e-12)
    assert_same_annotations(found, replace(labels, boxes=found.boxes))
