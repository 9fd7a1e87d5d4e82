from pathlib import Path

import pytest

from common.errors import InputError
from data.openimages.boxes import (
    NOT_CHOSEN,
    mlperf_classes,
    read_class_descriptions,
    resolve_classes,
)
from tests.data.openimages.csv_tables import LABELS, write_descriptions, write_lines


@pytest.fixture
def descriptions(tmp_path: Path) -> Path:
    return write_descriptions(tmp_path / "class-descriptions-boxable.csv")


@pytest.mark.parametrize("header", [False, True])
def test_descriptions_of_v5_and_of_v7_are_read(tmp_path: Path, header: bool) -> None:
    path = write_descriptions(tmp_path / "classes.csv", header=header)
    assert read_class_descriptions(path) == LABELS


def test_descriptions_with_quotes_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    path.write_bytes(b'\xef\xbb\xbfLabelName,DisplayName\r\n/m/a,"Salt, pepper"\r\n\r\n')
    assert read_class_descriptions(path) == {"/m/a": "Salt, pepper"}


def test_all_classes_are_sorted_by_name(descriptions: Path) -> None:
    classes = resolve_classes(["all"], descriptions)
    assert classes.names == ("Cat", "Dog", "Person", "Tortoise")
    assert classes.index_of_label == {"/m/cat": 0, "/m/dog": 1, "/m/011k07": 3, "/m/0bt9lr": 2}


def test_named_classes_keep_their_order_and_the_rest_is_known_as_not_chosen(
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


def test_names_from_a_text_file(tmp_path: Path, descriptions: Path) -> None:
    path = write_lines(tmp_path / "mine.txt", ["Dog", "", "  Cat "])
    assert resolve_classes([str(path)], descriptions).names == ("Dog", "Cat")


def test_mlperf_has_264_classes_in_alphabetical_order(tmp_path: Path) -> None:
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
        (["Cat", "tortoise"], "classes: 'tortoise' is no class of {}; did you mean 'Tortoise'?"),
        (["Qqqq"], "classes: 'Qqqq' is no class of {}"),
        (["Cat", "Dog", "Cat"], "classes: 'Cat' is there 2 times; name each class once"),
        ([], "classes: no class is named; expected mlperf, all, or names of classes"),
        (["mlperf"], "MLPerf's classes: 'Airplane' is no class of {}"),
    ],
)
def test_names_that_are_no_classes(descriptions: Path, names: list[str], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_classes(names, descriptions)
    assert str(caught.value) == expected.format(descriptions)


def test_a_wrong_name_in_a_file_names_the_file(tmp_path: Path, descriptions: Path) -> None:
    path = write_lines(tmp_path / "mine.txt", ["Dogg"])
    with pytest.raises(InputError, match=rf"^{path}: 'Dogg' is no class .* did you mean 'Dog'\?$"):
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
def test_descriptions_that_are_none(tmp_path: Path, lines: list[str], expected: str) -> None:
    path = write_lines(tmp_path / "classes.csv", lines)
    with pytest.raises(InputError) as caught:
        read_class_descriptions(path)
    assert str(caught.value).startswith(expected.format(path))


def test_a_name_of_two_labels_is_refused_only_where_it_is_wanted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "classes.csv", ["/m/a,A", "/m/b,A", "/m/c,C"])
    assert resolve_classes(["C"], path).names == ("C",)
    with pytest.raises(InputError, match="2 labels are called 'A'"):
        resolve_classes(["all"], path)


def test_a_missing_file_of_descriptions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv: cannot be read: No such file"):
        resolve_classes(["all"], tmp_path / "none.csv")
