"""`python -m data split`: every image on one side, with all that the file says of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from data.__main__ import main
from data.coco_json import read_annotations
from tests.data.coco_files import random_content, write_json
from tests.support.commands import RunHere


def exported(path: Path, *, images: int = 20, boxes: int = 60) -> Path:
    content: dict[str, Any] = random_content(images=images, boxes=boxes)
    for box in content["annotations"]:
        box["attributes"] = {"occluded": False}
    return write_json(path, content | {"licenses": [{"id": 1, "name": "mine"}]})


def parts(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    train, validation = folder / "train.json", folder / "validation.json"
    return json.loads(train.read_text()), json.loads(validation.read_text())


def test_both_parts_together_are_the_whole_with_all_its_fields(
    tmp_path: Path, run_here: RunHere
) -> None:
    whole = exported(tmp_path / "all.json")
    content = json.loads(whole.read_text())
    done = run_here(main, "split", whole, "--out", tmp_path / "splits", "--validation", "0.25")
    assert done.returncode == 0, done.stderr
    train, validation = parts(tmp_path / "splits")
    assert len(train["images"]) == 15 and len(validation["images"]) == 5
    for field in ("images", "annotations"):
        both = sorted(train[field] + validation[field], key=lambda entry: entry["id"])
        assert both == sorted(content[field], key=lambda entry: entry["id"])
    for part in (train, validation):
        ids = {image["id"] for image in part["images"]}
        assert {box["image_id"] for box in part["annotations"]} <= ids
        assert part["categories"] == content["categories"]
        assert part["licenses"] == content["licenses"]
    assert f"train       15 images, {len(train['annotations'])} boxes" in done.stdout
    assert len(read_annotations(tmp_path / "splits" / "train.json")) == 15


def test_one_seed_deals_the_same_and_another_anew(tmp_path: Path, run_here: RunHere) -> None:
    whole = exported(tmp_path / "all.json")
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        run_here(main, "split", whole, "--out", tmp_path / name, "--seed", seed)
    a, b, c = (parts(tmp_path / name) for name in "abc")
    assert a == b != c


def test_each_side_gets_an_image(tmp_path: Path, run_here: RunHere) -> None:
    whole = exported(tmp_path / "all.json", images=3)
    for share, in_validation in (("0.01", 1), ("0.99", 2)):
        out = tmp_path / share
        run_here(main, "split", whole, "--out", out, "--validation", share)
        train, validation = parts(out)
        assert len(validation["images"]) == in_validation
        assert len(train["images"]) == 3 - in_validation


def test_a_class_that_a_side_lacks_is_told(tmp_path: Path, run_here: RunHere) -> None:
    content = random_content(images=6, boxes=12)
    content["categories"].append({"id": 4711, "name": "Unicorn"})
    whole = write_json(tmp_path / "all.json", content)
    done = run_here(main, "split", whole, "--out", tmp_path)
    notes = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert [line for line in notes if "Unicorn" in line] == [
        line for line in notes if line.startswith("note: no box at all: ")
    ]
    assert sum("Unicorn" in line for line in notes) == 1 and "--seed" not in notes[0]


def test_files_that_are_there_are_kept(tmp_path: Path, run_here: RunHere) -> None:
    whole = exported(tmp_path / "all.json")
    mine = tmp_path / "validation.json"
    mine.write_text("mine")
    done = run_here(main, "split", whole, "--out", tmp_path)
    assert done.returncode == 2 and "--overwrite" in done.stderr
    assert mine.read_text() == "mine" and not (tmp_path / "train.json").exists()
    assert run_here(main, "split", whole, "--out", tmp_path, "--overwrite").returncode == 0
    assert mine.read_text() != "mine"


def test_the_whole_is_not_replaced_by_its_part(tmp_path: Path, run_here: RunHere) -> None:
    whole = exported(tmp_path / "train.json")
    before = whole.read_bytes()
    done = run_here(main, "split", whole, "--out", tmp_path, "--overwrite")
    assert done.returncode == 2 and "would be replaced by its own part" in done.stderr
    assert whole.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no JSON", "line 1"),
        ('{"images": [], "annotations": []}', "categories: missing"),
    ],
)
def test_what_is_not_cocos_is_one_line(
    content: str, said: str, tmp_path: Path, run_here: RunHere
) -> None:
    file = tmp_path / "labels.json"
    file.write_text(content)
    done = run_here(main, "split", file, "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and str(file) in done.stderr and said in done.stderr


def test_one_image_cannot_be_split(tmp_path: Path, run_here: RunHere) -> None:
    file = exported(tmp_path / "labels.json", images=1, boxes=2)
    done = run_here(main, "split", file, "--out", tmp_path)
    assert done.returncode == 2 and f"{file}: images: 1; two sides need two" in done.stderr


@pytest.mark.parametrize("share", ["0", "1", "1.5", "-1", "half", "nan"])
def test_a_share_is_between_0_and_1(share: str, tmp_path: Path, run_here: RunHere) -> None:
    file = exported(tmp_path / "labels.json")
    done = run_here(main, "split", file, "--out", tmp_path, f"--validation={share}")
    assert done.returncode == 2 and "expected a share between 0 and 1" in done.stderr


def test_halves_of_surrogate_pairs_are_kept_as_they_are(tmp_path: Path, run_here: RunHere) -> None:
    content = random_content(images=6, boxes=12)
    content["categories"][0]["name"] = "half a \ud83d\nnew line"
    content["images"][0]["file_name"] = "a\udce9.jpg"
    file = tmp_path / "whole.json"
    file.write_text(json.dumps(content))
    done = run_here(main, "split", file, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    train, validation = parts(tmp_path)
    assert train["categories"] == validation["categories"] == content["categories"]
    assert content["images"][0] in train["images"] + validation["images"]
    assert "\nnew line" not in done.stdout
