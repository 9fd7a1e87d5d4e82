"""Synthetic data: the images, the data set of the demo, and `retinanet data scenes`."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageDraw

import data.synthetic
from data.__main__ import main
from data.annotations import SplitName, find_split
from data.coco_json import read_annotations
from data.synthetic import (
    KINDS,
    LARGEST_OVERLAP,
    SIZES,
    SUPERSAMPLING,
    Kind,
    Style,
    draw_scene,
    make_synthetic_data,
    overlap_share,
    place_box,
)
from tests.data.download.samples import tree
from tests.support.commands import RunHere, error_message

SPLITS: tuple[SplitName, ...] = ("train", "validation")


def make(root: Path, *, seed: int = 0, train: int = 3, validation: int = 2) -> bool:
    return make_synthetic_data(root, seed=seed, train=train, validation=validation)


def test_images_depend_on_the_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("first", 5), ("second", 5), ("other", 6)):
        assert make(tmp_path / name, seed=seed)
    first, other = tree(tmp_path / "first"), tree(tmp_path / "other")
    assert first == tree(tmp_path / "second") and first.keys() == other.keys()
    assert not set(first.values()) & set(other.values())
    # A larger split begins with the same images.
    make(tmp_path / "large", seed=5, train=5)
    large = tree(tmp_path / "large")
    assert len(set(large.values())) == len(large) == 5 + 2 + 2 + 1
    images = [name for name in first if name.endswith(".jpg")]
    assert len(images) == 5 and all(first[name] == large[name] for name in images)


def test_data_of_another_recipe_are_replaced(tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    assert make(root, train=4)
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    assert not make(root, train=4)
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*")} == before
    assert make(root, train=2) and make(root, seed=1, train=2)
    make(tmp_path / "fresh", seed=1, train=2)
    assert tree(root) == tree(tmp_path / "fresh")


def test_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    assert (
        f"{tmp_path}: is a link, or holds files that are not of generated scenes"
        in error_message(make, tmp_path)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_tree_is_mlperfs_openimages_with_the_drawn_boxes(tmp_path: Path) -> None:
    root, counts = tmp_path / "scenes", {"train": 4, "validation": 3}
    make(root, seed=3, **counts)
    for split in SPLITS:
        paths = find_split(root, split, annotations=None, images=None)
        annotations = read_annotations(paths.annotations)
        assert len(annotations) == counts[split]
        assert annotations.category_names == tuple(kind.name for kind in KINDS)
        for index, name in enumerate(annotations.file_names):
            with Image.open(paths.images / name) as picture:
                size = int(annotations.widths[index]), int(annotations.heights[index])
                assert picture.size == size and size in SIZES
            rows, image_id = annotations.box_slice(index), annotations.image_ids[index]
            _, objects = draw_scene(Random(f"3 {split} {image_id - 1}"))
            labels = annotations.box_category_ids[rows].tolist()
            assert labels == [label + 1 for label, _ in objects]
            for box, (_, drawn) in zip(annotations.boxes[rows].tolist(), objects, strict=True):
                assert box == pytest.approx(drawn)


@pytest.mark.parametrize("has_old_data", [False, True])
def test_interruption_leaves_no_partial_tree(tmp_path: Path, has_old_data: bool) -> None:
    calls: list[int] = []

    def interrupt(done: int, note: str) -> None:
        calls.append(done)
        if done == 4:
            raise KeyboardInterrupt

    root = tmp_path / "scenes"
    if has_old_data:
        make(root, seed=9)
    before = tree(root)
    with pytest.raises(KeyboardInterrupt):
        make_synthetic_data(root, seed=0, train=3, validation=2, advance=interrupt)
    assert calls == [1, 2, 3, 4]
    assert root.exists() == has_old_data and tree(root) == before
    assert make(root) and make(tmp_path / "fresh")
    assert tree(root) == tree(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "scenes"]


@pytest.mark.parametrize(("varied", "smallest"), [(False, 30), (True, 20)])
def test_boxes_are_inside_the_image_and_overlap_little(varied: bool, smallest: int) -> None:
    seen, counts = set(), []
    for seed in range(120):
        picture, objects = draw_scene(Random(seed), Style(varied=varied))
        for label, (left, top, right, bottom) in objects:
            assert 0 <= left < right <= picture.width
            assert 0 <= top < bottom <= picture.height
            assert min(right - left, bottom - top) > smallest
            seen.add(label)
        boxes = [box for _, box in objects]
        shares = [overlap_share(a, b) for a in boxes for b in boxes if a is not b]
        assert all(share <= LARGEST_OVERLAP + 0.01 for share in shares)
        counts.append(len(objects))
    assert seen == set(range(len(KINDS)))
    assert 0 in counts and max(counts) == 5
    assert counts.count(0) < 15 and 2 < sum(counts) / len(counts) < 4


def test_umbrellas_may_be_rare() -> None:
    counts = np.zeros(len(KINDS))
    for seed in range(300):
        for label, _ in draw_scene(Random(seed), Style(rare=0.05))[1]:
            counts[label] += 1
    shares = counts / counts.sum()
    assert KINDS[-1].name == "Umbrella" and 0.02 < shares[-1] < 0.1
    assert (shares[:-1] > 0.1).all()


def test_overlap_share() -> None:
    # 5×10 of the smaller box's 10×10 are shared
    assert overlap_share((0, 0, 10, 10), (5, 0, 45, 10)) == 0.5
    assert overlap_share((0, 0, 10, 10), (10, 0, 20, 10)) == 0
    assert overlap_share((0, 0, 10, 10), (2, 2, 4, 4)) == 1


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
@pytest.mark.parametrize("seed", range(2))
def test_painters_fill_their_boxes(kind: Kind, seed: int) -> None:
    random = Random(seed)
    side = 224 * SUPERSAMPLING
    box = place_box(kind, side, side, random)
    canvas = Image.new("RGB", (side, side))
    kind.paint(ImageDraw.Draw(canvas), box, kind.colours[seed % len(kind.colours)], random)
    rows, columns = np.nonzero(np.asarray(canvas).any(axis=2))
    extent = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert extent == pytest.approx(box, abs=2)


def test_command_writes_the_folder_of_a_labelling_tool(tmp_path: Path, run_here: RunHere) -> None:
    out = tmp_path / "sub" / "my-photos"
    done = run_here(main, "scenes", "--out", out, "--images", "5", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "drawing images 5/5" in done.stdout and "5 images in" in done.stdout
    annotations = read_annotations(out / "annotations" / "instances_default.json")
    assert len(annotations) == 5 and len(annotations.boxes) > 0
    for index, name in enumerate(annotations.file_names):
        with Image.open(out / "images" / name) as picture:
            assert picture.size == (annotations.widths[index], annotations.heights[index])
    assert [path.name for path in out.parent.iterdir()] == ["my-photos"]


def test_varied_images_differ_more_in_size_and_light(tmp_path: Path, run_here: RunHere) -> None:
    spreads = []
    for name, options in (("usual", ()), ("varied", ("--varied",))):
        out = tmp_path / name
        done = run_here(main, "scenes", "--out", out, "--images", "30", *options)
        assert done.returncode == 0, done.stderr
        annotations = read_annotations(out / "annotations" / "instances_default.json")
        areas = (annotations.boxes[:, 2:] - annotations.boxes[:, :2]).prod(axis=1)
        light = [np.asarray(Image.open(path)).mean() for path in (out / "images").iterdir()]
        spreads.append((areas.max() / areas.min(), np.std(light)))
    assert all(more > 1.5 * less for less, more in zip(*spreads, strict=True))


def test_folder_that_exists_or_cannot_be_written_is_refused(
    tmp_path: Path, run_here: RunHere
) -> None:
    out = tmp_path / "my-photos"
    out.mkdir()
    (out / "mine.jpg").write_bytes(b"mine")
    for folder, problem in ((out, f"{out} already exists"), (out / "mine.jpg" / "a", "written")):
        done = run_here(main, "scenes", "--out", folder, "--images", "1")
        assert done.returncode == 2 and problem in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in out.iterdir()] == ["mine.jpg"]


def test_ctrl_c_leaves_nothing(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path, labels: Path, **_: object) -> None:
        (folder / "photo-00000.jpg").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(data.synthetic, "write_split", interrupted)
    assert run_here(main, "scenes", "--out", tmp_path / "my-photos").returncode == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_small_objects_are_few_pixels_of_a_large_picture(tmp_path: Path, run_here: RunHere) -> None:
    done = run_here(main, "scenes", "--out", tmp_path / "wide", "--images", "1", "--small-objects")
    assert (done.returncode, done.stderr) == (0, "")
    annotations = read_annotations(tmp_path / "wide" / "annotations" / "instances_default.json")
    assert annotations.image_size(0) == (3000, 4000) and len(annotations.boxes) > 400
    sides = np.sqrt((annotations.boxes[:, 2:] - annotations.boxes[:, :2]).prod(axis=1))
    assert 22 < np.median(sides) < 26 and 14 < sides.min() < sides.max() < 34
    # No class has more boxes than COCO's metric counts in an image.
    assert np.bincount(annotations.box_category_ids).max() <= 100
