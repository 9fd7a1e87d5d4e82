"""`retinanet data pack`, and reading what it writes."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import data.pack
from common.errors import InputError
from common.walk import LeftOut, Reach
from data.__main__ import main
from data.annotations import Split, TrainingRules
from data.dataset import DetectionData, SampleKey, open_data
from data.loader import DetectionLoader, TrainingBatches
from data.packed import INDEX, is_image_file, list_images, open_image_file
from profiling.bench.data_bench import photos_in
from retinanet.predict.search import find_sources
from tests.data.download.samples import tree
from tests.data.formats.written import (
    random_annotations,
    write_data_yaml,
    write_photos,
    write_voc,
    write_yolo,
)
from tests.data.samples import write_json
from tests.support.commands import RunHere, error_line, error_message, run_program

NAMES = [
    *(f"{index}.png" for index in range(6)),
    "train/0a1b.jpg",
    "train/Straßenbahn, 東京.jpg",
    f"train/{'long ' * 30}.png",
    "train/" + "/".join(["deep"] * 30) + "/x.png",
]


def write_images(folder: Path) -> Path:
    """Write images with all kinds of names, and annotations of them; return the folder."""
    random, images, boxes = np.random.default_rng(0), [], []
    for index, name in enumerate(NAMES):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).save(file)
        images.append({"id": index, "file_name": name, "width": 32, "height": 24})
        boxes.append({"id": index, "image_id": index, "category_id": 1, "bbox": [2, 3, 18, 19]})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    write_json(folder.with_name(f"{folder.name}.json"), content)
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


def packed(run_here: RunHere, images: Path, out: Path, *options: object) -> Path:
    done = run_here(main, "pack", images, "--out", out, "--per-tar", "4", *options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return out


def names_in(folder: Path) -> list[str]:
    return list(list_images(folder, Reach.of(folder), LeftOut(), suffixes=(".jpg", ".png")))


def read(path: Path) -> bytes:
    with open_image_file(path) as file:
        return file.read()


def test_images_are_the_same_bytes_under_the_same_names(
    images: Path, tmp_path: Path, run_here: RunHere
) -> None:
    (images / "empty.jpg").touch()
    (images / "link.jpg").symlink_to("train/0a1b.jpg")
    (images / "notes.txt").write_text("no image")
    before = tree(images)
    out = packed(run_here, images, tmp_path / "packed")
    names = [*NAMES, "empty.jpg", "link.jpg"]
    assert names_in(out) == sorted(names) == sorted(names_in(images))
    assert all(read(out / name) == (images / name).read_bytes() for name in names)
    assert not is_image_file(out / "none.jpg") and not is_image_file(out / "train")
    with pytest.raises(FileNotFoundError):
        open_image_file(out / "none.jpg")
    assert tree(images) == before
    # What others need to use the folder: tar and sha256sum.
    tars = sorted(file.name for file in out.glob("*.tar"))
    assert tars == [f"images-0000{number}.tar" for number in range(3)]
    subprocess.run(["sha256sum", "--check", f"{INDEX}/SHA256SUMS"], cwd=out, check=True)
    (tmp_path / "unpacked").mkdir()
    for name in tars:
        subprocess.run(["tar", "xf", out / name, "-C", tmp_path / "unpacked"], check=True)
    del before["notes.txt"]
    assert tree(tmp_path / "unpacked") == before


def opened(images: Path, folder: Path, **rules: Any) -> DetectionData:
    """Open the annotations of `images` with the images of a folder."""
    split = Split(images.with_name(f"{images.name}.json"), folder)
    return open_data(split, split, TrainingRules(image_size=64, **rules))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_an_epoch_are_equal(
    images: Path, tmp_path: Path, run_here: RunHere, workers: int
) -> None:
    out = packed(run_here, images, tmp_path / "packed")
    epochs = []
    for folder in (images, out):
        dataset = opened(images, folder, augmentation=("strong",)).train
        # Tars that are open before the loading processes are forked are read by all of them.
        first = dataset[SampleKey(0, 0)]
        batches = TrainingBatches(len(dataset), batch_size=3, seed=5)
        batches.set_position(epoch=2, first=3)
        epochs.append([first, *DetectionLoader(dataset, batches, workers=workers)])
    for ours, expected in zip(*epochs, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_order_is_that_of_the_annotations(images: Path, tmp_path: Path, run_here: RunHere) -> None:
    file = images.with_name("images.json")
    content = json.loads(file.read_text())
    content["images"].reverse()
    content["images"][1]["file_name"] = f"./{content['images'][1]['file_name']}"
    write_json(file, content)
    (images / NAMES[3]).unlink()
    done = run_here(main, "pack", images, "--annotations", file, file, "--out", tmp_path / "packed")
    assert f"note: 1 image without a file left out, first {NAMES[3]}" in done.stdout
    with tarfile.open(tmp_path / "packed" / "images-00000.tar") as tar:
        assert tar.getnames() == [name for name in reversed(NAMES) if name != NAMES[3]]
    # It is missing in the packed folder as it is in the other one.
    for folder in (images, tmp_path / "packed"):
        line = error_message(opened(images, folder).train.read, SampleKey(6, 0))
        assert line == f"{folder / NAMES[3]}: no such image file; check the folder of images"


def test_interrupted_packing_continues(images: Path, tmp_path: Path, run_here: RunHere) -> None:
    whole, out, file = tmp_path / "whole", tmp_path / "packed", images.with_name("images.json")
    options = ("--annotations", file)
    packed(run_here, images, whole, *options)
    content = (images / NAMES[-1]).read_bytes()
    (images / NAMES[-1]).unlink()
    (images / NAMES[-1]).mkdir()
    command = (main, "pack", images, "--out", out, "--per-tar", "4", *options)
    line = error_line(run_here(*command))
    assert line == f"error: {images / NAMES[-1]}: cannot be read: Is a directory"
    half = shutil.copytree(out, tmp_path / "half")
    problem = "no such image file; packing was interrupted: run `retinanet data pack"
    for limit in (None, 9):
        with pytest.raises(InputError) as caught:
            opened(images, half, bad_image_limit=limit).train.read(SampleKey(0, 0))
        assert str(caught.value) == f"{half / NAMES[0]}: {problem} IMAGES --out {half}` again"
    finished = {file.name: file.stat() for file in out.iterdir()}
    assert sorted(finished) == ["images-00000.tar", "images-00001.tar"]
    # What a killed process leaves.
    (out / f".images-00002.tar.{'0' * 16}.partial").touch()
    (out / f".images.index.{'0' * 16}.partial").mkdir()
    (images / NAMES[-1]).rmdir()
    (images / NAMES[-1]).write_bytes(content)
    os.utime(images / NAMES[-1], (0, (whole / "images-00002.tar").stat().st_mtime))
    assert run_here(*command).returncode == 0
    assert {name: (out / name).stat() for name in finished} == finished
    assert names_in(out) == names_in(whole)
    assert all(read(out / name) == read(whole / name) for name in NAMES)
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}
    assert error_line(run_here(*command)).endswith("is packed already; give another folder")


def change(folder: Path, name: str) -> None:
    """Change an image, so that an earlier tar has another one."""
    (folder / name).write_bytes(b"another image")


@pytest.mark.parametrize(
    "spoil, options, error",
    [
        (lambda images, out: change(images, "1.png"), [], "images-00000.tar: has other images, or"),
        (lambda images, out: None, ["--per-tar", "3"], "images-00000.tar: has other images, or"),
        (lambda images, out: None, ["--per-tar", "9"], "tar: is no tar of these images; give ano"),
        (
            lambda images, out: os.truncate(out / "images-00001.tar", 2000),
            [],
            "images-00001.tar: damaged tar (unexpected end of data); remove it",
        ),
        (lambda images, out: (out / "a.jpg").touch(), [], "a.jpg: is no tar of these images; give"),
        (
            lambda images, out: (out / "images-00000.tar").rename(out.parent / "a")
            and (out / "images-00000.tar").symlink_to(out.parent / "a"),
            [],
            "images-00000.tar: is no tar of these images; give another --out",
        ),
    ],
)  # fmt: skip
def test_tars_of_other_images_are_refused_and_stay(
    images: Path,
    tmp_path: Path,
    run_here: RunHere,
    *,
    spoil: Callable[[Path, Path], Any],
    options: list[str],
    error: str,
) -> None:
    out = packed(run_here, images, tmp_path / "packed")
    shutil.rmtree(out / INDEX)
    spoil(images, out)
    before = tree(out)
    command = (main, "pack", images, "--out", out, "--per-tar", "4", *options)
    assert error in error_line(run_here(*command))
    assert tree(out) == before


def test_what_cannot_be_packed_is_refused(images: Path, tmp_path: Path, run_here: RunHere) -> None:
    file, out = images.with_name("images.json"), tmp_path / "packed"

    def refused(*arguments: object) -> str:
        line = error_line(run_here(main, "pack", *map(str, arguments)))
        assert not list(tmp_path.glob("out/*"))
        return line

    to_out = ("--out", tmp_path / "out")
    assert "none: is not a folder" in refused(tmp_path / "none", *to_out)
    (tmp_path / "nothing").mkdir()
    assert "has no .jpg, .jpeg, .png" in refused(tmp_path / "nothing", *to_out)
    line = refused(tmp_path / "nothing", "--annotations", file, *to_out)
    assert f"{tmp_path / 'nothing' / '0.png'}: no such image file; give the folder" in line
    assert "is the folder of images; give another" in refused(images, "--out", images)
    (tmp_path / "loop").symlink_to("loop")
    assert f"--out: {tmp_path}/loop: cannot be" in refused(images, "--out", tmp_path / "loop")
    packed(run_here, images, out)
    assert "is packed; give a folder of image files" in refused(out, *to_out)
    assert "is packed already; give another folder" in refused(images, "--out", out)
    (tmp_path / "secret.png").write_text("secret")
    (images / "0.png").unlink()
    (images / "0.png").symlink_to(tmp_path / "secret.png")
    outside = f"{images / '0.png'}: leads outside of {images}; give --allow-outside if you trust"
    assert outside in refused(images, "--annotations", file, *to_out)
    done = run_here(main, "pack", images, *to_out)
    assert "paths that lead outside of the data set (--allow-outside takes them): 1" in done.stdout
    assert "0.png" not in names_in(tmp_path / "out")
    allowed = packed(run_here, images, tmp_path / "allowed", "--allow-outside")
    assert read(allowed / "0.png") == b"secret"


def test_image_that_changes_while_it_is_read_is_refused(
    images: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_and_open(path: Path) -> Any:
        if path.name == "3.png":
            path.write_bytes(b"another image")
        return open_image_file(path)

    monkeypatch.setattr(data.pack, "open_image_file", change_and_open)
    line = error_line(run_here(main, "pack", images, "--out", tmp_path / "packed"))
    assert line.endswith(
        f"{images / '3.png'}: changed while it was read; run the same command again"
    )
    assert not list((tmp_path / "packed").iterdir())


def spoil_column(name: str, row: int, value: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        column = np.load(folder / INDEX / f"{name}.npy")
        column[row] = value
        np.save(folder / INDEX / f"{name}.npy", column)

    return spoil


def spoil_description(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        file = folder / INDEX / "pack.json"
        write_json(file, json.loads(file.read_text()) | changes)

    return spoil


TARS = [{"images": 4, "bytes": 20480}, {"images": 4, "bytes": 20480}]


@pytest.mark.parametrize(
    "spoil, error",
    [
        (spoil_column("offsets", 1, -512), r'offsets[1]: -512, "1.png" does not fit images-00000'),
        (spoil_column("offsets", 9, 1 << 62), "offsets[9]: 4611686018427387904, "),
        (spoil_column("offsets", 5, 512), "does not fit images-00001.tar"),  # that of row 4
        (spoil_column("sizes", 0, -1), "sizes[0]: -1, "),
        (spoil_column("sizes", 0, 1 << 40), "sizes[0]: 1099511627776, "),
        (spoil_column("sizes", 2, 5000), "offsets[3]: "),
        (spoil_column("order", 2, 10), "order: 0 to 10, of 10 rows"),
        (spoil_column("order", 2, -1), "order: -1 to 9, of 10 rows"),
        (spoil_column("file_names_starts", 3, 0), "file_names_starts does not increase"),
        (spoil_description(format=2), "format 2, 1 is read"),
        (spoil_description(tars=[]), "file_names has 10 rows, pack.json says 0"),
        (spoil_description(tars=[{"images": 4, "bytes": "9"}]), 'pack.json: tars[0]: [4, "9"]'),
        (spoil_description(tars=[{"images": -4, "bytes": 9}]), "pack.json: tars[0]: [-4, 9]"),
        (spoil_description(tars=[{"images": 1 << 70, "bytes": 9}]), "damaged index ("),
        (spoil_description(tars=7), "pack.json is not that of packed images"),
        (lambda folder: (folder / INDEX / "sizes.npy").unlink(), "No such file or directory"),
        (lambda folder: (folder / INDEX / "pack.json").write_text("["), "damaged index ("),
    ],
)  # fmt: skip
def test_damaged_index_is_refused(
    images: Path, tmp_path: Path, run_here: RunHere, spoil: Callable[[Path], None], error: str
) -> None:
    out = packed(run_here, images, tmp_path / "packed")
    spoil(out)
    line = error_message(opened, images, out, bad_image_limit=100)
    assert line.startswith(f"{out / INDEX}: damaged index (") and error in line
    assert line.endswith("; copy the folder again, or pack again")
    file = images.with_name("images.json")
    settings = [f"data.{split}_{kind}={place}" for split in ("train", "validation")
                for kind, place in (("annotations", file), ("images", out))]  # fmt: skip
    assert (
        error_line(run_here(main, "verify", "--config", "coco.yaml", *settings)) == f"error: {line}"
    )


def exchange(folder: Path) -> None:
    first, second = folder / "images-00000.tar", folder / "images-00001.tar"
    size = max(first.stat().st_size, second.stat().st_size)
    first.rename(folder / "x")
    second.rename(first)
    (folder / "x").rename(second)
    for file in (first, second):
        os.truncate(file, size)


@pytest.mark.parametrize(
    "spoil, error",
    [
        (
            lambda folder: os.truncate(folder / "images-00000.tar", 5000),
            "images-00000.tar has 5,000 bytes, images.index says 20,480; copy it again",
        ),
        (lambda folder: (folder / "images-00000.tar").unlink(), "images-00000.tar is missing; c"),
        (exchange, "images.index does not fit images-00000.tar; copy both again, or pack again"),
        (spoil_column("sizes", 0, 2000), "images.index does not fit images-00000.tar"),
        (spoil_column("file_names", 0, ord("x")), "no such image file"),
    ],
)  # fmt: skip
def test_tar_that_does_not_fit_the_index_gives_no_image(
    images: Path, tmp_path: Path, run_here: RunHere, spoil: Callable[[Path], None], error: str
) -> None:
    out = packed(run_here, images, tmp_path / "packed")
    spoil(out)
    dataset = opened(images, out, bad_image_limit=100).train
    line = error_message(dataset.read, SampleKey(0, 0))
    assert line.startswith(f"{out / '0.png'}: ") and error in line


def test_names_of_an_index_stay_in_the_folder(
    images: Path, tmp_path: Path, run_here: RunHere
) -> None:
    out = packed(run_here, images, tmp_path / "packed")
    for place, letter in enumerate("../.."):
        spoil_column("file_names", place, ord(letter))(out)
    assert "file_names: " in (line := error_message(names_in, out))
    assert line.endswith(f"is outside of {out}")


FEW_FILES = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from data.packed import list_images, open_image_file
from common.walk import LeftOut, Reach
folder = Path(sys.argv[1])
names = list(list_images(folder, Reach.of(folder), LeftOut()))
print(sum(len(open_image_file(folder / name).read()) for name in names * 2))
"""


