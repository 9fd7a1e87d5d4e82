"""Pascal VOC's data sets: layouts, coordinates, classes, and the first faulty file."""

import io
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from common.errors import InputError
from data.formats.labels import LabelPart
from data.formats.voc import parse_xml, read_voc
from tests.data.formats.written import (
    NAMES,
    random_annotations,
    reading,
    voc_object,
    voc_xml,
    write_photos,
    write_voc,
)
from tests.support.commands import error_message

CAT = voc_object("cat", (1, 1, 64, 48))
ENTITIES = (
    '<!DOCTYPE annotation [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>\n'
    "<annotation><filename>&b;</filename></annotation>"
)


read = reading(read_voc)


def write_image(folder: Path, name: str, xml: str | None = None, *, labels: str = "") -> None:
    """Write a photo of 64×48 pixels, and its XML file."""
    for parent in (folder, folder / labels):
        parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48)).save(folder / f"{name}.jpg")
    if xml is not None:
        (folder / labels / f"{name}.xml").write_text(xml, encoding="utf-8")


def test_boxes_are_equal(tmp_path: Path) -> None:
    expected = random_annotations(images=400, boxes=900)
    write_photos(tmp_path / "JPEGImages", expected)
    write_voc(tmp_path, expected)
    [split] = read(tmp_path)
    found = split.annotations
    assert split.name == "train" and split.images == tmp_path / "JPEGImages"
    assert list(found.file_names) == list(expected.file_names)
    assert sorted(NAMES) == list(found.category_names) and found.category_ids.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(found.boxes, expected.boxes)
    np.testing.assert_array_equal(found.box_offsets, expected.box_offsets)
    np.testing.assert_array_equal(found.box_areas, expected.box_areas)
    assert [NAMES[number] for number in expected.box_category_ids] == [
        found.category_names[number - 1] for number in found.box_category_ids
    ]


def test_difficult_object_is_a_crowd(tmp_path: Path) -> None:
    objects = CAT + voc_object("cat", (2, 2, 9, 9), difficult=1)
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), objects))
    [split] = read(tmp_path)
    assert split.annotations.box_is_crowd.tolist() == [False, True]
    assert split.notes == ["difficult objects (iscrowd: left out of training): 1"]


def test_pixels_count_from_one_unless_a_box_begins_below(tmp_path: Path) -> None:
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), voc_object("cat", (11, 21, 30, 40))))
    [split] = read(tmp_path)
    assert split.annotations.boxes.tolist() == [[10, 20, 30, 40]]
    assert split.annotations.box_areas.tolist() == [400]
    write_image(tmp_path, "b", voc_xml("b.jpg", (64, 48), voc_object("cat", (0, 21.5, 30, 40))))
    [split] = read(tmp_path)
    assert split.annotations.boxes.tolist() == [[11, 21, 30, 40], [0, 21.5, 30, 40]]
    assert "coordinates count from 0" in split.notes[0]


def test_parts_of_objects_are_no_objects(tmp_path: Path) -> None:
    part = "<part><name>head</name><bndbox><xmin>3</xmin></bndbox></part>"
    objects = CAT.replace("<bndbox>", f"{part}<bndbox>")
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), objects))
    [split] = read(tmp_path)
    assert split.annotations.category_names == ("cat",)
    assert split.annotations.boxes.tolist() == [[0, 0, 64, 48]]


def test_splits_have_one_list_of_classes(tmp_path: Path) -> None:
    for name, kind in (("a", "zebra"), ("b", "ant")):
        xml = voc_xml(f"{name}.jpg", (64, 48), voc_object(kind, (1, 1, 9, 9)))
        write_image(tmp_path / "JPEGImages", name, xml, labels="../Annotations")
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for name, content in {
        "train": "a\n",
        "val": "b\n",
        "trainval": "a\nb\n",
        "ant_val": "b 1\n",
    }.items():
        (lists / f"{name}.txt").write_text(content)
    train, validation = read(tmp_path)
    assert (train.name, validation.name) == ("train", "validation")
    assert train.annotations.category_names == validation.annotations.category_names
    assert train.annotations.category_names == ("ant", "zebra")
    (lists / "train.txt").write_text("a\n\nmissing\n")
    assert "train.txt: line 3: " in error_message(read, tmp_path)
    (lists / "train.txt").unlink()
    assert "trainval.txt: has the images of val.txt too" in error_message(read, tmp_path)
    (lists / "val.txt").unlink()
    [train] = read(tmp_path)
    assert train.name == "train" and len(train.annotations) == 2


