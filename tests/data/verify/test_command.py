"""`retinanet data verify`: output, exit status, signals, and real photos."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from common.errors import InputError
from data.__main__ import main
from data.synthetic import make_synthetic_data
from tests.data.verify.small_set import (
    counts,
    entries,
    small_content,
    verify,
    write_config,
    write_split,
    write_splits,
)
from tests.support.commands import RunHere, run_program, start_program
from tests.support.processes import child_processes, is_running

REPOSITORY = Path(__file__).parents[3]
COCO128 = REPOSITORY.parent / "shared" / "data" / "coco128"
LABELS, PHOTOS = COCO128 / "annotations" / "instances_train2017.json", COCO128 / "train2017"
COMMAND = [sys.executable, "-m", "data", "verify"]


@pytest.mark.slow
def test_output_in_a_pipe_and_exit_status(tmp_path: Path) -> None:
    config, *_ = write_splits(tmp_path)
    (tmp_path / "train" / "images" / "3.jpg").unlink()
    done = run_program(*COMMAND, "--config", config)
    assert done.returncode == 1 and done.stderr == ""
    assert "\x1b" not in done.stdout and "┃" not in done.stdout
    assert "image_missing  1  stops training  images[3] (3.jpg): no such image file" in done.stdout
    assert "training would stop: 1 image_missing (train)\n" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"--config {config} --write-clean clean")


def test_output_of_good_data_ends_with_the_training_command(
    tmp_path: Path, run_here: RunHere
) -> None:
    config = str(write_splits(tmp_path)[0])
    overrides = [f"data.root={tmp_path}", "training.epochs=1", "run.name=other"]
    arguments = (overrides[0], "--config", config, overrides[1], "--no-images", overrides[2])
    done = run_here(main, "verify", *arguments)
    assert done.returncode == 0 and done.stdout.splitlines()[-2] == "next:"
    command = f"retinanet train --config {config} {' '.join(overrides)}"
    assert done.stdout.splitlines()[-1].endswith(command)
    done = run_here(main, "verify", "--config", config, "--nothing", "training.epochs=1")
    assert done.returncode == 2 and "--nothing" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "none.yaml"], "none.yaml: no such configuration file"),
        (["--config", "coco.yaml", "data.rot=x"], "data.rot: no such field"),
        (["--config", "coco.yaml", "data.root=/none"], "data.root: /none is not a folder"),
        ([], "--config"),
        (["--config", "coco.yaml", "--sample", "0"], "--sample"),
        (["--config", "coco.yaml", "--sample", "5", "--no-images"], "not allowed with"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    arguments: list[str], message: str, run_here: RunHere
) -> None:
    done = run_here(main, "verify", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.slow
def test_images_are_decoded_before_torch_is_loaded(tmp_path: Path) -> None:
    """The processes that decode are copies of this one; torch takes 400 MB and has threads."""
    program = (
        "import sys\nfrom data.__main__ import main\nimport data.verify.report as report\n"
        "check = report.check_splits\n"
        "def watched(*arguments, **options):\n"
        "    checked = check(*arguments, **options)\n"
        "    print('torch' in sys.modules, checked[0].images_checked)\n"
        "    return checked\n"
        "report.check_splits = watched\n"
        "sys.exit(main())"
    )
    config = str(write_splits(tmp_path)[0])
    done = run_program(sys.executable, "-c", program, "verify", "--config", config)
    assert done.returncode == 0, done.stderr
    assert "\nFalse 6\n" in done.stdout and "proposed: data.image_size=" in done.stdout


@pytest.mark.parametrize("option", ["--json", "--write-clean"])
def test_output_that_cannot_be_written_is_refused_first(
    tmp_path: Path, option: str, run_here: RunHere
) -> None:
    config, *_ = write_splits(tmp_path)
    before = config.read_text()
    for file in (f"{config}/below/name", str(config))[: 1 + (option == "--json")]:
        done = run_here(main, "verify", "--config", str(config), option, file)
        assert done.returncode == 2 and done.stdout == "" and config.read_text() == before
        assert done.stderr.startswith(f"error: {config}") and done.stderr.count("\n") == 1


def test_file_names_are_printed_without_escape_sequences(tmp_path: Path, run_here: RunHere) -> None:
    content = small_content()
    content["images"][2]["file_name"] = "\x1b[2J\ud800[red]x[/red].jpg"
    content["categories"][0]["name"] = "\x1b[31m[bold]"
    config, *_ = write_splits(tmp_path, content, content)
    done = run_here(main, "verify", "--config", config)
    assert done.returncode == 1 and done.stderr == ""
    assert "\x1b" not in done.stdout and "[red]x[/red].jpg" in done.stdout


def test_synthetic_data_are_verified_once_they_exist(tmp_path: Path, run_here: RunHere) -> None:
    config = tmp_path / "drawn.yaml"
    config.write_text(f"run: {{root: {tmp_path}}}\ndata: {{scenes: {{train: 3, validation: 2}}}}\n")
    done = run_here(main, "verify", "--config", config)
    assert done.returncode == 0 and "nothing to verify" in done.stdout
    assert not (tmp_path / "drawn").exists()
    make_synthetic_data(tmp_path / "drawn" / "scenes", seed=0, train=3, validation=2)
    code, report = verify(config)
    assert code == 0
    assert [report["splits"][name]["images_checked"] for name in ("train", "validation")] == [3, 2]
    with pytest.raises(InputError, match=r"data\.root: .* is given together with data\.scenes"):
        verify(config, f"data.root={tmp_path}")


def start_decoding(folder: Path, *options: str, **popen: Any) -> subprocess.Popen[str]:
    """Start to verify 20,000 images of many pixels, and return while they are decoded."""
    content = small_content() | {"annotations": []}
    image = {"file_name": "large.jpg", "width": 1500, "height": 1200}
    content["images"] = [{"id": n, **image} for n in range(20_000)]
    split = write_split(folder / "train", content)
    noise = Image.effect_noise((1500, 1200), 90).convert("RGB")
    noise.save(split.images / "large.jpg")
    config = write_config(folder, split, split, images_without_boxes="train")
    command = [*COMMAND, "--config", str(config), *options]
    process = start_program(*command, **popen)
    assert process.stdout
    while "decoding train images" not in process.stdout.readline():
        assert process.poll() is None
    return process


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_its_processes(tmp_path: Path) -> None:
    # In a group of its own, as a terminal gives it, which Ctrl-C signals as a whole.
    process = start_decoding(tmp_path, f"--json={tmp_path / 'found.json'}", process_group=0)
    children = child_processes(process.pid)
    assert children
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "interrupted\n"
    assert time.monotonic() - began < 30  # all of the images would take minutes
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not (tmp_path / "found.json").exists()


@pytest.mark.slow
def test_processes_end_with_a_killed_command(tmp_path: Path) -> None:
    process = start_decoding(tmp_path)
    children = child_processes(process.pid)
    assert children
    process.kill()
    process.communicate(timeout=60)
    while any(map(is_running, children)):
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(not LABELS.is_file(), reason=f"{LABELS} is missing")
def test_counts_of_real_photos(tmp_path: Path) -> None:
    splits = ("train", "validation")
    files = [f"data.{split}_annotations={LABELS}" for split in splits]
    folders = [f"data.{split}_images={PHOTOS}" for split in splits]
    code, report = verify(Path("coco.yaml"), *files, *folders, json=tmp_path / "found.json")
    content = json.loads(LABELS.read_text())
    photos, boxes, categories = (content[key] for key in ("images", "annotations", "categories"))
    size_of = {image["id"]: (image["width"], image["height"]) for image in photos}
    boxes_of = Counter(box["category_id"] for box in boxes)
    images_of = Counter(c for c, _ in {(box["category_id"], box["image_id"]) for box in boxes})
    partly = 0
    for box in boxes:
        (x, y, w, h), (width, height) = box["bbox"], size_of[box["image_id"]]
        partly += x < -1 or y < -1 or x + w > width + 1 or y + h > height + 1
    seen = {box["image_id"] for box in boxes}
    without = [f"images[{n}]" for n, image in enumerate(photos) if image["id"] not in seen]
    kinds = {"image_without_boxes": len(without), "box_partly_outside": partly}
    kinds["class_without_boxes"] = sum(boxes_of[each["id"]] == 0 for each in categories)
    assert code == 0
    for name in splits:
        split = report["splits"][name]
        assert split["images"] == split["images_checked"] == len(photos) == 128
        assert split["boxes"] == len(boxes) == 929
        assert split["crowds"] == sum(box["iscrowd"] for box in boxes)
        assert [tuple(each.values()) for each in split["classes"]] == [
            (each["id"], each["name"], boxes_of[each["id"]], 0, images_of[each["id"]])
            for each in categories
        ]
        both = {"image_in_both_splits": 128} if name == "validation" else {}
        assert counts(report, name) == {kind: n for kind, n in (kinds | both).items() if n}
        assert entries(report, "image_without_boxes", name) == without
