"""`retinanet data download`, with correct and faulty servers, kills and signals."""

import argparse
import hashlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import InputError
from data.annotations import SplitName, find_split
from data.coco_json import read_annotations
from data.download.command import add_download
from tests.data.download.samples import coco, openimages, tree
from tests.data.download.server import IMAGE_FAULTS, Server, serving
from tests.support.commands import start_program

COCO = coco(train=24, validation=6)
OPENIMAGES = openimages(train=24, validation=6)
SPLITS: tuple[SplitName, ...] = ("train", "validation")


DATASETS = pytest.mark.parametrize(
    ("dataset", "files"), [("coco", COCO), ("openimages", OPENIMAGES)]
)


def download(server: Server, dataset: str, out: Path, *options: str) -> int:
    """Download all classes, unless the options name some."""
    parser = argparse.ArgumentParser()
    add_download(parser.add_subparsers())
    quick = ["--pause", "0.001", "--timeout", "1.5", "--workers", "8", "--attempts", "6"]
    classes = [] if dataset == "coco" or "--classes" in options else ["--classes", "all"]
    arguments = [dataset, "--out", str(out), "--mirror", server.url, *quick, *classes, *options]
    parsed = vars(parser.parse_args(["download", *arguments]))
    status: int = parsed.pop("run")(**parsed)
    return status


@DATASETS
@pytest.mark.slow
def test_faulty_server_gives_the_same_files(
    tmp_path: Path, dataset: str, files: dict[str, bytes]
) -> None:
    with serving(files) as good, serving(files) as faulty:
        assert download(good, dataset, tmp_path / "good") == 0
        faulty.misbehave(IMAGE_FAULTS, most=3, seed=3)
        for path in (path for path in files if not path.endswith(".jpg")):
            faulty.faults[path] = ["cut_off", "html", "another_range", "cut_off", "garbage"]
        assert download(faulty, dataset, tmp_path / "faulty") == 0
        assert len(faulty.requests) > 1.5 * len(good.requests)
    expected = tree(tmp_path / "good")
    assert tree(tmp_path / "faulty") == expected and len(expected) >= 33
    assert {hashlib.sha256(body).hexdigest() for body in files.values()} <= {*expected.values()}


@DATASETS
def test_downloaded_tree_is_found_by_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dataset: str, files: dict[str, bytes]
) -> None:
    with serving(files) as server:
        assert download(server, dataset, tmp_path) == 0
        before, requests = tree(tmp_path), (len(server.requests), server.heads)
        capsys.readouterr()
        assert download(server, dataset, tmp_path) == 0  # requests nothing
        assert (len(server.requests), server.heads) == requests and tree(tmp_path) == before
    for split, count in zip(SPLITS, (24, 6), strict=True):
        paths = find_split(tmp_path, split, annotations=None, images=None)
        annotations = read_annotations(paths.annotations)
        assert len(annotations) == count
        assert all((paths.images / name).is_file() for name in annotations.file_names)
    lines = capsys.readouterr().out.splitlines()
    arguments = f"--config {dataset}.yaml data.root={tmp_path}"
    assert lines[-4:-2] == [f"complete: {tmp_path}", "next:"]
    assert lines[-2].endswith(f"retinanet data verify {arguments}")
    assert lines[-1].endswith(f"retinanet train {arguments}")


@DATASETS
def test_larger_limit_adds_images(tmp_path: Path, dataset: str, files: dict[str, bytes]) -> None:
    with serving(files) as server:
        assert download(server, dataset, tmp_path / "a", "--limit", "4") == 0
        small = {path for path in tree(tmp_path / "a") if path.endswith(".jpg")}
        assert len(small) == 8
        server.requests.clear()
        assert download(server, dataset, tmp_path / "a", "--limit", "7") == 0
        assert len(server.requests) == 3 + 2  # of validation there are 6
        assert download(server, dataset, tmp_path / "b", "--limit", "7") == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert small < set(tree(tmp_path / "a"))


@pytest.mark.parametrize(("classes", "count"), [(("dog",), 2), (("cat", "dog"), 3)])
def test_one_split_and_some_classes_of_coco(
    tmp_path: Path, classes: tuple[str, ...], count: int
) -> None:
    options = ("--splits", "validation", "--classes", *classes)
    with serving(COCO) as server:
        assert download(server, "coco", tmp_path, *options) == 0
    annotations = read_annotations(tmp_path / "annotations" / "instances_val2017.json")
    assert tuple(annotations.category_names) == classes and len(annotations) == count
    assert set(annotations.box_category_ids.tolist()) == set(annotations.category_ids.tolist())
    assert all(len(annotations.boxes[annotations.box_slice(row)]) for row in range(count))
    assert len(list((tmp_path / "val2017").iterdir())) == count
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
        paths = find_split(tmp_path / "a", split, annotations=None, images=None)
        annotations = read_annotations(paths.annotations)
        assert tuple(annotations.category_names) == ("Ratchet", "Dog")
        assert len(annotations) == len(list(paths.images.iterdir())) == count


