"""YOLO's data sets: layouts, lines, and the first faulty one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from common.errors import InputError
from data.formats.yolo import box_of_shares, read_yolo
from tests.data.formats.written import (
    NAMES,
    random_annotations,
    reading,
    write_data_yaml,
    write_photos,
    write_yolo,
)
from tests.support.commands import error_message

read = reading(read_yolo)


def small_set(folder: Path, text: str = "0 0.5 0.5 0.25 0.5\n", **splits: str) -> Path:
    """Write two photos, 64×48, of which the first has labels."""
    for name in "ab":
        path = folder / "images" / "train" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 48)).save(path)
    (folder / "labels" / "train").mkdir(parents=True)
    (folder / "labels" / "train" / "a.txt").write_text(text)
    return write_data_yaml(folder, NAMES, **(splits or {"train": "images/train"}))


def test_boxes_are_equal_within_the_formats_six_digits(tmp_path: Path) -> None:
    expected = random_annotations(images=700, boxes=1500, size=(96, 64))
    write_photos(tmp_path / "images" / "train", expected)
    write_yolo(tmp_path, expected)
    [split] = read(write_data_yaml(tmp_path, NAMES, train="images/train"))
    found = split.annotations
    order = np.argsort(list(expected.file_names))
    assert split.images == tmp_path / "images" / "train"
    assert list(found.file_names) == sorted(expected.file_names)
    assert found.category_names == NAMES and found.category_ids.tolist() == [0, 1, 2]
    for row, original in enumerate(order.tolist()):
        a, b = found.box_slice(row), expected.box_slice(original)
        np.testing.assert_allclose(found.boxes[a], expected.boxes[b], atol=1e-4)
        assert (found.box_category_ids[a] == expected.box_category_ids[b]).all()
    # Six digits of shares of 96 pixels.
    np.testing.assert_allclose(np.sort(found.box_areas), np.sort(expected.box_areas), atol=1e-2)


TRIANGLE, SQUARE = "2 0 0 1 0 0 1\n", "1 0.25 0.5 0.5 0.25 0.75 0.5 0.5 0.75\n"
BOX, LABEL = [24, 12, 40, 36], "0 0.5 0.5 0.25 0.5\n"
WITHOUT = "images without a file of labels (no boxes): 1"


@pytest.mark.parametrize(
    ("text", "boxes", "areas"),
    [
        (LABEL.encode(), [BOX], [16 * 24]),
        (LABEL.encode("utf-8-sig"), [BOX], [16 * 24]),
        (LABEL.encode("utf-16"), [BOX], [16 * 24]),
        (b"\n  \n0.0 0.5 0.5 0.25 0.5\n\n", [BOX], [16 * 24]),
        # Half of the boxes: a square on its corner, and a triangle.
        ((SQUARE + TRIANGLE).encode(), [[16, 12, 48, 36], [0, 0, 64, 48]], [384, 1536]),
        # A single point in the centre, as some programs write it behind each box, is no triangle.
        (b"0 0.5 0.5 0.25 0.5 0.5 0.5\n", [BOX], [16 * 24]),
    ],
)
def test_boxes_of_a_file(
    tmp_path: Path, text: bytes, boxes: list[list[float]], areas: list[float]
) -> None:
    file = small_set(tmp_path)
    (tmp_path / "labels" / "train" / "a.txt").write_bytes(text)
    [split] = read(file)
    assert split.annotations.boxes.tolist() == boxes
    assert split.annotations.box_areas.tolist() == areas
    assert np.diff(split.annotations.box_offsets).tolist() == [len(boxes), 0]
    polygons = "polygons (their enclosing boxes are taken): 2"
    assert WITHOUT in split.notes and (polygons in split.notes) == (len(boxes) == 2)
    (tmp_path / "labels" / "train" / "b.txt").write_text("")
    assert WITHOUT not in read(tmp_path)[0].notes


def point_lines(numbers: int, *, points: int, marks: bool, seed: int = 0) -> str:
    """Return lines with a box and points inside of it, perhaps each with a mark."""
    random = np.random.default_rng(seed)
    lines = []
    for centre in random.uniform(0.3, 0.7, (numbers, 2)):
        sides = random.uniform(0.05, 0.3, 2)
        words = [*centre, *sides]
        for shift in random.uniform(-0.5, 0.5, (points, 2)):
            words += [*(centre + shift * sides), *([int(random.integers(1, 3))] if marks else [])]
        lines.append(" ".join(["0", *map(str, words)]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("points", "marks"), [(1, False), (2, False), (17, False), (1, True), (2, True), (17, True)]
)
def test_key_points_without_kpt_shape_are_recognized(
    tmp_path: Path, points: int, *, marks: bool
) -> None:
    text = point_lines(20, points=points, marks=marks)
    file = small_set(tmp_path, text + "1 0.5 0.5 0.25 0.5\n")
    [found] = read(file)
    assert any(note.startswith("lines without kpt_shape taken for") for note in found.notes)
    file.write_text(f"{file.read_text()}kpt_shape: [{points}, {3 if marks else 2}]\n")
    [expected] = read(file)
    np.testing.assert_array_equal(found.annotations.boxes, expected.annotations.boxes)


@pytest.mark.parametrize("corners", [3, 4, 5])
def test_polygons_of_equal_length_stay_polygons(tmp_path: Path, corners: int) -> None:
    random = np.random.default_rng(corners)
    turns = np.arange(corners) * 2 * np.pi / corners
    around = np.stack([np.cos(turns), np.sin(turns)], axis=1) * 0.08
    polygons = random.uniform(0.1, 0.9, (30, 1, 2)) + around
    lines = [" ".join(["0", *map(str, polygon.ravel())]) for polygon in polygons]
    [split] = read(small_set(tmp_path, "\n".join(lines)))
    low, high = polygons.min(axis=1) * (64, 48), polygons.max(axis=1) * (64, 48)
    np.testing.assert_allclose(split.annotations.boxes, np.concatenate([low, high], axis=1))


def test_few_lines_that_may_be_either_are_refused(tmp_path: Path) -> None:
    file = small_set(tmp_path, "0 0.5 0.5 0.55 0.5 0.55 0.55 0.5 0.55\n")
    message = error_message(read, file)
    assert message.startswith(f"{file}: 1 lines with 9 columns may be polygons, or boxes with key")
    text = file.read_text()
    file.write_text(f"{text}kpt_shape: [0, 2]\n")
    [split] = read(file)
    np.testing.assert_allclose(split.annotations.boxes, [[32, 24, 35.2, 26.4]])
    file.write_text(f"{text}kpt_shape: [2, 2]\n")
    [split] = read(file)
    np.testing.assert_allclose(split.annotations.boxes, [[14.4, 12, 49.6, 36]])


def test_key_points_are_left_out(tmp_path: Path) -> None:
    file = small_set(tmp_path, "0 0.5 0.5 0.25 0.5 0.1 0.2 2 0.3 0.4 0\n")
    assert "line 1: x4: 2 is not from 0 to 1" in error_message(read, file)
    file.write_text(file.read_text() + "kpt_shape: [2, 3]\n")
    [split] = read(file)
    assert split.annotations.boxes.tolist() == [[24, 12, 40, 36]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0.5 0.5 0.2\n", "a.txt: line 1: 4 columns, expected 5"),
        ("0 0.5 0.5 0.2 0.2 0.9\n", "a.txt: line 1: 6 columns, expected 5"),
        ("0 0.5 0.5 0.2 0.2 0.9\n", "is the last one a confidence?"),
        ("0 .5 .5 .2 .2\n\n3 .5 .5 .2 .2\n", "a.txt: line 3: class: 3 is not in names of"),
        ("-1 0.5 0.5 0.2 0.2\n", "line 1: class: -1 is not in names"),
        ("1.5 0.5 0.5 0.2 0.2\n", "line 1: class: '1.5' is not a whole number"),
        ("cat 0.5 0.5 0.2 0.2\n", "line 1: class: 'cat' is not a whole number"),
        ("0 0.5 0.5 abc 0.2\n", "line 1: width: 'abc' is not a number"),
        ("0 nan 0.5 0.2 0.2\n", "line 1: x centre: 'nan' is not a number"),
        ("0 0.5 1.5 0.2 0.2\n", "line 1: y centre: 1.5 is not from 0 to 1"),
        ("0 320 240 64 48\n", "line 1: x centre: 320 is not from 0 to 1"),
        ("0 0.5 0.5 0.2 -0.001\n", "line 1: height: -0.001 is not from 0 to 1"),
        ("0 0 0 1 0 0 7\n", "line 1: y3: 7 is not from 0 to 1"),
        (b"0 0.5 0.5 0.2 \xff\n", "line 1: height: '\xff' is not a number"),
    ],
)
def test_first_faulty_line_is_named(tmp_path: Path, text: str | bytes, expected: str) -> None:
    file = small_set(tmp_path)
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "labels" / "train" / "a.txt").write_bytes(content)
    message = error_message(read, file)
    assert expected in message and str(tmp_path / "labels") in message


def test_bad_labels_are_counted_and_skipped_if_asked(tmp_path: Path) -> None:
    file = small_set(tmp_path, f"0\n{LABEL}0\n")
    for name in ("b", "c"):
        Image.new("RGB", (64, 48)).save(tmp_path / "images" / "train" / f"{name}.jpg")
        (tmp_path / "labels" / "train" / f"{name}.txt").write_text("9 0 0 0 0\n")
    (tmp_path / "images" / "train" / "d.jpg").write_text("no image")
    message = error_message(read, file)
    assert message.endswith(" (4 more, --skip-bad-labels leaves bad labels out)")
    [split] = read(file, skip_bad_labels=True)
    assert list(split.annotations.file_names) == ["a.jpg"]
    assert split.annotations.boxes.tolist() == [[24, 12, 40, 36]]


@pytest.mark.parametrize("content", ["no image", ""])
def test_damaged_image_is_named(tmp_path: Path, content: str) -> None:
    file = small_set(tmp_path)
    image = tmp_path / "images" / "train" / "b.jpg"
    image.write_text(content)
    message = error_message(read, file)
    assert message.startswith(f"{image}: not an image in JPEG, PNG, ") and "<" not in message
    Image.new("RGB", (64, 48)).save(image)
    image.write_bytes(image.read_bytes()[:20])
    message = error_message(read, file)
    assert message.startswith(f"{image}: ") and "<" not in message


@pytest.mark.parametrize("source", [".", "data.yaml"])
def test_set_is_read_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    small_set(tmp_path)
    monkeypatch.chdir(tmp_path)
    [split] = read(Path(source))
    assert split.images == Path("images/train")
    assert np.diff(split.annotations.box_offsets).tolist() == [1, 0]
    Path("data.yaml").unlink()
    Path("classes.txt").write_text("cat\n")
    [split] = read(Path())
    assert np.diff(split.annotations.box_offsets).tolist() == [1, 0]
    assert split.notes == ["images without a file of labels (no boxes): 1"]


def test_labels_without_an_image_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_set(tmp_path)
    texts = {
        "labels/train/b.txt": LABEL,  # of an image
        "labels/train/c.txt": LABEL,
        "labels/train/missing folder/d.txt": f"\n{LABEL}",
        "images/train/e.txt": LABEL,  # beside the images
        "labels/train/f.txt": "",  # no boxes are left out
        "images/train/notes.txt": "1 cat on 2 photos\n",
        "labels/train/classes.txt": "cat\n",
        "labels/elsewhere/g.txt": LABEL,
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    first = tmp_path / "images" / "train" / "e.txt"
    [split] = read(tmp_path)
    assert split.notes == [f"files of labels without an image (left out): 3, first {first}"]
    monkeypatch.chdir(tmp_path)
    [split] = read(Path())
    assert split.notes == [
        "files of labels without an image (left out): 3, first images/train/e.txt"
    ]


def test_labels_of_unlisted_images_are_not_without_an_image(tmp_path: Path) -> None:
    """Lists divide one folder of images: each split leaves out the images of the other."""
    small_set(tmp_path)
    (tmp_path / "labels" / "train" / "b.txt").write_text(LABEL)
    (tmp_path / "labels" / "train" / "c.txt").write_text(LABEL)
    for name, image in (("train", "a"), ("val", "b")):
        (tmp_path / f"{name}.txt").write_text(f"images/train/{image}.jpg\n")
    lists = {"train": "train.txt", "val": "val.txt"}
    for split in read(write_data_yaml(tmp_path, NAMES, **lists)):
        orphan = tmp_path / "labels" / "train" / "c.txt"
        assert split.notes == [f"files of labels without an image (left out): 1, first {orphan}"]


def test_photo_that_is_displayed_rotated_has_its_displayed_size(tmp_path: Path) -> None:
    file = small_set(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(tmp_path / "images" / "train" / "a.jpg", exif=exif)
    [split] = read(file)
    assert split.annotations.image_size(0) == (64, 48)  # height, width
    assert split.annotations.boxes.tolist() == [[18, 16, 30, 48]]
    assert split.annotations.is_displayed.tolist() == [True, False]


def test_splits_and_their_lists(tmp_path: Path) -> None:
    small_set(tmp_path)
    other = tmp_path / "images" / "val"
    other.mkdir()
    Image.new("RGB", (64, 48)).save(other / "c.jpg")
    (tmp_path / "labels" / "val").mkdir()
    (tmp_path / "labels" / "val" / "c.txt").write_text("1 0.5 0.5 1 1\n")
    (tmp_path / "val.txt").write_text("./images/val/c.jpg\nimages/val/c.jpg\n")
    splits = {"train": "[images/train, images/val]", "val": "val.txt", "test": ""}
    train, validation = read(write_data_yaml(tmp_path, NAMES, **splits))
    assert (train.name, train.images) == ("train", tmp_path / "images")
    assert list(train.annotations.file_names) == ["train/a.jpg", "train/b.jpg", "val/c.jpg"]
    assert (validation.name, validation.images) == ("validation", other)
    assert validation.annotations.boxes.tolist() == [[0, 0, 64, 48]]
    # CVAT's lists have a folder that is not in its export.
    (tmp_path / "val.txt").write_text("data/images/val/c.jpg\ndata/images/val/d.jpg\n")
    assert "val.txt: line 2: " in error_message(read, tmp_path)
    validation = read(tmp_path, skip_missing_images=True)[1]
    assert "images that do not exist (skipped): 1" in validation.notes


@pytest.mark.parametrize("path", ["/content/set/images/{}", "D:\\set\\images\\{}", "../images/{}"])
def test_lists_and_folders_of_another_machine(tmp_path: Path, path: str) -> None:
    small_set(tmp_path / "set", train="train.txt")
    photo = tmp_path / "set" / "images" / "train" / "a.jpg"
    (tmp_path / "set" / "train.txt").write_text(path.format("train/a.jpg") + "\n")
    [split] = read(tmp_path / "set")
    assert [split.images / name for name in split.annotations.file_names] == [photo]
    assert "file names are shortened to the parts that exist: 1" in split.notes
    write_data_yaml(tmp_path / "set", NAMES, train=path.format("train"))
    [split] = read(tmp_path / "set")
    assert (split.images, len(split.annotations)) == (photo.parent, 2)


def test_roboflows_paths_begin_beside_the_file(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / name / "images").mkdir(parents=True)
        (tmp_path / name / "labels").mkdir()
        Image.new("RGB", (64, 48)).save(tmp_path / name / "images" / "a.jpg")
        (tmp_path / name / "labels" / "a.txt").write_text("0 0.5 0.5 1 1\n")
    text = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['a', 'b']\n"
    (tmp_path / "data.yaml").write_text(text)
    assert [split.name for split in read(tmp_path)] == ["train", "validation"]


@pytest.mark.parametrize("names", ["classes.txt", "labels/classes.txt", "obj.names"])
def test_labels_without_splits_are_one_set(tmp_path: Path, names: str) -> None:
    small_set(tmp_path)
    (tmp_path / "data.yaml").unlink()
    (tmp_path / names).write_text("cat\ndog\n\n")
    [split] = read(tmp_path)
    assert split.name == "all" and split.annotations.category_names == ("cat", "dog")
    assert list(split.annotations.file_names) == ["images/train/a.jpg", "images/train/b.jpg"]


@pytest.mark.parametrize("file", ["classes.txt", "obj.names"])
def test_empty_line_keeps_its_index(tmp_path: Path, file: str) -> None:
    small_set(tmp_path, "3 0.5 0.5 0.25 0.5\n")
    (tmp_path / "data.yaml").unlink()
    (tmp_path / file).write_bytes("\ndog\r\n\nGroße Ente\r\n\n".encode("utf-8-sig"))
    [split] = read(tmp_path)
    assert split.annotations.category_names == ("dog", "Große Ente")
    assert split.annotations.category_ids.tolist() == [1, 3]
    assert split.annotations.box_category_ids.tolist() == [3]
    (tmp_path / "labels" / "train" / "a.txt").write_text("2 0.5 0.5 0.25 0.5\n")
    assert "class: 2 is not in names of" in error_message(read, tmp_path)


@pytest.mark.parametrize("form", ["[{}]", "{{0: {}}}", "\n  0: {}"])
@pytest.mark.parametrize(
    "name", ["007", "1.10", "1e3", "0x1F", "1_000", "null", "true", "~", "'a b'"]
)
def test_names_are_texts_as_written(tmp_path: Path, form: str, name: str) -> None:
    file = small_set(tmp_path)
    file.write_text(f"train: images/train\nnc: 1\nnames: {form.format(name)}\n")
    [split] = read(file)
    assert split.annotations.category_names == (name.strip("'"),)


def test_labels_may_lie_beside_the_images(tmp_path: Path) -> None:
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("0 0.5 0.5 1 1\n")
    (tmp_path / "classes.txt").write_text("cat\n")
    [split] = read(tmp_path)
    assert split.annotations.boxes.tolist() == [[0, 0, 64, 48]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train: images/train\n", "names: expected a list"),
        ("train: images/train\nnames: [a, a]\n", "names: the class 'a' is listed twice"),
        ("train: images/train\nnames: [a, [b]]\n", "names[1]: expected a name"),
        ("train: images/train\nnames: {x: a}\n", "names: the index 'x' is not a whole number"),
        ("train: images/train\nnames: {0: a, 00: b}\n", "names: the index 0 is there twice"),
        ("train: images/train\nnames: [a]\nnc: 2\n", "nc: is '2', but there are 1 names"),
        ("train: nowhere\nnames: [a]\n", "train: 'nowhere' does not exist; looked for"),
        ("train: images/train\ntest: gone\nnames: [a]\n", "/gone; else take the line out"),
        ("train: 5\nnames: [a]\n", "train: expected a path"),
        ("names: [a]\n", "train: missing"),
        ("- a\n", "expected the fields names, train and val"),
        ("names: [a\n", "data.yaml:"),
        ("train: images/train\nnames: [a]\nkpt_shape: 3\n", "kpt_shape: expected two numbers"),
    ],
)
def test_faulty_description_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = small_set(tmp_path)
    file.write_text(text)
    message = error_message(read, file)
    assert message.startswith(str(file)) and expected in message
    assert "train: 'nowhere'" not in message or "take the line out" not in message


def test_set_without_any_labels_is_refused(tmp_path: Path) -> None:
    file = small_set(tmp_path)
    (tmp_path / "labels" / "train" / "a.txt").unlink()
    message = error_message(read, file)
    assert "no image has a file of labels; looked for" in message
    assert str(tmp_path / "labels" / "train" / "a.txt") in message
    assert "no names of classes" in error_message(read, tmp_path / "images")
    assert "does not exist" in error_message(read, tmp_path / "nowhere")


share = st.floats(0, 1)


@given(shares=st.tuples(share, share, share, share), size=st.tuples(*[st.integers(1, 9999)] * 2))
def test_box_has_the_centre_and_sides_of_its_line(
    shares: tuple[float, float, float, float], size: tuple[int, int]
) -> None:
    x1, y1, x2, y2 = box_of_shares(0, shares, size).xyxy
    width, height = size
    expected = [share * (width, height)[place % 2] for place, share in enumerate(shares)]
    assert np.allclose([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1], expected, atol=1e-6)


def test_names_keep_their_indices(tmp_path: Path) -> None:
    file = small_set(tmp_path, "7 0.5 0.5 0.5 0.5\n")
    file.write_text("train: images/train\nnames: {7: cat, 2: dog}\n")
    [split] = read(file)
    assert split.annotations.category_ids.tolist() == [2, 7]
    assert split.annotations.box_category_ids.tolist() == [7]
    with pytest.raises(InputError, match="--images: "):
        read(file, images=tmp_path)
