"""OpenImages' CSV files: boxes, class descriptions, selections of classes, lists of images."""

import re
from pathlib import Path

import numpy as np
import pytest

from common.errors import InputError
from data.openimages import boxes as boxes_module
from data.openimages.boxes import (
    CORNERS,
    FLAGS,
    NOT_CHOSEN,
    Boxes,
    ClassList,
    image_id_texts,
    image_ids_with_boxes,
    mlperf_classes,
    read_boxes,
    read_class_descriptions,
    read_image_ids,
    resolve_classes,
)
from tests.data.openimages.csv_tables import (
    HEADER,
    LABELS,
    Row,
    random_rows,
    write_boxes,
    write_descriptions,
    write_image_ids,
    write_lines,
)


@pytest.fixture
def classes(tmp_path: Path) -> ClassList:
    return resolve_classes(["Dog", "Cat"], write_descriptions(tmp_path / "classes.csv"))


def flag_names(boxes: Boxes, row: int) -> set[str]:
    return {name for bit, name in enumerate(FLAGS) if boxes.flags[row] >> bit & 1}


@pytest.mark.parametrize("clicks", [False, True])
def test_boxes_of_the_selected_classes(tmp_path: Path, classes: ClassList, clicks: bool) -> None:
    rows = [
        Row(0xFFFF_FFFF_FFFF_FFFF, "/m/cat", "0.012500", "0.195312", "0.148438", "0.5875"),
        Row(1, "/m/011k07"),
        Row(2, "/m/dog", "0", "1", "-0.001", "1.001", inside="1", group="1"),
        Row(2, "/m/cat", occluded="-1", truncated="1"),
    ]
    boxes = read_boxes(write_boxes(tmp_path / "boxes.csv", rows, clicks=clicks), classes)
    assert len(boxes) == 3
    assert boxes.image_ids.tolist() == [0xFFFF_FFFF_FFFF_FFFF, 2, 2]
    assert boxes.class_indices.tolist() == [1, 0, 1]
    assert boxes.corners[:2].tolist() == [
        [0.0125, 0.148438, 0.195312, 0.5875],
        [0, -0.001, 1, 1.001],
    ]
    assert [flag_names(boxes, row) for row in range(3)] == [
        set(),
        {"IsInside", "IsGroupOf"},
        {"IsOccluded", "IsTruncated"},
    ]
    assert boxes.image_ids.dtype == np.uint64 and boxes.class_indices.dtype == np.int16
    assert boxes.corners.dtype == np.float64 and boxes.flags.dtype == np.uint8


def test_corners_equal_pythons_floats(tmp_path: Path, classes: ClassList) -> None:
    rows = [row._replace(label="/m/dog") for row in random_rows(images=50, boxes=2000)]
    boxes = read_boxes(write_boxes(tmp_path / "boxes.csv", rows), classes)
    expected = [[float(r.x_min), float(r.y_min), float(r.x_max), float(r.y_max)] for r in rows]
    assert boxes.corners.tolist() == expected


def test_chunks_are_joined(
    tmp_path: Path, classes: ClassList, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_boxes(tmp_path / "boxes.csv", random_rows(images=9, boxes=200), clicks=True)
    whole = read_boxes(path, classes)
    monkeypatch.setattr(boxes_module, "CHARACTERS_AT_ONCE", 500)
    done: list[int] = []
    parts = read_boxes(path, classes, advance=lambda read, note: done.append(read))
    for name in ("image_ids", "class_indices", "corners", "flags"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))
    assert len(done) > 10 and done == sorted(done) and done[-1] == path.stat().st_size


