"""`retinanet predict --labels`: boxes that come back through `retinanet data convert`."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pycocotools.coco import COCO

import retinanet.predict.labels
from common.console import make_console
from common.errors import InputError
from common.files import require_free
from data.__main__ import main as data_main
from data.annotations import UNNAMED, Annotations, ClassMap
from data.index import open_annotations
from data.tiling import TileOptions
from retinanet.__main__ import main
from retinanet.commands import PredictOptions
from retinanet.evaluation.matching import ImageDetections
from retinanet.predict.labels import Labels
from retinanet.predict.search import find_sources
from tests.support.commands import RunHere, error_line
from tests.support.random_detectors import NAMES

CLASSES = ClassMap((7, 0, 44, 9), ("traffic light", UNNAMED, "Große Ente: <weiß> & 'bunt'", "猫"))
NAMED = [name for name in CLASSES.names if name != UNNAMED]
SIZE = (64, 48)
"""Of the displayed pictures: width, height."""
ORIENTATIONS = {
    "a/x.png": 1,
    "a/empty.png": 1,
    "b/x.png": 6,
    "b/upside down.png": 3,
    "b/c/ä.png": 1,
}
"""Files whose stems repeat, one without boxes, and their EXIF orientations."""


def write_photos(folder: Path, orientations: Mapping[str, int]) -> None:
    for name, orientation in orientations.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        size = SIZE[::-1] if orientation == 6 else SIZE
        Image.new("RGB", size, (90, 120, 150)).save(folder / name, exif=exif)


def some_detections(seed: int, *, boxes: int = 9) -> ImageDetections:
    """Boxes of all classes; the first one is the whole picture and a bit more."""
    random = np.random.default_rng(seed)
    corners = np.sort(random.uniform(0, SIZE, (boxes, 2, 2)), axis=1)
    corners[:, 1] = np.minimum(corners[:, 1] + 2, SIZE)
    corners[:1] = [[-0.001, 0], [SIZE[0] + 0.001, SIZE[1]]]
    return ImageDetections(
        image_id=0,
        boxes=corners.reshape(-1, 4),
        scores=np.sort(random.uniform(0.4, 1, boxes))[::-1],
        category_ids=random.permutation(np.resize([7, 44, 9], boxes)),
    )


@pytest.fixture(autouse=True)
def classes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints have the classes above, without being there."""
    if "detector" not in request.fixturenames:
        model = SimpleNamespace(classes=CLASSES.to_json())
        monkeypatch.setattr(
            retinanet.predict.labels, "read_trained", lambda path: SimpleNamespace(model=model)
        )


def labels_of(name: Any, out: Path, *pictures: Path) -> Labels:
    options = PredictOptions(
        checkpoint=Path("run"),
        pictures=list(pictures),
        out=out,
        labels=name,
        json=None,
        tiles=TileOptions(),
    )
    return Labels(options, find_sources(pictures, out=out))


def written(name: str, photos: Path, out: Path) -> dict[str, ImageDetections]:
    """Write labels of all photos; return the boxes that they should have."""
    labels = labels_of(name, out, photos)
    expected = {}
    for seed, file in enumerate(ORIENTATIONS):
        found = some_detections(seed, boxes=0 if "empty" in file else 9)
        labels.add(photos / file, SIZE, found)
        expected[file] = found
    labels.write(make_console(quiet=True))
    assert sorted(labels.files) == sorted(file for file in out.rglob("*") if file.is_file())
    return expected


def corners_in(annotations: Annotations, row: int) -> NDArray[np.float64]:
    return annotations.boxes[annotations.box_slice(row)]


def classes_in(annotations: Annotations, row: int) -> list[str]:
    names = dict(zip(annotations.category_ids.tolist(), annotations.category_names, strict=True))
    return [names[n] for n in annotations.box_category_ids[annotations.box_slice(row)].tolist()]


