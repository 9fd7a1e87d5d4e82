"""The whole command, against a server that behaves and one that does not."""

import argparse
import json
import shutil
from pathlib import Path

import pytest

from common.errors import InputError
from data.annotations import SplitName, find_split
from data.coco_json import read_annotations
from data.download.command import add_download, run
from data.download.images import locked_folder
from tests.data.download.datasets import coco, openimages, tree
from tests.data.download.server import IMAGE_FAULTS, Server, serving

COCO = coco(train=24, validation=6)
OPENIMAGES = openimages(train=24, validation=6)
SPLITS: tuple[SplitName, ...] = ("train", "validation")


def download(server: Server, dataset: str, out: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    add_download(parser.add_subparsers())
    quick = ["--pause", "0.001", "--timeout", "0.6", "--workers", "8", "--attempts", "6"]
    words = ["download", dataset, "--out", str(out), "--mirror", server.url, *quick, *options]
    arguments = vars(parser.parse_args(words))
    arguments.pop("run")
    return run(**arguments)


def openimages_classes(dataset: str) -> tuple[str, ...]:
    return () if dataset == "coco" else ("--classes", "all")


@pytest.mark.parametrize(("dataset", "files"), [("coco", COCO), ("openimages", OPENIMAGES)])
def test_a_nasty_server_gives_the_tree_of_a_good_one(
    tmp_path: Path, dataset: str, files: dict[str, bytes]
) -> None:
    classes = openimages_classes(dataset)
    with serving(files) as good, serving(files) as nasty:
        assert download(good, dataset, tmp_path / "good", *classes) == 0
        nasty.misbehave(IMAGE_FAULTS, most=3, seed=3)
        for path in (path for path in files if not path.endswith(".jpg")):
            nasty.faults[path] = ["cut_off", "html", "another_range", "cut_off", "garbage"]
        assert download(nasty, dataset, tmp_path / "nasty", *classes) == 0
        assert len(nasty.asked) > 1.5 * len(good.asked)
    expected = tree(tmp_path / "good")
    assert tree(tmp_path / "nasty") == expected and len(expected) >= 33
    hashes = set(expected.values())
    for path, body in files.items():
        (tmp_path / "file").write_bytes(body)
        assert tree(tmp_path)["file"] in hashes, path


@pytest.mark.parametrize(("dataset", "files"), [("coco", COCO), ("openimages", OPENIMAGES)])
def test_what_arrives_is_what_training_looks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dataset: str, files: dict[str, bytes]
) -> None:
    with serving(files) as server:
        assert download(server, dataset, tmp_path, *openimages_classes(dataset)) == 0
    for split, count in zip(SPLITS, (24, 6), strict=True):
        found = find_split(tmp_path, split, annotations=None, images=None)
        annotations = read_annotations(found.annotations)
        assert len(annotations) == count
        assert all((found.images / name).is_file() for name in annotations.file_names)
    lines = capsys.readouterr().out.splitlines()
    arguments = f"--config {dataset}.yaml data.root={tmp_path}"
    assert lines[-4:-2] == [f"complete: {tmp_path}", "next:"]
    assert lines[-2].endswith(f"-m data verify {arguments}")
    assert lines[-1].endswith(f"train.py {arguments}")


@pytest.mark.parametrize(("dataset", "files"), [("coco", COCO), ("openimages", OPENIMAGES)])
def test_a_call_when_all_is_there_asks_for_nothing(
    tmp_path: Path, dataset: str, files: dict[str, bytes]
) -> None:
    classes = openimages_classes(dataset)
    with serving(files) as server:
        assert download(server, dataset, tmp_path, *classes) == 0
        before = tree(tmp_path)
        server.asked.clear()
        server.heads = 0
        assert download(server, dataset, tmp_path, *classes) == 0
        assert not server.asked and not server.heads and tree(tmp_path) == before


@pytest.mark.parametrize(("dataset", "files"), [("coco", COCO), ("openimages", OPENIMAGES)])
def test_a_larger_limit_adds_to_a_smaller_one(
    tmp_path: Path, dataset: str, files: dict[str, bytes]
) -> None:
    classes = openimages_classes(dataset)
    with serving(files) as server:
        assert download(server, dataset, tmp_path / "a", "--limit", "4", *classes) == 0
        small = {path for path in tree(tmp_path / "a") if path.endswith(".jpg")}
        assert len(small) == 8
        server.asked.clear()
        assert download(server, dataset, tmp_path / "a", "--limit", "7", *classes) == 0
        assert len(server.asked) == 3 + 2  # of validation there are 6
        assert download(server, dataset, tmp_path / "b", "--limit", "7", *classes) == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert small < set(tree(tmp_path / "a"))


