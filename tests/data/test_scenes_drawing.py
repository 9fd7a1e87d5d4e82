import hashlib
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from data.annotations import find_split
from data.coco_json import read_annotations
from data.synthetic import (
    KINDS,
    LARGEST_OVERLAP,
    SIZES,
    SUPERSAMPLING,
    Kind,
    draw_scene,
    make_synthetic_data,
    overlap_share,
    place_box,
)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def make(root: Path, *, seed: int = 0, train: int = 3, validation: int = 2) -> bool:
    return make_synthetic_data(root, seed=seed, train=train, validation=validation)


def test_one_seed_gives_the_same_bytes_and_another_seed_other_pictures(tmp_path: Path) -> None:
    for name, seed in (("first", 5), ("second", 5), ("other", 6)):
        assert make(tmp_path / name, seed=seed)
    first, other = digests(tmp_path / "first"), digests(tmp_path / "other")
    assert first == digests(tmp_path / "second")
    assert first.keys() == other.keys()
    assert not set(first.values()) & set(other.values())


def test_training_and_validation_scenes_differ(tmp_path: Path) -> None:
    make(tmp_path / "scenes", train=3, validation=3)
    found = digests(tmp_path / "scenes")
    assert len(set(found.values())) == len(found) == 6 + 2 + 1


def test_more_scenes_start_with_the_same_ones(tmp_path: Path) -> None:
    make(tmp_path / "few", train=2)
    make(tmp_path / "more", train=4)
    few, more = digests(tmp_path / "few"), digests(tmp_path / "more")
    pictures = [name for name in few if name.endswith(".jpg")]
    assert len(pictures) == 4 and all(few[name] == more[name] for name in pictures)


def test_scenes_that_are_there_are_not_drawn_again(tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    assert make(root)
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    assert not make(root)
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*")} == before


def test_scenes_of_another_recipe_are_replaced_as_a_whole(tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    make(root, train=4)
    assert make(root, train=2)
    assert make(root, seed=1, train=2)
    make(tmp_path / "fresh", seed=1, train=2)
    assert digests(root) == digests(tmp_path / "fresh")


def test_the_tree_is_openimages_and_its_annotations_are_cocos(tmp_path: Path) -> None:
    root = tmp_path / "scenes"
    make(root, train=4, validation=3)
    for split, count in (("train", 4), ("validation", 3)):
        found = find_split(root, split, annotations=None, images=None)  # type: ignore[arg-type]
        annotations = read_annotations(found.annotations)
        assert len(annotations) == count
        assert annotations.category_names == tuple(kind.name for kind in KINDS)
        for index, name in enumerate(annotations.file_names):
            with Image.open(found.images / name) as picture:
                size = int(annotations.widths[index]), int(annotations.heights[index])
                assert picture.size == size and size in SIZES


def test_progress_is_told_after_every_scene(tmp_path: Path) -> None:
    told: list[int] = []
    make_synthetic_data(
        tmp_path / "scenes",
        seed=0,
        train=3,
        validation=2,
        advance=lambda done, note: told.append(done),
    )
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("old_scenes", [False, True])
def test_an_interrupted_drawing_leaves_no_half_tree(tmp_path: Path, old_scenes: bool) -> None:
    def interrupt(done: int, note: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    root = tmp_path / "scenes"
    if old_scenes:
        make(root, seed=9)
    before = digests(root)
    with pytest.raises(KeyboardInterrupt):
        make_synthetic_data(root, seed=0, train=3, validation=2, advance=interrupt)
    assert root.exists() == old_scenes and digests(root) == before
    assert make(root)
    make(tmp_path / "fresh")
    assert digests(root) == digests(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "scenes"]


def test_boxes_lie_inside_the_picture_and_cover_little_of_one_another() -> None:
    seen = set()
    for seed in range(60):
        picture, objects = draw_scene(Random(seed))
        for label, (left, top, right, bottom) in objects:
            assert 0 <= left < right <= picture.width
            assert 0 <= top < bottom <= picture.height
            assert min(right - left, bottom - top) > 30
            seen.add(label)
        boxes = [box for _, box in objects]
        shares = [overlap_share(a, b) for a in boxes for b in boxes if a is not b]
        assert all(share <= LARGEST_OVERLAP + 0.01 for share in shares)
    assert seen == set(range(len(KINDS)))


def test_some_scenes_are_empty_and_most_hold_several_objects() -> None:
    counts = [len(draw_scene(Random(seed))[1]) for seed in range(120)]
    assert 0 in counts and max(counts) == 5
    assert counts.count(0) < 15 and 2 < sum(counts) / len(counts) < 4


def test_boxes_in_the_json_are_xywh_of_what_was_drawn(tmp_path: Path) -> None:
    make(tmp_path / "scenes", seed=3, train=5)
    labels = tmp_path / "scenes/train/labels/openimages-mlperf.json"
    content = json.loads(labels.read_text())
    for image in content["images"]:
        _, objects = draw_scene(Random(f"3 train {image['id'] - 1}"))
        written = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        assert [one["category_id"] for one in written] == [label + 1 for label, _ in objects]
        for one, (_, (left, top, right, bottom)) in zip(written, objects, strict=True):
            assert one["bbox"] == pytest.approx([left, top, right - left, bottom - top])


def test_overlap_share_by_hand() -> None:
    # 5×10 of the smaller box's 10×10 are shared
    assert overlap_share((0, 0, 10, 10), (5, 0, 45, 10)) == 0.5
    assert overlap_share((0, 0, 10, 10), (10, 0, 20, 10)) == 0
    assert overlap_share((0, 0, 10, 10), (2, 2, 4, 4)) == 1


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
@pytest.mark.parametrize("seed", range(4))
def test_every_painter_fills_its_box(kind: Kind, seed: int) -> None:
    random = Random(seed)
    side = 224 * SUPERSAMPLING
    box = place_box(kind, side, side, random)
    canvas = Image.new("RGB", (side, side))
    kind.paint(ImageDraw.Draw(canvas), box, kind.colours[seed % len(kind.colours)], random)
    rows, columns = np.nonzero(np.asarray(canvas).any(axis=2))
    extent = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert extent == pytest.approx(box, abs=2)