def test_xml_files_may_lie_beside_the_images_of_each_split(tmp_path: Path) -> None:
    for folder in ("train", "valid"):
        write_image(tmp_path / folder, "a", voc_xml("a.jpg", (64, 48), CAT))
    write_image(tmp_path / "valid", "b")
    train, validation = read(tmp_path)
    assert (train.images, validation.images) == (tmp_path / "train", tmp_path / "valid")
    assert validation.notes == ["images without an XML file (left out): 1"]


@pytest.mark.parametrize("name", ["a.jpg", "a", "C:\\photos\\a.jpg", "old name.png", ""])
def test_image_has_the_name_in_the_file_or_the_files_own(tmp_path: Path, name: str) -> None:
    write_image(tmp_path, "a", voc_xml(name, (64, 48), CAT))
    [split] = read(tmp_path)
    assert list(split.annotations.file_names) == ["a.jpg"]


def test_image_of_the_files_own_name_is_preferred(tmp_path: Path) -> None:
    """Renamed or copied files keep the old name in them: both images would be a.jpg."""
    box = voc_object("cat", (2, 2, 9, 9))
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), CAT))
    write_image(tmp_path, "b", voc_xml("a.jpg", (64, 48), box))
    [split] = read(tmp_path)
    assert list(split.annotations.file_names) == ["a.jpg", "b.jpg"]
    assert split.annotations.boxes.tolist() == [[0, 0, 64, 48], [1, 1, 9, 9]]
    note = "XML files whose filename is another image's (that of their own name is used): 1"
    assert split.notes == [note]
    (tmp_path / "b.jpg").unlink()
    message = error_message(read, tmp_path)
    own = tmp_path / "a.xml"
    assert f"b.xml: filename: 'a.jpg' has an XML file of its own, {own}; correct" in message
    [split] = read(tmp_path, skip_missing_images=True)
    assert list(split.annotations.file_names) == ["a.jpg"]


def test_images_without_an_xml_file_are_those_that_none_names(tmp_path: Path) -> None:
    write_image(tmp_path, "a")
    write_image(tmp_path, "c")
    (tmp_path / "b.xml").write_text(voc_xml("a.jpg", (64, 48), CAT))
    [split] = read(tmp_path)
    assert list(split.annotations.file_names) == ["a.jpg"]
    assert split.notes == ["images without an XML file (left out): 1"]


def test_suffix_in_the_file_tells_images_of_one_name(tmp_path: Path) -> None:
    write_image(tmp_path, "a", voc_xml("a.png", (64, 48), CAT))
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")
    [split] = read(tmp_path)
    assert list(split.annotations.file_names) == ["a.png"]
    assert split.notes == ["images without an XML file (left out): 1"]


def test_set_is_read_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), CAT))
    monkeypatch.chdir(tmp_path)
    [split] = read(Path())
    assert list(split.annotations.file_names) == ["a.jpg"] and split.notes == []


def test_missing_image_is_refused_or_skipped(tmp_path: Path) -> None:
    for name in "ab":
        write_image(tmp_path, name, voc_xml(f"{name}.jpg", (64, 48), CAT))
    (tmp_path / "a.jpg").unlink()
    message = error_message(read, tmp_path)
    assert message.startswith(f"{tmp_path / 'a.xml'}: filename: 'a.jpg' is not in ")
    assert "--skip-missing-images" in message
    [split] = read(tmp_path, skip_missing_images=True)
    assert list(split.annotations.file_names) == ["b.jpg"]
    assert split.notes == ["images that do not exist (skipped): 1"]
    moved = tmp_path / "moved"
    write_image(moved, "a")
    write_image(moved, "b")
    [split] = read(tmp_path, images=moved)
    assert split.images == moved and len(split.annotations) == 2
    (tmp_path / "b.jpg").unlink()
    for photo in moved.iterdir():
        photo.unlink()
    message = error_message(read, tmp_path, images=moved, skip_missing_images=True)
    assert "none of the labelled images" in message and "set --images" not in message


@pytest.mark.parametrize("path", ["C:\\me\\{}", "../../upload/4/{}", "/data/{}", "photos\\{}"])
def test_file_names_of_another_machine(tmp_path: Path, path: str) -> None:
    text = voc_xml(path.format("my%20photo.jpg"), (64, 48), CAT)
    write_image(tmp_path, "my photo")
    (tmp_path / "task-1.xml").write_text(text)
    [split] = read(tmp_path)
    assert list(split.annotations.file_names) == ["my photo.jpg"]