def test_more_tars_than_files_may_be_open(tmp_path: Path, run_here: RunHere) -> None:
    folder, content = tmp_path / "images", b"any content"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.jpg").write_bytes(content)
    out = packed(run_here, folder, tmp_path / "packed", "--per-tar", "1")
    done = run_program(sys.executable, "-c", FEW_FILES, out)
    assert (done.stdout, done.stderr) == (f"{2 * 60 * len(content)}\n", "")


def test_commands_find_and_read_packed_images(
    images: Path, tmp_path: Path, run_here: RunHere
) -> None:
    out, file = packed(run_here, images, tmp_path / "packed"), images.with_name("images.json")
    found = []
    for folder in (images, out):
        json_file, tiles = tmp_path / f"{folder.name}-findings.json", tmp_path / f"{folder.name}-t"
        settings = [f"data.{split}_{kind}={place}" for split in ("train", "validation")
                    for kind, place in (("annotations", file), ("images", folder))]  # fmt: skip
        done = run_here(main, "verify", "--config", "coco.yaml", "--json", json_file, *settings)
        assert done.returncode == 0, done.stderr
        train = json.loads(json_file.read_text())["splits"]["train"]
        assert train["images_checked"] == len(NAMES)
        done = run_here(main, "tile", file, "--images", folder, "--tiles", "32", "--out", tiles)
        assert done.returncode == 0, done.stderr
        arguments = (file, "--from", "coco", "--images", folder, "--copy-images")
        done = run_here(main, "convert", *arguments, "--out", copy := tmp_path / f"{folder.name}-c")
        assert done.returncode == 0, done.stderr
        found.append((train["findings"], tree(tiles / "images"), tree(copy / "images")))
    assert found[0] == found[1]
    assert all(found[0][1:])
    assert photos_in(out, limit=3) == [out / name for name in ("0.png", "3.png", "train/0a1b.jpg")]
    sources = find_sources([out, out / NAMES[0]], out=tmp_path / "predictions").pictures
    expected = [out / name for name in (*sorted(NAMES), NAMES[0])]
    assert [source.file for source in sources] == expected


