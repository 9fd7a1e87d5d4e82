"""OpenImages' CSV files: boxes, class descriptions, selections of classes, lists of images."""

import itertools
from collections.abc import Callable
from functools import partial
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
from tests.support.commands import error_message


@pytest.fixture
def classes(tmp_path: Path) -> ClassList:
    return resolve_classes(["Dog", "Cat"], write_descriptions(tmp_path / "classes.csv"))


def flag_names(boxes: Boxes, row: int) -> set[str]:
    return {name for bit, name in enumerate(FLAGS) if boxes.flags[row] >> bit & 1}


def make_boxes(folder: Path, classes: ClassList, rows: list[Row], *, clicks: bool = False) -> Boxes:
    return read_boxes(write_boxes(folder / "boxes.csv", rows, clicks=clicks), classes)


def file_error(read: Callable[[], object], path: Path) -> str:
    """Return the message, which begins with the file, without it."""
    message = error_message(read)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize("clicks", [False, True])
def test_boxes_of_the_selected_classes(tmp_path: Path, classes: ClassList, clicks: bool) -> None:
    rows = [
        Row(0xFFFF_FFFF_FFFF_FFFF, "/m/cat", "0.012500", "0.195312", "0.148438", "0.5875"),
        Row(1, "/m/011k07"),
        Row(2, "/m/dog", "0", "1", "-0.001", "1.001", inside="1", group="1"),
        Row(2, "/m/cat", occluded="-1", truncated="1"),
    ]
    boxes = make_boxes(tmp_path, classes, rows, clicks=clicks)
    assert len(boxes) == 3
    assert boxes.image_ids.tolist() == [0xFFFF_FFFF_FFFF_FFFF, 2, 2]
    assert boxes.class_indices.tolist() == [1, 0, 1]
    expected = [[0.0125, 0.148438, 0.195312, 0.5875], [0, -0.001, 1, 1.001]]
    assert boxes.corners[:2].tolist() == expected
    flags = [set(), {"IsInside", "IsGroupOf"}, {"IsOccluded", "IsTruncated"}]
    assert [flag_names(boxes, row) for row in range(3)] == flags
    assert boxes.image_ids.dtype == np.uint64 and boxes.class_indices.dtype == np.int16
    assert boxes.corners.dtype == np.float64 and boxes.flags.dtype == np.uint8


def test_corners_equal_pythons_floats(tmp_path: Path, classes: ClassList) -> None:
    rows = [row._replace(label="/m/dog") for row in random_rows(images=50, boxes=2000)]
    expected = [[float(r.x_min), float(r.y_min), float(r.x_max), float(r.y_max)] for r in rows]
    assert make_boxes(tmp_path, classes, rows).corners.tolist() == expected


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


def test_columns_by_name_and_any_line_end(tmp_path: Path, classes: ClassList) -> None:
    path = tmp_path / "boxes.csv"
    names = [*FLAGS, *CORNERS, "LabelName", "ImageID"]
    fields = ["0", "1", "0", "0", "1", "0.1", "0.2", "0.3", "0.4", "/m/cat", "0" * 15 + "a"]
    for end in ("\r\n\r\n", ""):
        path.write_bytes(f"{','.join(names)}\r\n{','.join(fields)}{end}".encode())
        boxes = read_boxes(path, classes)
        assert boxes.image_ids.tolist() == [10] and boxes.corners.tolist() == [[0.1, 0.2, 0.3, 0.4]]
        assert flag_names(boxes, 0) == {"IsInside", "IsGroupOf"}


def test_image_ids_of_the_selected_classes(tmp_path: Path, classes: ClassList) -> None:
    rows = [Row(9), Row(3, "/m/dog"), Row(9), Row(5, "/m/011k07"), Row(2**64 - 1), Row(3)]
    path = write_boxes(tmp_path / "boxes.csv", rows)
    ids = image_ids_with_boxes(path, classes)
    assert ids.tolist() == [3, 9, 2**64 - 1] and ids.dtype == np.uint64
    none = resolve_classes(["Person"], tmp_path / "classes.csv")
    assert image_ids_with_boxes(path, none).tolist() == []
    assert len(read_boxes(path, none)) == 0


@pytest.mark.parametrize(
    ("field", "value", "column"),
    [
        *(("label", label, "LabelName") for label in ("/m/catt", "/m/011k07x", "/m/ü", "")),
        ("x_min", "left", "XMin"),
        ("y_max", "", "YMax"),
        ("y_min", "nan", "YMin"),
        ("x_max", "1e999", "XMax"),
        ("x_min", "-0.02", "XMin"),
        ("x_min", "0.6", "XMax: expected at least XMin, found '0.5'"),
        ("y_max", "0.1", "YMax: expected at least YMin, found '0.1'"),
        ("group", "2", "IsGroupOf"),
        ("inside", "-128", "IsInside"),
        ("occluded", "True", "IsOccluded"),
        ("truncated", "0,0", "line: expected 13 fields"),
    ],
)
@pytest.mark.parametrize("characters", [300, 1 << 20])
def test_bad_field_is_reported_with_line_and_column(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    classes: ClassList,
    *,
    field: str,
    value: str,
    column: str,
    characters: int,
) -> None:
    monkeypatch.setattr(boxes_module, "CHARACTERS_AT_ONCE", characters)
    bad = Row(3)._replace(**{field: value})  # type: ignore[arg-type]
    rows = [*map(Row, range(8)), Row(2, x_min="0.5"), bad, Row(4)]
    error = file_error(lambda: make_boxes(tmp_path, classes, rows), tmp_path / "boxes.csv")
    assert error.startswith(f"line 11: {column}")
    assert ":" in column or error.endswith(f", found '{value}'")