@pytest.mark.parametrize("name", ["yolo", "voc", "coco"])
def test_boxes_come_back(tmp_path: Path, run_here: RunHere, name: str) -> None:
    photos, out = tmp_path / "my photos", tmp_path / "out"
    write_photos(photos, ORIENTATIONS)
    expected = written(name, photos, out)
    done = run_here(
        data_main,
        *("convert", out, "--from", name, "--images", photos, "--out", tmp_path / "back"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for fault in ("partly_outside", "zero_size", "without a file", "read as stored", "from 0, not"):
        assert fault not in done.stdout
    back = open_annotations(tmp_path / "back" / "all.json")
    assert list(back.category_names) == NAMED
    assert sorted(back.file_names) == sorted(ORIENTATIONS)
    for row, file in enumerate(back.file_names):
        assert back.image_size(row) == SIZE[::-1]
        assert back.is_displayed[row] == (ORIENTATIONS[file] != 1)
        found = expected[file]
        ids = found.category_ids.tolist()
        assert classes_in(back, row) == [CLASSES.names[CLASSES.category_ids.index(n)] for n in ids]
        exact = np.clip(found.boxes, 0, (*SIZE, *SIZE))
        if name == "voc":
            np.testing.assert_array_equal(corners_in(back, row), exact.round())
        else:
            np.testing.assert_allclose(
                corners_in(back, row), exact.round(2), atol=1e-4 if name == "yolo" else 1e-9
            )


def test_other_readers_see_the_same_boxes(tmp_path: Path) -> None:
    """Pycocotools, and plain readings of YOLO's and VOC's files by their definitions."""
    photos = tmp_path / "photos"
    write_photos(photos, ORIENTATIONS)
    file = "b/c/ä.png"
    for name in ("yolo", "voc", "coco"):
        exact = written(name, photos, tmp_path / name)[file]
    boxes = np.clip(exact.boxes, 0, (*SIZE, *SIZE))
    numbers = [{7: 0, 44: 1, 9: 2}[number] for number in exact.category_ids.tolist()]

    text = (tmp_path / "yolo/train/labels/b/c/ä.txt").read_text()
    rows = np.array([line.split() for line in text.splitlines()], float)
    assert rows[:, 0].tolist() == numbers
    corners = np.concatenate([rows[:, 1:3] - rows[:, 3:] / 2, rows[:, 1:3] + rows[:, 3:] / 2], 1)
    np.testing.assert_allclose(corners * (*SIZE, *SIZE), boxes, atol=6e-3)
    classes = (tmp_path / "yolo/train/labels/classes.txt").read_text().splitlines()
    assert classes == NAMED == (tmp_path / "yolo/train/classes.txt").read_text().splitlines()
    assert "./train/images/b/c/ä.png" in (tmp_path / "yolo/train.txt").read_text().splitlines()

    tree = ET.parse(tmp_path / "voc/b/c/ä.xml").getroot()
    assert [tree.findtext(path) for path in ("filename", "size/width")] == ["ä.png", "64"]
    objects = tree.findall("object")
    assert [NAMED.index(str(each.findtext("name"))) for each in objects] == numbers
    for each, box in zip(objects, boxes, strict=True):
        x1, y1, x2, y2 = (
            int(str(each.findtext(f"bndbox/{side}"))) for side in ("xmin", "ymin", "xmax", "ymax")
        )
        assert [x1 - 1, y1 - 1, x2, y2] == box.round().tolist()  # counted from 1, the last inside

    coco = COCO(str(tmp_path / "coco/annotations/instances_default.json"))
    [image] = [each for each in coco.dataset["images"] if each["file_name"] == file]
    found = coco.loadAnns(coco.getAnnIds(image["id"]))
    assert [each["category_id"] - 1 for each in found] == numbers  # 0 is no class to CVAT
    assert [each["score"] for each in found] == [round(score, 4) for score in exact.scores]
    assert all(each["segmentation"] == [] and each["iscrowd"] == 0 for each in found)
    xywh = np.array([each["bbox"] for each in found])
    np.testing.assert_allclose(xywh[:, :2] + xywh[:, 2:], boxes[:, 2:], atol=0.02)


@pytest.mark.parametrize("name", ["yolo", "coco"])
def test_photo_turned_by_180_degrees_needs_no_other(
    tmp_path: Path, run_here: RunHere, name: str
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    write_photos(photos, {"a.png": 3})
    labels = labels_of(name, out, photos)
    labels.add(photos / "a.png", SIZE, some_detections(0))
    labels.write(make_console(quiet=True))
    options = ("--from", name, "--images", photos, "--out", tmp_path / "back")
    assert run_here(data_main, "convert", out, *options).returncode == 0
    assert open_annotations(tmp_path / "back" / "all.json").is_displayed.tolist() == [True]


def test_smallest_box_keeps_a_pixel(tmp_path: Path) -> None:
    write_photos(tmp_path, {"a.png": 1})
    labels = labels_of("voc", tmp_path / "out", tmp_path)
    at_border = np.array([[63.9, 47.8, 64, 48], [10.4, 20, 10.45, 20.1]])
    tiny = ImageDetections(
        image_id=0, boxes=at_border, scores=np.ones(2), category_ids=np.array([7, 7])
    )
    labels.add(tmp_path / "a.png", SIZE, tiny)
    labels.write(make_console(quiet=True))
    text = (tmp_path / "out/a.xml").read_text()
    assert "<xmin>64</xmin><ymin>48</ymin><xmax>64</xmax><ymax>48</ymax>" in text
    assert "<xmin>11</xmin><ymin>21</ymin><xmax>11</xmax><ymax>21</ymax>" in text


def test_names_begin_in_the_folder_of_all_pictures(tmp_path: Path) -> None:
    write_photos(tmp_path, {"a/x.png": 1, "b/x.png": 1, "b/x.jpg": 1})
    labels = labels_of("yolo", tmp_path / "out", tmp_path / "a", tmp_path / "b" / "x.png")
    assert [str(file.relative_to(tmp_path)) for file in labels.files[4:]] == [
        "out/train/labels/a/x.txt",
        "out/train/labels/b/x.txt",
    ]
    require_free(labels.files, overwrite=False, advice="")
    for name in ("yolo", "voc"):  # both pictures' labels have one name
        labels = labels_of(name, tmp_path / "out", tmp_path / "b")
        with pytest.raises(InputError, match=r"x\.(txt|xml): two outputs have this name"):
            require_free(labels.files, overwrite=False, advice="")


@pytest.mark.slow
def test_command_writes_labels_and_nothing_else(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    photos, out, boxes = tmp_path / "photos", tmp_path / "out", tmp_path / "boxes.json"
    write_photos(photos, ORIENTATIONS)
    (photos / "bad.jpg").write_bytes(b"no picture")
    predict: tuple[str | Path, ...]
    predict = ("predict", "--checkpoint", detector, photos, "--labels", "coco", "--score", "0.1")
    assert "--labels: needs --out DIR" in error_line(run_here(main, *predict))
    predict = (*predict, "--out", out)
    done = run_here(main, *predict, "--json", boxes)
    assert done.returncode == 2 and "1 could not be read" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"{out} --from coco --images {photos} --out …")
    file = out / "annotations" / "instances_default.json"
    assert [each for each in out.rglob("*") if each.is_file()] == [file]
    content = COCO(str(file)).dataset
    assert [each["name"] for each in content["categories"]] == list(NAMES)
    assert len(content["images"]) == len(ORIENTATIONS)
    names = {each["id"]: each["file_name"] for each in content["images"]}
    count = sum(line.startswith("{") for line in boxes.read_text().splitlines())
    assert {names[each["image_id"]] for each in content["annotations"]} <= set(ORIENTATIONS)
    assert len(content["annotations"]) == count > 0
    assert min(each["score"] for each in content["annotations"]) >= 0.1

    before = file.read_bytes()
    assert f"{file}: exists; give --overwrite" in error_line(run_here(main, *predict))
    file.rename(tmp_path / "mine.json")
    file.symlink_to(tmp_path / "mine.json")
    refused = run_here(main, *predict, "--overwrite")
    assert "is a link, which is not written through" in error_line(refused)
    assert (tmp_path / "mine.json").read_bytes() == before
    (tmp_path / "street.mp4").write_bytes(b"")
    predict = ("predict", tmp_path / "street.mp4", "--checkpoint", detector, *predict[4:])
    refused = run_here(main, *predict)
    assert "street.mp4: --labels is for pictures" in error_line(refused)