def test_columns_by_name_and_windows_line_ends(tmp_path: Path, classes: ClassList) -> None:
    path = tmp_path / "boxes.csv"
    names = [*FLAGS, *CORNERS, "LabelName", "ImageID"]
    fields = ["0", "1", "0", "0", "1", "0.1", "0.2", "0.3", "0.4", "/m/cat", "0" * 15 + "a"]
    path.write_bytes(f"{','.join(names)}\r\n{','.join(fields)}\r\n\r\n".encode())
    boxes = read_boxes(path, classes)
    assert boxes.image_ids.tolist() == [10] and boxes.corners.tolist() == [[0.1, 0.2, 0.3, 0.4]]
    assert flag_names(boxes, 0) == {"IsInside", "IsGroupOf"}


def test_missing_line_end(tmp_path: Path, classes: ClassList) -> None:
    path = tmp_path / "boxes.csv"
    path.write_text(f"{HEADER}\n{Row(7).line()}")
    assert read_boxes(path, classes).image_ids.tolist() == [7]


def test_image_ids_of_the_selected_classes(tmp_path: Path, classes: ClassList) -> None:
    rows = [Row(9), Row(3, "/m/dog"), Row(9), Row(5, "/m/011k07"), Row(2**64 - 1), Row(3)]
    path = write_boxes(tmp_path / "boxes.csv", rows)
    ids = image_ids_with_boxes(path, classes)
    assert ids.tolist() == [3, 9, 2**64 - 1] and ids.dtype == np.uint64
    none = resolve_classes(["Person"], tmp_path / "classes.csv")
    assert image_ids_with_boxes(path, none).tolist() == []
    assert len(read_boxes(path, none)) == 0


LABEL, FRACTION = "a label of the class descriptions", "a fraction from 0 to 1"


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("label", "/m/catt", f"LabelName: expected {LABEL}, found '/m/catt'"),
        ("label", "/m/011k07x", f"LabelName: expected {LABEL}, found '/m/011k07x'"),
        ("label", "/m/ü", f"LabelName: expected {LABEL}, found '/m/ü'"),
        ("label", "", f"LabelName: expected {LABEL}, found ''"),
        ("x_min", "left", f"XMin: expected {FRACTION}, found 'left'"),
        ("y_max", "", f"YMax: expected {FRACTION}, found ''"),
        ("y_min", "nan", f"YMin: expected {FRACTION}, found 'nan'"),
        ("x_max", "1e999", f"XMax: expected {FRACTION}, found '1e999'"),
        ("x_min", "-0.02", f"XMin: expected {FRACTION}, found '-0.02'"),
        ("x_min", "0.6", "XMax: expected at least XMin, found '0.5'"),
        ("y_max", "0.1", "YMax: expected at least YMin, found '0.1'"),
        ("group", "2", "IsGroupOf: expected 0, 1 or -1, found '2'"),
        ("inside", "-128", "IsInside: expected 0, 1 or -1, found '-128'"),
        ("occluded", "True", "IsOccluded: expected 0, 1 or -1, found 'True'"),
        ("truncated", "0,0", "line: expected 13 fields, as in line 1, found "),
    ],
)
def test_bad_field_is_reported_with_line_and_column(
    tmp_path: Path, classes: ClassList, column: str, value: str, expected: str
) -> None:
    bad = Row(3)._replace(**{column: value})  # type: ignore[arg-type]
    rows = [Row(1), Row(2, x_min="0.5"), bad, Row(4)]
    path = write_boxes(tmp_path / "boxes.csv", rows)
    with pytest.raises(InputError) as caught:
        read_boxes(path, classes)
    assert str(caught.value).startswith(f"{path}: line 4: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "image_id", ["00a", "0" * 17, "00000000000000AA", "000000000000000g", " 00000000000000a", "0x"]
)
def test_invalid_image_id(tmp_path: Path, classes: ClassList, image_id: str) -> None:
    line = Row(1).line().replace(f"{1:016x}", image_id)
    path = write_lines(tmp_path / "boxes.csv", [HEADER, Row(1).line(), line])
    expected = f"line 3: ImageID: expected 16 digits of 0-9 and a-f, found '{image_id}'"
    for read in (read_boxes, image_ids_with_boxes):
        with pytest.raises(InputError, match=re.escape(expected)):
            read(path, classes)


