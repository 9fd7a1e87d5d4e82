import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data.coco_json
from common.errors import InputError
from data.coco_json import stream_lists

NAMES = ("images", "annotations")


def read(path: Path) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for name, entries in stream_lists(path, NAMES, advance=lambda done: None):
        lists.setdefault(name, []).extend(entries)
    return lists


def message(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    return str(caught.value).removeprefix(f"{path}: ")


def content() -> dict[str, Any]:
    random = np.random.default_rng(0)
    texts = [
        'quote " and \\',
        "[not a list], {nor an object}",
        "日本 ñ 😀",
        "line\nbreak",
    ]
    entries = [
        [number, {"text": texts[number % 4], "deep": [[{}], []]}, float(random.normal()), None]
        for number in range(300)
    ]
    return {"info": {"images": ["no"]}, "images": entries, "n": -1.5e9, "annotations": [1, 2.5, 30]}


@pytest.mark.parametrize("read_at_once", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_same_as_the_whole_text_wherever_the_window_cuts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read_at_once: int,
    indent: int | None,
    ascii_only: bool,
) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(content(), indent=indent, ensure_ascii=ascii_only), "utf-8")
    monkeypatch.setattr(data.coco_json, "READ_AT_ONCE", read_at_once)
    monkeypatch.setattr(data.coco_json, "ENTRIES_AT_ONCE", 17)
    expected = json.loads(path.read_bytes())
    assert read(path) == {name: expected[name] for name in NAMES}


@pytest.mark.parametrize("read_at_once", [1, 50, 1 << 20])
def test_a_mistake_is_found_where_pythons_own_reader_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_at_once: int
) -> None:
    monkeypatch.setattr(data.coco_json, "READ_AT_ONCE", read_at_once)
    whole = json.dumps(content(), indent=1)
    path = tmp_path / "labels.json"
    random = np.random.default_rng(1)
    for place in random.integers(len(whole), size=60).tolist():
        broken = whole[:place] + "@" + whole[place + 1 :]
        path.write_text(broken, encoding="utf-8")
        try:
            json.loads(broken)
        except json.JSONDecodeError as error:
            assert message(path).startswith(f"line {error.lineno}, column "), place
        else:
            read(path)  # the place was inside a string


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = json.dumps({"images": [{"a": "b"}, 12], "annotations": [1.5, [True]]})
    path = tmp_path / "labels.json"
    for length in range(len(whole)):
        path.write_text(whole[:length], encoding="utf-8")
        assert "not JSON" in message(path), length


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"images": [], "annotations": []} x', "line 1, column 35: not JSON: extra characters"),
        ('{"images": [1,], "annotations": []}', "line 1, column 15: not JSON: Expecting value"),
        ("{images: []}", "line 1, column 2: not JSON: expected a name in double quotes"),
        ('{"images" []}', "line 1, column 11: not JSON: expected :"),
        ('{"images": [1 2]}', "line 1, column 15: not JSON: expected , or ]"),
        ('{"images": "' + "x" * 300, "line 1, column 12: not JSON: Unterminated string"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "labels.json"
    path.write_text(text, encoding="utf-8")
    assert message(path).startswith(expected)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_bytes(b'{"images": ["\xff\xfe"]}')
    assert "not JSON that can be read" in message(path)


def test_not_a_number_is_read_as_python_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text('{"images": [NaN, -Infinity], "annotations": []}', encoding="utf-8")
    assert str(read(path)["images"]) == "[nan, -inf]"


def test_progress_ends_at_the_files_size(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(content(), ensure_ascii=False), encoding="utf-8")
    seen: list[int] = []
    for _ in stream_lists(path, NAMES, advance=seen.append):
        pass
    assert seen == sorted(seen) and seen[-1] == path.stat().st_size
