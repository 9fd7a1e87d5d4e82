"""`retinanet data tile`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.__main__ import main
from data.annotations import Split, TrainingRules
from data.dataset import SampleKey, open_data
from tests.data.download.samples import tree
from tests.data.samples import write_json
from tests.support.commands import RunHere, error_line

CATEGORIES = [{"id": 3, "name": "Cat"}, {"id": 9, "name": "Dog"}]
Box = tuple[float, float, float, float]  # COCO's xywh


def write_photo(
    file: Path, *, width: int, height: int, seed: int = 0, **save: Any
) -> dict[str, Any]:
    """Write a smooth picture, and return its entry in the list of images."""
    file.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(file, **save)
    return {"id": seed, "file_name": file.name, "width": width, "height": height}


def one_photo(folder: Path, boxes: list[Box], *, name: str = "train", **facts: Any) -> Path:
    """A data set of one picture of 260 × 100 pixels: three tiles of 100."""
    image = write_photo(folder / "images" / "a.png", width=260, height=100)
    annotations = [
        {"id": 10 * row, "image_id": 0, "category_id": 3, "bbox": list(box), **facts}
        for row, box in enumerate(boxes)
    ]
    content = {"categories": CATEGORIES, "images": [image], "annotations": annotations}
    return write_json(folder / f"{name}.json", content)


def boxes_of(file: Path) -> dict[str, list[list[float]]]:
    """Return the boxes of each tile by its name; all tiles have an entry."""
    content = json.loads(file.read_text())
    names = {image["id"]: image["file_name"] for image in content["images"]}
    found: dict[str, list[list[float]]] = {name: [] for name in names.values()}
    for box in content["annotations"]:
        found[names[box["image_id"]]].append(box["bbox"])
    return found


def cut(run_here: RunHere, *words: object, overlap: str = "0.2") -> str:
    done = run_here(main, "tile", *words, "--tiles", "100", "--overlap", overlap)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_boxes_are_cut_at_the_edges_of_tiles(tmp_path: Path, run_here: RunHere) -> None:
    boxes = [(70.0, 10.0, 20.0, 20.0), (60.0, 50.0, 50.0, 40.0), (0.0, 0.0, 260.0, 100.0)]
    file = one_photo(tmp_path, boxes, area=600)
    before = tree(tmp_path)
    printed = cut(run_here, file, "--out", tmp_path / "new")
    assert "train: 1 image, 3 boxes → 3 tiles, 4 boxes; 1 tile without boxes" in printed
    assert "note: boxes of which no tile shows a share of 0.5 (--visible): 1;" in printed
    # Half of the first box is in the second tile, and 0.6 of the second box.
    assert boxes_of(tmp_path / "new" / "train.json") == {
        "a-0-0.jpg": [[70, 10, 20, 20], [60, 50, 40, 40]],
        "a-80-0.jpg": [[0, 10, 10, 20], [0, 50, 30, 40]],
        "a-160-0.jpg": [],
    }
    content = json.loads((tmp_path / "new" / "train.json").read_text())
    assert content["categories"] == CATEGORIES
    # A mask of 600 pixels fills 0.3 of the second box, so of its part.
    assert [box["area"] for box in content["annotations"]] == [600, 480, 300, 360]
    assert [box["id"] for box in content["annotations"]] == [1, 2, 3, 4]
    assert {image["width"] for image in content["images"]} == {100}
    photo = np.asarray(Image.open(tmp_path / "images" / "a.png")).astype(int)
    with Image.open(tmp_path / "new" / "images" / "train" / "a-160-0.jpg") as tile:
        assert np.abs(np.asarray(tile) - photo[:, 160:]).max() < 12
    assert {name: content for name, content in tree(tmp_path).items() if name in before} == before


@pytest.mark.parametrize(
    "options, kept",
    [
        (("--visible", "0"), [2, 2, 0]),
        (("--visible", "0.55"), [2, 1, 0]),
        (("--visible", "1"), [1, 0, 0]),
        (("--skip-empty",), [2, 2]),
    ],
)
def test_options_decide_what_is_kept(
    options: tuple[str, ...], kept: list[int], tmp_path: Path, run_here: RunHere
) -> None:
    boxes = [(70.0, 10.0, 20.0, 20.0), (60.0, 50.0, 50.0, 40.0)]
    cut(run_here, one_photo(tmp_path, boxes), "--out", tmp_path / "new", *options)
    assert [len(each) for each in boxes_of(tmp_path / "new" / "train.json").values()] == kept


def test_crowds_are_labelled_wherever_they_are_visible(tmp_path: Path, run_here: RunHere) -> None:
    file = one_photo(tmp_path, [(0.0, 0.0, 165.0, 100.0)], iscrowd=1)
    cut(run_here, file, "--out", tmp_path / "new")
    assert boxes_of(tmp_path / "new" / "train.json") == {
        "a-0-0.jpg": [[0, 0, 100, 100]],
        "a-80-0.jpg": [[0, 0, 85, 100]],
        "a-160-0.jpg": [[0, 0, 5, 100]],
    }
    content = json.loads((tmp_path / "new" / "train.json").read_text())
    assert {box["iscrowd"] for box in content["annotations"]} == {1}


def test_small_objects_are_whole_in_a_tile(tmp_path: Path, run_here: RunHere) -> None:
    random = np.random.default_rng(0)
    image = write_photo(tmp_path / "a.jpg", width=731, height=457)
    boxes = [
        [*(random.uniform(0, 1, 2) * (np.array([731, 457]) - sides)), *sides]
        for sides in random.uniform(3, 30, (80, 2))
    ]
    annotations = [
        {"id": row, "image_id": 0, "category_id": 3, "bbox": box} for row, box in enumerate(boxes)
    ]
    content = {"categories": CATEGORIES, "images": [image], "annotations": annotations}
    cut(
        run_here, write_json(tmp_path / "a.json", content), "--out", tmp_path / "new", overlap="0.3"
    )
    found = [
        [box[0] + float(left), box[1] + float(top), *box[2:]]
        for name, inside in boxes_of(tmp_path / "new" / "a.json").items()
        for _, left, top in [name.removesuffix(".jpg").split("-")]
        for box in inside
    ]
    for box in boxes:
        assert np.abs(np.array(found) - box).max(axis=1).min() < 1e-6


def test_turned_and_resized_photos_and_names_in_folders(tmp_path: Path, run_here: RunHere) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    entries = [
        write_photo(tmp_path / "images" / "b" / "a.jpg", width=50, height=120, seed=1, exif=exif),
        write_photo(tmp_path / "images" / "b" / "a.png", width=150, height=90, seed=2),
    ]
    entries[0] |= {"file_name": "b/a.jpg", "width": 120, "height": 50}  # as it is displayed
    entries[1] |= {"file_name": "b/a.png", "width": 300, "height": 180}  # twice as large
    boxes = [
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [90, 20, 30, 10]},
        {"id": 2, "image_id": 2, "category_id": 9, "bbox": [200, 40, 20, 30]},
    ]
    content = {"categories": CATEGORIES, "images": entries, "annotations": boxes}
    file = write_json(tmp_path / "a.json", content)
    words = ("--images", tmp_path / "images", "--out", tmp_path / "new")
    cut(run_here, file, *words, overlap="0")
    assert boxes_of(tmp_path / "new" / "a.json") == {
        "b/a.jpg-0-0.jpg": [],
        "b/a.jpg-20-0.jpg": [[70, 20, 30, 10]],
        "b/a.png-0-0.jpg": [],
        "b/a.png-50-0.jpg": [[50, 20, 10, 15]],
    }
    displayed = np.asarray(Image.open(tmp_path / "images" / "b" / "a.jpg")).astype(int)
    with Image.open(tmp_path / "new" / "images" / "a" / "b" / "a.jpg-20-0.jpg") as tile:
        turned = np.rot90(displayed, k=-1)[:, 20:]
        assert tile.size == (100, 50) and np.abs(np.asarray(tile) - turned).max() < 12


def test_training_opens_both_splits(tmp_path: Path, run_here: RunHere) -> None:
    files = [
        one_photo(tmp_path, [(70.0, 10.0, 20.0, 20.0)], name=name)
        for name in ("train", "validation")
    ]
    new = tmp_path / "new"
    printed = cut(run_here, *files, "--out", new)
    assert f"data verify --config {new / 'my-photos.yaml'}" in printed
    splits = [
        Split(new / f"{name}.json", new / "images" / name) for name in ("train", "validation")
    ]
    rules = TrainingRules(image_size=64, skip_images_without_boxes=True)
    data = open_data(splits[0], splits[1], rules)
    assert (len(data.train), len(data.validation)) == (2, 3)
    [box] = data.train[SampleKey(1, 0)].target["boxes"].tolist()
    assert box == pytest.approx([0, 6.4, 6.4, 19.2]) or box == pytest.approx([57.6, 6.4, 64, 19.2])


def test_nothing_is_replaced_and_nothing_half_done_remains(
    tmp_path: Path, run_here: RunHere
) -> None:
    file, new = one_photo(tmp_path, [(70.0, 10.0, 20.0, 20.0)]), tmp_path / "new"
    words = ("--tiles", "100", "--out", new)

    def refused(*more: object) -> str:
        return error_line(run_here(main, "tile", *more))

    assert "--tiles: missing; give the side of a tile" in refused(file, "--out", new)
    assert "two outputs have this name" in refused(file, tmp_path / "images" / "train.json", *words)
    assert "tiles: expected at least 32" in refused(file, "--tiles", "31", "--out", new)
    damaged = tmp_path / "images" / "b.png"
    content = json.loads(file.read_text())
    content["images"].append({"id": 5, "file_name": "b.png", "width": 9, "height": 9})
    damaged.write_bytes(b"no image")
    bad = write_json(tmp_path / "bad.json", content)
    assert f"error: {damaged}: " in refused(file, bad, *words) and not new.exists()
    content["images"][1] = write_photo(damaged, width=9, height=9, seed=5)
    content["images"][1]["width"] = 18
    write_json(bad, content)
    assert "the image is 9×9 pixels, annotated as 18×9" in refused(bad, *words)
    content["annotations"] = []
    content["images"][1]["width"] = 9
    write_json(bad, content)
    assert "bad: no tile has a box; leave --skip-empty out" in refused(bad, *words, "--skip-empty")
    assert not new.exists()
    cut(run_here, file, "--out", new)
    before = tree(new)
    assert f"{new / 'train.json'}: exists; change --out" in refused(file, *words)
    (new / "train.json").unlink()
    assert f"{new / 'images' / 'train'}: exists; change --out" in refused(file, *words)
    assert tree(new).items() <= before.items()


def test_links_out_of_the_folder_are_cut_only_if_allowed(tmp_path: Path, run_here: RunHere) -> None:
    """Tiles may be published: a data set's link must not bring a private photo into them."""
    file, photo = one_photo(tmp_path, []), tmp_path / "images" / "a.png"
    photo.rename(tmp_path / "private.png")
    photo.symlink_to(tmp_path / "private.png")
    words = (file, "--tiles", "100", "--images", tmp_path / "images", "--out", tmp_path / "new")
    line = error_line(run_here(main, "tile", *words))
    assert f"{photo}: leads outside of {tmp_path / 'images'}; give --allow-outside" in line
    assert run_here(main, "tile", *words, "--allow-outside").returncode == 0