def test_line_number_in_a_later_chunk(
    tmp_path: Path, classes: ClassList, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxes_module, "CHARACTERS_AT_ONCE", 300)
    rows = [*(Row(image) for image in range(100)), Row(100, x_min="?")]
    path = write_boxes(tmp_path / "boxes.csv", rows)
    with pytest.raises(InputError, match="line 102: XMin: "):
        read_boxes(path, classes)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "line 1: ImageID: expected a column of this name, found ''"),
        (f"{HEADER}\n".encode(), "empty: it has no rows; download it again"),
        (f"{HEADER}\n\n\n".encode(), "empty: it has no rows; download it again"),
        (HEADER.replace("YMin", "Y0").encode(), "line 1: YMin: expected a column of this name"),
        (b"\x1f\x8b\xff\x00", "not UTF-8 text: invalid start byte; expected a CSV file, unpacked"),
        (f"{HEADER}\n{Row(1).line()}\n{Row(2).line()[:30]}".encode(), "line 3: line: expected 13 "),
    ],
)
def test_other_file_is_refused(
    tmp_path: Path, classes: ClassList, content: bytes, expected: str
) -> None:
    path = tmp_path / "boxes.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_boxes(path, classes)
    assert str(caught.value).startswith(f"{path}: {expected}")


def test_missing_file_is_refused(tmp_path: Path, classes: ClassList) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_boxes(tmp_path / "boxes.csv", classes)


def test_all_classes(tmp_path: Path) -> None:
    classes = resolve_classes(["all"], write_descriptions(tmp_path / "classes.csv"))
    rows = [Row(1, label) for label in LABELS]
    boxes = read_boxes(write_boxes(tmp_path / "boxes.csv", rows), classes)
    assert [classes.names[index] for index in boxes.class_indices] == list(LABELS.values())


@pytest.fixture
def descriptions(tmp_path: Path) -> Path:
    return write_descriptions(tmp_path / "class-descriptions-boxable.csv")


@pytest.mark.parametrize("header", [False, True])
def test_class_descriptions_of_v5_and_v7(tmp_path: Path, header: bool) -> None:
    path = write_descriptions(tmp_path / "classes.csv", header=header)
    assert read_class_descriptions(path) == LABELS


def test_class_descriptions_with_quotes_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    path.write_bytes(b'\xef\xbb\xbfLabelName,DisplayName\r\n/m/a,"Salt, pepper"\r\n\r\n')
    assert read_class_descriptions(path) == {"/m/a": "Salt, pepper"}


def test_classes_are_sorted_by_name(descriptions: Path) -> None:
    classes = resolve_classes(["all"], descriptions)
    assert classes.names == ("Cat", "Dog", "Person", "Tortoise")
    assert classes.index_of_label == {"/m/cat": 0, "/m/dog": 1, "/m/011k07": 3, "/m/0bt9lr": 2}


def test_selected_classes_keep_their_order(
    descriptions: Path,
) -> None:
    classes = resolve_classes(["Tortoise", "Cat"], descriptions)
    assert classes.names == ("Tortoise", "Cat")
    assert classes.index_of_label == {
        "/m/cat": 1,
        "/m/dog": NOT_CHOSEN,
        "/m/011k07": 0,
        "/m/0bt9lr": NOT_CHOSEN,
    }


def test_classes_of_a_text_file(tmp_path: Path, descriptions: Path) -> None:
    path = write_lines(tmp_path / "mine.txt", ["Dog", "", "  Cat "])
    assert resolve_classes([str(path)], descriptions).names == ("Dog", "Cat")


