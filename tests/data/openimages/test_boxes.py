import re
from pathlib import Path

import numpy as np
import pytest

from common.errors import InputError
from data.openimages import boxes as boxes_module
from data.openimages.boxes import (
    CORNERS,
    FLAGS,
    Boxes,
    ClassList,
    image_ids_with_boxes,
    read_boxes,
    resolve_classes,
)
from tests.data.openimages.csv_tables import (
    HEADER,
    LABELS,
    Row,
    random_rows,
    write_boxes,
    write_descriptions,
    write_lines,
)


@pytest.fixture
def classes(tmp_path: Path) -> ClassList:
    return resolve_classes(["Dog", "Cat"], write_descriptions(tmp_path / "classes.csv"))


def flags_of(boxes: Boxes, row: int) -> set[str]:
    return {name for bit, name in enumerate(FLAGS) if boxes.flags[row] >> bit & 1}


@pytest.mark.parametrize("clicks", [False, True])
def test_columns_of_the_chosen_classes_in_the_csvs_order(
    tmp_path: Path, classes: ClassList, clicks: bool
) -> None:
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
    assert [flags_of(boxes, row) for row in range(3)] == [
        set(),
        {"IsInside", "IsGroupOf"},
        {"IsOccluded", "IsTruncated"},
    ]
    assert boxes.image_ids.dtype == np.uint64 and boxes.class_indices.dtype == np.int16
    assert boxes.corners.dtype == np.float64 and boxes.flags.dtype == np.uint8


def test_corners_are_the_doubles_that_python_reads(tmp_path: Path, classes: ClassList) -> None:
    rows = [row._replace(label="/m/dog") for row in random_rows(images=50, boxes=2000)]
    boxes = read_boxes(write_boxes(tmp_path / "boxes.csv", rows), classes)
    expected = [[float(r.x_min), float(r.y_min), float(r.x_max), float(r.y_max)] for r in rows]
    assert boxes.corners.tolist() == expected


def test_chunks_join_seamlessly(
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


def test_columns_are_found_by_name_and_line_ends_may_be_of_windows(
    tmp_path: Path, classes: ClassList
) -> None:
    path = tmp_path / "boxes.csv"
    names = [*FLAGS, *CORNERS, "LabelName", "ImageID"]
    fields = ["0", "1", "0", "0", "1", "0.1", "0.2", "0.3", "0.4", "/m/cat", "0" * 15 + "a"]
    path.write_bytes(f"{','.join(names)}\r\n{','.join(fields)}\r\n\r\n".encode())
    boxes = read_boxes(path, classes)
    assert boxes.image_ids.tolist() == [10] and boxes.corners.tolist() == [[0.1, 0.2, 0.3, 0.4]]
    assert flags_of(boxes, 0) == {"IsInside", "IsGroupOf"}


def test_no_line_end_at_the_end(tmp_path: Path, classes: ClassList) -> None:
    path = tmp_path / "boxes.csv"
    path.write_text(f"{HEADER}\n{Row(7).line()}")
    assert read_boxes(path, classes).image_ids.tolist() == [7]


def test_image_ids_with_a_box_of_the_chosen_classes(tmp_path: Path, classes: ClassList) -> None:
    rows = [Row(9), Row(3, "/m/dog"), Row(9), Row(5, "/m/011k07"), Row(2**64 - 1), Row(3)]
    path = write_boxes(tmp_path / "boxes.csv", rows)
    found = image_ids_with_boxes(path, classes)
    assert found.tolist() == [3, 9, 2**64 - 1] and found.dtype == np.uint64
    none = resolve_classes(["Person"], tmp_path / "classes.csv")
    assert image_ids_with_boxes(path, none).tolist() == []
    assert len(read_boxes(path, none)) == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"label": "/m/catt"}, "LabelName: expected a label of the class descriptions, found"),
        ({"label": "/m/011k07x"}, "LabelName: expected a label of the class descriptions, found"),
        ({"label": "/m/ü"}, "LabelName: expected a label of the class descriptions, found '/m/ü'"),
        ({"label": ""}, "LabelName: expected a label of the class descriptions, found ''"),
        ({"x_min": "left"}, "XMin: expected a fraction from 0 to 1, found 'left'"),
        ({"y_max": ""}, "YMax: expected a fraction from 0 to 1, found ''"),
        ({"y_min": "nan"}, "YMin: expected a fraction from 0 to 1, found 'nan'"),
        ({"x_max": "1e999"}, "XMax: expected a fraction from 0 to 1, found '1e999'"),
        ({"x_max": "512"}, "XMax: expected a fraction from 0 to 1, found '512'"),
        ({"x_min": "-0.02"}, "XMin: expected a fraction from 0 to 1, found '-0.02'"),
        ({"x_min": "0.6"}, "XMax: expected at least XMin, found '0.5'"),
        ({"y_max": "0.1"}, "YMax: expected at least YMin, found '0.1'"),
        ({"group": "2"}, "IsGroupOf: expected 0, 1 or -1, found '2'"),
        ({"inside": "-128"}, "IsInside: expected 0, 1 or -1, found '-128'"),
        ({"occluded": "True"}, "IsOccluded: expected 0, 1 or -1, found 'True'"),
        ({"truncated": "0,0"}, "line: expected 13 fields, as in line 1, found "),
    ],
)
def test_a_bad_field_is_named_by_line_and_column(
    tmp_path: Path, classes: ClassList, change: dict[str, str], expected: str
) -> None:
    rows = [Row(1), Row(2, x_min="0.5"), Row(3)._replace(**change), Row(4)]  # type: ignore[arg-type]
    path = write_boxes(tmp_path / "boxes.csv", rows)
    with pytest.raises(InputError) as caught:
        read_boxes(path, classes)
    assert str(caught.value).startswith(f"{path}: line 4: {expected}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "image_id", ["00a", "0" * 17, "00000000000000AA", "000000000000000g", " 00000000000000a", "0x"]
)
def test_an_image_id_that_is_none(tmp_path: Path, classes: ClassList, image_id: str) -> None:
    line = Row(1).line().replace(f"{1:016x}", image_id)
    path = write_lines(tmp_path / "boxes.csv", [HEADER, Row(1).line(), line])
    expected = f"line 3: ImageID: expected 16 digits of 0-9 and a-f, found '{image_id}'"
    for read in (read_boxes, image_ids_with_boxes):
        with pytest.raises(InputError, match=re.escape(expected)):
            read(path, classes)


def test_the_line_is_right_in_a_later_chunk(
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
def test_a_file_that_is_no_boxes_csv(
    tmp_path: Path, classes: ClassList, content: bytes, expected: str
) -> None:
    path = tmp_path / "boxes.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_boxes(path, classes)
    assert str(caught.value).startswith(f"{path}: {expected}")


def test_a_missing_file(tmp_path: Path, classes: ClassList) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_boxes(tmp_path / "boxes.csv", classes)


def test_all_labels_have_a_class(tmp_path: Path) -> None:
    classes = resolve_classes(["all"], write_descriptions(tmp_path / "classes.csv"))
    rows = [Row(1, label) for label in LABELS]
    boxes = read_boxes(write_boxes(tmp_path / "boxes.csv", rows), classes)
    assert [classes.names[index] for index in boxes.class_indices] == list(LABELS.values())
