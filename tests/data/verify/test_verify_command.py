"""The command as it is typed: exit status, what is printed, Ctrl-C; and real photos."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from common.errors import InputError
from data.__main__ import main
from tests.data.verify.small_set import (
    counts,
    entries,
    small_content,
    verify,
    write_config,
    write_split,
)
from tests.support.commands import RunHere

REPOSITORY = Path(__file__).parents[3]
COCO128 = REPOSITORY.parent / "shared" / "data" / "coco128"
LABELS, PHOTOS = COCO128 / "annotations" / "instances_train2017.json", COCO128 / "train2017"
COMMAND = [sys.executable, "-m", "data", "verify"]


def type_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def two_splits(folder: Path) -> Path:
    splits = [write_split(folder / name, small_content()) for name in ("train", "validation")]
    return write_config(folder, *splits)


def test_a_pipe_gets_plain_lines_and_the_exit_status_tells(tmp_path: Path) -> None:
    config = two_splits(tmp_path)
    (tmp_path / "train" / "images" / "3.jpg").unlink()
    done = type_command("--config", str(config))
    assert done.returncode == 1 and done.stderr == ""
    assert "\x1b" not in done.stdout and "┃" not in done.stdout
    assert "image_missing  1  stops training  images[3] (3.jpg): no such image file" in done.stdout
    assert "training would stop: 1 image_missing (train)\n" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"--config {config} --write-clean clean")


def test_a_good_set_ends_with_the_command_that_trains(tmp_path: Path) -> None:
    config = two_splits(tmp_path)
    done = type_command("--config", str(config), "training.epochs=1")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-3:-1] == ["nothing stops training", "next:"]
    assert done.stdout.splitlines()[-1].endswith(f"train.py --config {config} training.epochs=1")


def test_overrides_may_stand_between_options(tmp_path: Path, run_here: RunHere) -> None:
    config = str(two_splits(tmp_path))
    overrides = [f"data.root={tmp_path}", "training.epochs=1", "run.name=other"]
    words = (overrides[0], "--config", config, overrides[1], "--no-images", overrides[2])
    done = run_here(main, "verify", *words)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].endswith(" ".join(overrides))
    more = ("--config", config, "--no-image", "--nothing", "training.epochs=1")
    done = run_here(main, "verify", *more)
    assert done.returncode == 2 and "unrecognized arguments: --nothing" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "none.yaml"], "none.yaml: no such configuration file"),
        (["--config", "coco.yaml", "data.rot=x"], "data.rot: no such field"),
        (["--config", "coco.yaml", "data.root=/none"], "data.root: /none is not a folder"),
        ([], "the following arguments are required: --config"),
        (["--config", "coco.yaml", "--sample", "0"], "expected a whole number of at least 1"),
        (["--config", "coco.yaml", "--sample", "5", "--no-images"], "not allowed with"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    arguments: list[str], message: str, run_here: RunHere
) -> None:
    done = run_here(main, "verify", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_it_does_without_torch(tmp_path: Path) -> None:
    """Torch takes 400 MB of memory and seconds to load."""
    program = (
        "import sys\nfrom data.__main__ import main\ncode = main()\n"
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "verify", "--config", str(two_splits(tmp_path))],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0


def test_a_json_file_that_exists_is_kept(tmp_path: Path) -> None:
    config = two_splits(tmp_path)
    file = tmp_path / "found.json"
    file.write_text("kept")
    done = type_command("--config", str(config), "--json", str(file))
    assert done.returncode == 2 and "found.json: exists; give --json another file" in done.stderr
    assert file.read_text() == "kept"


@pytest.mark.parametrize("option", ["--json", "--write-clean"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, option: str, run_here: RunHere
) -> None:
    config = two_splits(tmp_path)
    done = run_here(main, "verify", "--config", str(config), option, f"{config}/below/name")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"error: {config}: is no folder that can be written to; name another\n"


def test_file_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    content = small_content()
    content["images"][2]["file_name"] = "\x1b[2J\ud800[red]x[/red].jpg"
    content["categories"][0]["name"] = "\x1b[31m[bold]"
    splits = [write_split(tmp_path / name, content) for name in ("train", "validation")]
    done = type_command("--config", str(write_config(tmp_path, *splits)))
    assert done.returncode == 1 and done.stderr == ""
    assert "\x1b" not in done.stdout and "[red]x[/red].jpg" in done.stdout


def test_scenes_that_are_not_drawn_are_nothing_to_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "drawn.yaml"
    config.write_text(f"run: {{root: {tmp_path}}}\ndata: {{scenes: {{train: 2, validation: 2}}}}\n")
    from retinanet.verify_command import run

    code = run(
        config=str(config),
        overrides=[],
        split=None,
        no_images=False,
        sample=None,
        json_file=None,
        clean_folder=None,
    )
    assert code == 0 and "nothing to verify" in capsys.readouterr().out
    assert not (tmp_path / "drawn").exists()


def test_drawn_scenes_are_verified(tmp_path: Path) -> None:
    from data.synthetic import make_synthetic_data

    config = tmp_path / "drawn.yaml"
    config.write_text(f"run: {{root: {tmp_path}}}\ndata: {{scenes: {{train: 3, validation: 2}}}}\n")
    make_synthetic_data(
        tmp_path / "drawn" / "scenes", seed=0, train=3, validation=2, advance=lambda *_: None
    )
    code, report = verify(config)
    assert code == 0
    assert [report["splits"][name]["images_checked"] for name in ("train", "validation")] == [3, 2]
    with pytest.raises(InputError, match=r"data\.root: .* is given beside data\.scenes"):
        verify(config, f"data.root={tmp_path}")


def test_ctrl_c_ends_it_promptly_and_leaves_no_process(tmp_path: Path) -> None:
    content = small_content()
    image = Image.effect_noise((1500, 1200), 90).convert("RGB")
    image.save(tmp_path / "large.jpg")
    names = [f"{n}-large.jpg" for n in range(3_000)]
    content["images"] = [
        {"id": n, "file_name": name, "width": 1500, "height": 1200} for n, name in enumerate(names)
    ]
    content["annotations"] = []
    split = write_split(tmp_path / "train", content)
    for name in names:
        (split.images / name).symlink_to(tmp_path / "large.jpg")
    config = write_config(tmp_path, split, split, images_without_boxes="train")
    process = subprocess.Popen(
        [*COMMAND, "--config", str(config), f"--json={tmp_path / 'found.json'}"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # as a terminal gives it, which Ctrl-C signals as a whole
    )
    assert process.stdout
    while "decoding train images" not in process.stdout.readline():
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "interrupted\n"
    assert time.monotonic() - began < 30  # all of the images would take minutes
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not (tmp_path / "found.json").exists()


def test_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    content = small_content()
    content["images"] = [dict(content["images"][0], id=n) for n in range(60_000)]
    content["annotations"] = []
    split = write_split(tmp_path / "train", content)
    config = write_config(tmp_path, split, split, images_without_boxes="train")
    process = subprocess.Popen(
        [*COMMAND, "--config", str(config)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    while "decoding train images" not in process.stdout.readline():
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.kill()
    process.communicate(timeout=60)
    for child in children:
        while is_running(int(child)):
            time.sleep(0.05)


def is_running(process: int) -> bool:
    """Whether a process is more than an entry that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not LABELS.is_file(), reason=f"{LABELS} is missing")