def test_mlperf_has_264_classes(tmp_path: Path) -> None:
    names = mlperf_classes()
    assert len(names) == len(set(names)) == 264 and names == sorted(names)
    assert names[0] == "Airplane" and names[-1] == "Zucchini"
    lines = [f"/m/{number},{name}" for number, name in enumerate([*reversed(names), "Abacus"])]
    classes = resolve_classes(["mlperf"], write_lines(tmp_path / "classes.csv", lines))
    assert classes.names == tuple(names)
    assert classes.index_of_label["/m/0"] == 263
    assert classes.index_of_label["/m/264"] == NOT_CHOSEN


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Cat", "tortoise"], "classes: 'tortoise' is not in {}; did you mean 'Tortoise'?"),
        (["Qqqq"], "classes: 'Qqqq' is not in {}"),
        (["Cat", "Dog", "Cat"], "classes: 'Cat' occurs 2 times; list each class once"),
        ([], "classes: no class given; expected mlperf, all, or names of classes"),
        (["mlperf"], "MLPerf's classes: 'Airplane' is not in {}"),
    ],
)
def test_invalid_class_names(descriptions: Path, names: list[str], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_classes(names, descriptions)
    assert str(caught.value) == expected.format(descriptions)


def test_unknown_class_in_a_file(tmp_path: Path, descriptions: Path) -> None:
    path = write_lines(tmp_path / "mine.txt", ["Dogg"])
    with pytest.raises(InputError, match=rf"^{path}: 'Dogg' is not .* did you mean 'Dog'\?$"):
        resolve_classes([str(path)], descriptions)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "{}: empty: it has no rows; download it again"),
        (["/m/a,A", "/m/b"], "{}: line 2: LabelName,DisplayName: expected /m/…,a name, found "),
        (["ImageID,Source"], "{}: line 1: LabelName,DisplayName: expected /m/…,a name, found "),
        (["/m/a,A", "/m/a,B"], "{}: line 2: LabelName: expected each label once, found '/m/a,B'"),
    ],
)
def test_invalid_class_descriptions(tmp_path: Path, lines: list[str], expected: str) -> None:
    path = write_lines(tmp_path / "classes.csv", lines)
    with pytest.raises(InputError) as caught:
        read_class_descriptions(path)
    assert str(caught.value).startswith(expected.format(path))


def test_ambiguous_name_is_refused_if_selected(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "classes.csv", ["/m/a,A", "/m/b,A", "/m/c,C"])
    assert resolve_classes(["C"], path).names == ("C",)
    with pytest.raises(InputError, match="2 labels have the name 'A'"):
        resolve_classes(["all"], path)


def test_image_ids_are_sorted_and_unique(tmp_path: Path) -> None:
    path = write_image_ids(tmp_path / "images.csv", [2**64 - 1, 3, 0xAB, 3])
    numbers = read_image_ids(path)
    assert numbers.tolist() == [3, 0xAB, 2**64 - 1] and numbers.dtype == np.uint64
    assert image_id_texts(numbers) == ["0000000000000003", "00000000000000ab", "f" * 16]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "line 1: ImageID: expected a column of this name, found ''"),
        (["ImageID,Subset"], "empty: it has no rows; download it again"),
        (["Name", "0" * 16], "line 1: ImageID: expected a column of this name, found 'Name'"),
        (
            ["ImageID", "0" * 16, "12"],
            "line 3: ImageID: expected 16 digits of 0-9 and a-f, found '1",
        ),
        (
            ["Subset,ImageID", "train"],
            "line 2: ImageID: expected 16 digits of 0-9 and a-f, found 't",
        ),
        (["ImageID", '"' + "a" * 200_000], "not a CSV file: field larger than field limit"),
    ],
)
def test_invalid_list_of_images(tmp_path: Path, lines: list[str], expected: str) -> None:
    path = write_lines(tmp_path / "images.csv", lines)
    with pytest.raises(InputError) as caught:
        read_image_ids(path)
    assert str(caught.value).startswith(f"{path}: {expected}")