def test_class_outside_the_sets_list_is_refused_with_the_nearest(tmp_path: Path) -> None:
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), CAT))
    (tmp_path / "labelmap.txt").write_text(
        "# label:color:parts\nbackground:0,0,0::\nCats:1,2,3::\n"
    )
    message = error_message(read, tmp_path)
    assert "a.xml: line 4: object[1].name: 'cat' is not in the data set's list" in message
    assert message.endswith("did you mean 'Cats'? (--skip-bad-labels leaves bad labels out)")
    (tmp_path / "labelmap.txt").write_text("dog:::\ncat:::\n")
    [split] = read(tmp_path)
    assert split.annotations.category_names == ("dog", "cat")
    assert split.annotations.box_category_ids.tolist() == [2]


@pytest.mark.parametrize(
    ("xml", "expected"),
    [
        ("not XML", "line 1: not XML: syntax error"),
        ("", "line 1: not XML: no element found"),
        (voc_xml("a.jpg", (64, 48), CAT)[:-20], "not XML: "),
        ("<html>\n</html>", "line 1: expected VOC's element annotation, found 'html'"),
        (ENTITIES, "line 1: has a document type declaration"),
        (voc_xml("a.jpg", (-1, 48), CAT), "line 3: size.width: expected the image's width"),
        (voc_xml("a.jpg", (64, 48), "<object><name/></object>"), "line 4: object[1].name: missing"),
        (voc_xml("a.jpg", (64, 48), CAT.replace("xmax", "x2")), "object[1].bndbox.xmax: missing"),
        (
            voc_xml("a.jpg", (64, 48), CAT.replace(">48<", ">NaN<")),
            "line 7: object[1].bndbox.ymax: 'NaN' is not a number of pixels",
        ),
        (
            voc_xml("a.jpg", (64, 48), CAT.replace(">0</diff", ">maybe</diff")),
            "line 6: object[1].difficult: expected 0 or 1, found 'maybe'",
        ),
        ("<?xml version='1.0' encoding='nonsense'?><annotation/>", "not XML: "),
        ("<annotation>" + "<a>" * 20, "line 1: more than 20 elements within each other"),
    ],
)
def test_first_faulty_file_is_named(tmp_path: Path, xml: str, expected: str) -> None:
    write_image(tmp_path, "a", xml)
    write_image(tmp_path, "b", voc_xml("b.jpg", (64, 48), CAT))
    message = error_message(read, tmp_path)
    assert message.startswith(f"{tmp_path / 'a.xml'}: ") and expected in message


@pytest.mark.parametrize(
    "others",
    [
        "<a>" * 20_000 + "</a>" * 20_000,
        f"<{'x' * 200_000}>{''.join(f'<a{n}/>' for n in range(300))}</{'x' * 200_000}>",
    ],
    ids=["deep", "long names"],
)
def test_elements_that_are_not_read_take_no_memory(tmp_path: Path, others: str) -> None:
    file = tmp_path / "a.xml"
    file.write_text(voc_xml("a.jpg", (64, 48), CAT + others))
    tracemalloc.start()
    try:
        error_or_labels(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def error_or_labels(file: Path) -> None:
    with suppress(InputError):
        parse_xml(file, None, LabelPart())


@pytest.mark.slow
def test_nearest_class_is_searched_once_for_many_faulty_files(tmp_path: Path) -> None:
    wrong = voc_object("object numbr 7", (1, 1, 64, 48))
    for number in range(100):
        (tmp_path / f"{number:03}.xml").write_text(voc_xml("a.jpg", (64, 48), wrong))
    (tmp_path / "classes.txt").write_text(
        "\n".join(f"object number {number}" for number in range(9000))
    )
    begin = time.monotonic()
    message = error_message(read, tmp_path)
    assert (
        "000.xml: line 4: object[1].name: 'object numbr 7'" in message and "did you mean" in message
    )
    # Of each file its class and its image. Without a limit of the searches a minute.
    assert "(199 more, --skip-bad-labels" in message and time.monotonic() - begin < 20


def test_folder_without_xml_files_is_refused(tmp_path: Path) -> None:
    assert "contains no XML file" in error_message(read, tmp_path)
    assert "is not a folder" in error_message(read, tmp_path / "nowhere")
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), ""))
    assert "no object in any XML file" in error_message(read, tmp_path)