def test_one_split_and_some_classes_of_coco(tmp_path: Path) -> None:
    with serving(COCO) as server:
        assert download(server, "coco", tmp_path, "--splits", "validation", "--classes", "dog") == 0
    annotations = read_annotations(tmp_path / "annotations" / "instances_val2017.json")
    assert tuple(annotations.category_names) == ("dog",) and len(annotations) == 2
    assert len(list((tmp_path / "val2017").iterdir())) == 2
    assert not (tmp_path / "train2017").exists()


@pytest.mark.parametrize("how", ["names", "file"])
def test_some_classes_of_openimages(tmp_path: Path, how: str) -> None:
    names = ["Ratchet", "Dog"]
    if how == "file":
        (tmp_path / "names.txt").write_text("Ratchet\n\nDog\n")
        names = [str(tmp_path / "names.txt")]
    with serving(OPENIMAGES) as server:
        assert download(server, "openimages", tmp_path / "a", "--classes", *names) == 0
    for split, count in zip(SPLITS, (16, 4), strict=True):
        found = find_split(tmp_path / "a", split, annotations=None, images=None)
        annotations = read_annotations(found.annotations)
        assert tuple(annotations.category_names) == ("Ratchet", "Dog")
        assert len(annotations) == len(list(found.images.iterdir())) == count


def test_missing_images_are_listed_and_the_next_call_completes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = sorted(path for path in COCO if path.endswith(".jpg"))[3:6]
    with serving(COCO) as whole, serving({k: v for k, v in COCO.items() if k not in lost}) as holes:
        assert download(whole, "coco", tmp_path / "whole") == 0
        assert download(holes, "coco", tmp_path / "holes") == 1
        listed = (tmp_path / "holes" / "missing.txt").read_text().splitlines()
        assert [line.split("\t")[0] for line in listed] == [path[1:] for path in lost]
        assert all(line.endswith("404 Not Found") for line in listed)
        error = capsys.readouterr().err
        assert error.startswith("error: 3 images could not be had") and error.count("\n") == 1
        assert len(holes.asked_for(lost[0])) == 1
        assert download(whole, "coco", tmp_path / "holes") == 0
    assert tree(tmp_path / "holes") == tree(tmp_path / "whole")


def test_openimages_json_leaves_missing_images_out(tmp_path: Path) -> None:
    lost = next(path for path in OPENIMAGES if path.startswith("/train/"))
    with serving({k: v for k, v in OPENIMAGES.items() if k != lost}) as server:
        assert download(server, "openimages", tmp_path, "--classes", "all") == 1
    content = json.loads((tmp_path / "train" / "labels" / "openimages-mlperf.json").read_bytes())
    assert len(content["images"]) == 23


def test_a_table_that_is_not_there_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({}) as server:
        assert download(server, "openimages", tmp_path) == 1
    error = capsys.readouterr().err
    assert "/class-descriptions-boxable.csv: 404 Not Found" in error and error.count("\n") == 1
    assert error.endswith("; --help says what a mirror holds\n")


def test_an_unknown_class_is_refused_before_any_image_is_asked_for(tmp_path: Path) -> None:
    for dataset, files in (("coco", COCO), ("openimages", OPENIMAGES)):
        with serving(files) as server:
            with pytest.raises(InputError, match=r"did you mean '?[dD]og"):
                download(server, dataset, tmp_path / dataset, "--classes", "Dogg")
            assert not [asked for asked in server.asked if asked.path.endswith(".jpg")]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with serving(COCO) as server:
        with locked_folder(tmp_path), pytest.raises(InputError, match="another download"):
            download(server, "coco", tmp_path)
        assert not server.asked


def test_what_does_not_fit_is_refused_before_any_image_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with serving(COCO) as server:
        with pytest.raises(InputError, match=r"30 images take about 0\.0 GB"):
            download(server, "coco", tmp_path)
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--mirror", "ftp://a"],
        ["--mirror", "example.org"],
        ["--mirror", "https://"],
        ["--limit", "0"],
        ["--workers", "-1"],
        ["--pause", "nan"],
        ["--timeout", "0"],
        ["--splits", "test"],
    ],
)
def test_wrong_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_download(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["download", "coco", "--out", "a", *words])
    assert f"argument {words[0]}" in capsys.readouterr().err