@DATASETS
def test_missing_images_are_listed_and_downloaded_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dataset: str, files: dict[str, bytes]
) -> None:
    lost = sorted(path for path in files if path.endswith(".jpg"))[3:6]
    part = {path: body for path, body in files.items() if path not in lost}
    whole_out, out = tmp_path / "whole", tmp_path / "holes"
    with serving(files) as whole, serving(part) as holes:
        assert download(whole, dataset, whole_out) == 0
        assert download(holes, dataset, out) == 1
        listed = [line.split("\t") for line in (out / "missing.txt").read_text().splitlines()]
        assert [Path(name).name for name, _ in listed] == [Path(path).name for path in lost]
        assert all(reason.endswith("404 Not Found") for _, reason in listed)
        error = capsys.readouterr().err
        assert error.startswith("error: 3 images ") and error.count("\n") == 1
        assert len(holes.requests_for(lost[0])) == 1
        if dataset == "openimages":  # the JSON has no missing images
            labels = find_split(out, "train", annotations=None, images=None).annotations
            assert len(read_annotations(labels)) == 24 - 3
        assert download(whole, dataset, out) == 0
    assert tree(out) == tree(whole_out)


def test_missing_table_ends_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as server:
        assert download(server, "openimages", tmp_path) == 1
    error = capsys.readouterr().err
    assert "/class-descriptions-boxable.csv: 404 Not Found" in error and error.count("\n") == 1


@DATASETS
def test_unknown_class_is_refused_before_the_images(
    tmp_path: Path, dataset: str, files: dict[str, bytes]
) -> None:
    with serving(files) as server:
        with pytest.raises(InputError, match=r"did you mean '?[dD]og"):
            download(server, dataset, tmp_path, "--classes", "Dogg")
        assert not [request for request in server.requests if request.path.endswith(".jpg")]


def test_full_disk_is_detected_before_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with serving(COCO) as server:
        with pytest.raises(InputError, match=r"30 images need about [1-9]\d* MB, 1 MB are free"):
            download(server, "coco", tmp_path)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--mirror", address] for address in ("ftp://a", "example.org", "https://")),
        *(["--limit", "0"], ["--workers", "-1"], ["--pause", "nan"], ["--timeout", "0"]),
        ["--splits", "test"],
    ],
)
def test_invalid_options_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_download(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["download", "coco", "--out", "a", *arguments])
    assert f"argument {arguments[0]}" in capsys.readouterr().err


KILL_COCO = coco(train=40, validation=8)


def start_download(server: Server, out: Path) -> subprocess.Popen[str]:
    arguments = ["coco", "--out", str(out), "--mirror", server.url, "--workers", "3"]
    command = [sys.executable, "-m", "data", "download", *arguments]
    return start_program(*command, "--pause", "0.01", "--timeout", "5")


def wait_for_requests(server: Server, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while len(server.requests) < count:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)


@pytest.mark.slow
def test_killed_downloads_are_continued(tmp_path: Path) -> None:
    out, archive = tmp_path / "killed", "/annotations/annotations_trainval2017.zip"
    with serving(KILL_COCO) as server:
        server.fallback = lambda path: "slow"
        for count in (1, 30):  # in the zip and in the images
            process = start_download(server, out)
            wait_for_requests(server, count, process)
            time.sleep(0.07)  # two pieces of four have come
            process.kill()
            assert process.wait() == -signal.SIGKILL
        assert list(out.rglob("*.part"))
        downloaded = len(list((out / "train2017").glob("*.jpg")))
        assert downloaded > 10
        time.sleep(0.2)  # for the last requests of the killed process
        server.fallback, before = (lambda path: "serve"), len(server.requests)
        process = start_download(server, out)
        text, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert len(server.requests) - before == 48 - downloaded
        assert "complete: " in text and not error
        assert download(server, "coco", tmp_path / "whole") == 0
    assert tree(out) == tree(tmp_path / "whole")
    assert len(tree(out)) == 48 + 4  # the zip, two JSON files, the lock
    assert len(server.requests_for(archive)) >= 2


@pytest.mark.slow
def test_signal_stops_the_download(tmp_path: Path) -> None:
    with serving(KILL_COCO) as server:
        server.fallback = lambda path: "silent" if path.endswith(".jpg") else "serve"
        # The zip and 3 images, then no zip.
        for number, status, requests in ((signal.SIGINT, 130, 4), (signal.SIGTERM, 75, 3)):
            server.requests.clear()
            process = start_download(server, tmp_path)
            wait_for_requests(server, requests, process)
            process.send_signal(number)
            sent = time.monotonic()
            _, error = process.communicate(timeout=60)
            assert time.monotonic() - sent < 30 and process.returncode == status, error
            assert error.startswith("stopped; ") and error.count("\n") == 1
            assert f"data download coco --out {tmp_path}" in error