@pytest.mark.parametrize("degrees", ["90", "90.0", "0.0", "none"])
def test_rotated_box_is_enclosed_and_clipped(tmp_path: Path, degrees: str) -> None:
    """As CVAT exports it, among other attributes."""
    pairs = {"color": "45", "rotation": degrees, "occluded": "0"}
    attributes = "".join(
        f"<attribute><name>{name}</name><value>{value}</value></attribute>"
        for name, value in pairs.items()
    )
    objects = voc_object("cat", (20, 10, 50, 16)).replace(
        "<bndbox>", f"<attributes>{attributes}</attributes><bndbox>"
    )
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), objects))
    [split] = read(tmp_path)
    found = split.annotations.boxes.round(9).tolist()
    if degrees.startswith("9"):
        # Its centre is at 35, 13: from -2 to 28, which the image cuts off.
        assert found == [[31, 0, 38, 28]]
        assert split.notes == ["rotated boxes (their enclosing boxes are taken): 1"]
    else:
        assert found == [[19, 9, 50, 16]] and split.notes == []


SIZE = "<size><width>64</width><height>48</height><depth>3</depth></size>"


@pytest.mark.parametrize("size", ["", "<size/>", SIZE.replace("64", "0"), SIZE.replace("48", "")])
@pytest.mark.parametrize(("orientation", "expected"), [(1, (48, 64)), (6, (64, 48))])
def test_missing_size_is_that_of_the_displayed_image(
    tmp_path: Path, size: str, orientation: int, expected: tuple[int, int]
) -> None:
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), CAT).replace(SIZE, size))
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (64, 48)).save(tmp_path / "a.jpg", exif=exif)
    [split] = read(tmp_path)
    assert split.annotations.image_size(0) == expected
    assert any("without a size in their labels" in note for note in split.notes)


def test_odd_values_of_tools_are_taken(tmp_path: Path) -> None:
    objects = CAT.replace(">0</diff", ">Unspecified</diff") + voc_object("cat", (9, 30, 3, 2))
    write_image(tmp_path, "a", voc_xml("a.jpg", (64, 48), objects))
    latin = voc_xml("b.jpg", (64, 48), voc_object("Große Ente", (1, 1, 9, 9)))
    write_image(tmp_path, "b")
    declaration = b'<?xml version="1.0" encoding="utf-8"?>\n'
    (tmp_path / "b.xml").write_bytes(declaration + latin.encode("latin-1"))
    [split] = read(tmp_path)
    assert split.annotations.boxes.tolist() == [[0, 0, 64, 48], [2, 1, 9, 30], [0, 0, 9, 9]]
    assert not split.annotations.box_is_crowd.any()
    assert split.annotations.category_names == ("Große Ente", "cat")
    assert split.notes == [
        "boxes whose corners are exchanged (put in order): 1",
        "files that are not UTF-8 (read as Latin-1): 1",
    ]


def test_bad_labels_are_all_named_and_skipped_if_asked(tmp_path: Path) -> None:
    bad = CAT.replace("xmax", "x2")
    texts = {"a": CAT + bad + bad, "b": bad, "c": "no XML <", "d": CAT, "e": ""}
    for name, objects in texts.items():
        write_image(tmp_path, name, voc_xml(f"{name}.jpg", (64, 48), objects))
    printed = io.StringIO()
    console = Console(file=printed)
    message = error_message(read, tmp_path, console=console)
    assert message.startswith(f"{tmp_path / 'a.xml'}: line 9: object[2].bndbox.xmax: missing")
    assert message.endswith(" (3 more, --skip-bad-labels leaves bad labels out)")
    named = [line.split(": ")[1] for line in printed.getvalue().splitlines() if "bad label" in line]
    assert named == [str(tmp_path / f"{name}.xml") for name in "aabc"]
    [split] = read(tmp_path, skip_bad_labels=True, console=console)
    assert list(split.annotations.file_names) == ["a.jpg", "d.jpg", "e.jpg"]
    assert split.annotations.box_offsets.tolist() == [0, 1, 2, 2]
    assert "note: bad labels (skipped): 4" in printed.getvalue()
    (tmp_path / "a.xml").unlink()
    for name in "de":
        (tmp_path / f"{name}.xml").unlink()
    assert "b.xml" in error_message(read, tmp_path, skip_bad_labels=True)  # nothing would be left