@pytest.mark.parametrize(
    "image_id", ["00a", "0" * 17, "00000000000000AA", "000000000000000g", " 00000000000000a", "0x"]
)
def test_invalid_image_id(tmp_path: Path, classes: ClassList, image_id: str) -> None:
    line = Row(1).line().replace(f"{1:016x}", image_id)
    path = write_lines(tmp_path / "boxes.csv", [HEADER, Row(1).line(), line])
    for read in (read_boxes, image_ids_with_boxes):
        error = file_error(partial(read, path, classes), path)
        assert error.startswith("line 3: ImageID: ") and error.endswith(f"found '{image_id}'")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "line 1: ImageID: "),
        (f"{HEADER}\n", "empty"),
        (f"{HEADER}\n\n\n", "empty"),
        (HEADER.replace("YMin", "Y0"), "line 1: YMin: "),
        (f"{HEADER},XMin\n{Row(1).line()},left", "line 1: XMin: expected one column"),
        ("\x1f\udc8b\udcff\x00", "not UTF-8 text"),
        (f"{HEADER}\n{Row(1).line()}\n{Row(2).line()[:30]}", "line 3: line: expected 13 "),
        (None, "cannot be read: No such file"),
    ],
)
def test_other_file_is_refused(
    tmp_path: Path, classes: ClassList, content: str | None, expected: str
) -> None:
    path = tmp_path / "boxes.csv"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    assert file_error(lambda: read_boxes(path, classes), path).startswith(expected)


@pytest.fixture
def descriptions(tmp_path: Path) -> Path:
    return write_descriptions(tmp_path / "class-descriptions-boxable.csv")


def test_class_descriptions_of_v5_and_v7(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    for header in (False, True):
        assert read_class_descriptions(write_descriptions(path, header=header)) == LABELS
    path.write_bytes(b'\xef\xbb\xbfLabelName,DisplayName\r\n/m/a,"Salt, pepper"\r\n\r\n')
    assert read_class_descriptions(path) == {"/m/a": "Salt, pepper"}


OTHER = NOT_CHOSEN


@pytest.mark.parametrize(
    ("given", "names", "indices"),
    [
        (["all"], ("Cat", "Dog", "Person", "Tortoise"), [0, 1, 3, 2]),
        (["Tortoise", "Cat"], ("Tortoise", "Cat"), [1, OTHER, 0, OTHER]),
        (["{}/mine.txt"], ("Dog", "Cat"), [1, 0, OTHER, OTHER]),
    ],
)
def test_names_and_indices_of_classes(
    tmp_path: Path, descriptions: Path, given: list[str], names: tuple[str, ...], indices: list[int]
) -> None:
    write_lines(tmp_path / "mine.txt", ["Dog", "", "  Cat "])
    classes = resolve_classes([name.format(tmp_path) for name in given], descriptions)
    assert classes.names == names
    assert classes.index_of_label == dict(zip(LABELS, indices, strict=True))
    boxes = make_boxes(tmp_path, classes, [Row(1, label) for label in LABELS])
    assert boxes.class_indices.tolist() == [index for index in indices if index != OTHER]


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
    ("names", "parts"),
    [
        (["Cat", "tortoise"], ("classes: 'tortoise' is not in {}/class", "'Tortoise'?")),
        (["Qqqq"], ("classes: 'Qqqq' is not in {}/class", "boxable.csv")),
        (["Cat", "Dog", "Cat"], ("classes: 'Cat' occurs 2 times", "")),
        ([], ("classes: no class given", "")),
        (["mlperf"], ("MLPerf's classes: 'Airplane' is not in {}/class", "")),
        (["{}/mine.txt"], ("{}/mine.txt: 'Dogg' is not ", "'Dog'?")),
    ],
)
def test_invalid_class_names(
    tmp_path: Path, descriptions: Path, names: list[str], parts: tuple[str, str]
) -> None:
    write_lines(tmp_path / "mine.txt", ["Dogg"])
    names = [name.format(tmp_path) for name in names]
    message = error_message(resolve_classes, names, descriptions)
    assert message.startswith(parts[0].format(tmp_path))
    assert message.endswith(parts[1])


@pytest.mark.parametrize(
    ("read", "lines", "expected"),
    [
        (read_class_descriptions, [], "empty"),
        (read_class_descriptions, ["/m/a,A", "/m/b"], "line 2: LabelName,DisplayName: "),
        (read_class_descriptions, ["ImageID,Source"], "line 1: LabelName,DisplayName: "),
        (read_class_descriptions, ["/m/a,A", "/m/a,B"], "line 2: LabelName: "),
        (read_image_ids, [], "line 1: ImageID: expected one column"),
        (read_image_ids, ["ImageID,Subset"], "empty"),
        (read_image_ids, ["Name", "0" * 16], "line 1: ImageID: expected one column"),
        (read_image_ids, ["ImageID", "0" * 16, "12"], "line 3: ImageID: expected 16 digits"),
        (read_image_ids, ["Subset,ImageID", "train"], "line 2: ImageID: expected 16 digits"),
        (read_image_ids, ["ImageID", '"' + "a" * 200_000], "not a CSV file"),
    ],
    ids=itertools.count(),
)
def test_invalid_descriptions_and_lists_of_images(
    tmp_path: Path, read: Callable[[Path], object], lines: list[str], expected: str
) -> None:
    path = write_lines(tmp_path / "a.csv", lines)
    assert file_error(lambda: read(path), path).startswith(expected)


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