def test_counts_of_real_photos_equal_a_plain_count(tmp_path: Path) -> None:
    code, report = verify(
        Path("coco.yaml"),
        *(f"data.{split}_annotations={LABELS}" for split in ("train", "validation")),
        *(f"data.{split}_images={PHOTOS}" for split in ("train", "validation")),
        json_file=tmp_path / "found.json",
    )
    content = json.loads(LABELS.read_text())
    size_of = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    boxes = Counter(entry["category_id"] for entry in content["annotations"])
    pairs = {(entry["category_id"], entry["image_id"]) for entry in content["annotations"]}
    images = Counter(category for category, _ in pairs)
    partly = 0
    for entry in content["annotations"]:
        (x, y, w, h), (width, height) = entry["bbox"], size_of[entry["image_id"]]
        partly += x < -1 or y < -1 or x + w > width + 1 or y + h > height + 1
    with_boxes = {entry["image_id"] for entry in content["annotations"]}
    without = [
        f"images[{place}]"
        for place, image in enumerate(content["images"])
        if image["id"] not in with_boxes
    ]
    assert code == 0
    for name in ("train", "validation"):
        split = report["splits"][name]
        assert split["images"] == split["images_checked"] == len(content["images"]) == 128
        assert split["boxes"] == len(content["annotations"]) == 929
        assert split["crowds"] == sum(entry["iscrowd"] for entry in content["annotations"])
        assert split["classes"] == [
            {
                "category_id": category["id"],
                "name": category["name"],
                "boxes": boxes[category["id"]],
                "crowds": 0,
                "images": images[category["id"]],
            }
            for category in content["categories"]
        ]
        expected = {
            "image_without_boxes": len(without),
            "class_without_boxes": sum(boxes[one["id"]] == 0 for one in content["categories"]),
            "box_partly_outside": partly,
        }
        assert counts(report, name) == {kind: n for kind, n in expected.items() if n}
        assert entries(report, "image_without_boxes", name) == without