@pytest.mark.parametrize("name", ["yolo", "voc"])
def test_labels_of_packed_images_are_converted(
    tmp_path: Path, run_here: RunHere, name: str
) -> None:
    labels, found = random_annotations(images=6, boxes=12), []
    images = {"yolo": "images/train", "voc": "JPEGImages"}[name]
    for kind in ("plain", "packed"):
        source, out = tmp_path / kind, tmp_path / f"out-{kind}"
        write_photos(photos := tmp_path / f"photos-{kind}", labels)
        (source / images).parent.mkdir(parents=True)
        photos.rename(source / images) if kind == "plain" else packed(
            run_here, photos, source / images
        )
        write = {"yolo": write_yolo, "voc": write_voc}[name]
        write(source, labels)
        write_data_yaml(source, labels.category_names, train=images)
        done = run_here(main, "convert", source, "--from", name, "--out", out, "--copy-images")
        assert done.returncode == 0, done.stderr
        found.append((json.loads((out / "train.json").read_text()), tree(out / "images")))
    assert found[0] == found[1] and len(found[0][1]) == 6
    tar = source / images / "images-00000.tar"
    tar.symlink_to(tar.rename(tmp_path / tar.name))
    line = error_line(run_here(main, "convert", source, "--from", name, "--out", tmp_path / "new"))
    assert f"{tar}: leads outside of {source}; give --allow-outside" in line
