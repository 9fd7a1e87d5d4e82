import json
import os
from pathlib import Path

import pytest

from common.errors import InputError
from retinanet.predict.search import box_file, find_sources


def make_files(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize(
    ("names", "drawn"),
    [
        (
            ("a.PNG", "b.jpg", "sub/a.jpg", "sub/deep/a.webp"),
            ("a", "b", "sub/a", "sub/deep/a"),
        ),
        (  # equal stems
            ("a.jpg", "a.jpg.png", "a.png", "other/a.jpg"),
            ("a.jpg", "a.jpg.png", "a.png", "other/a"),
        ),
    ],
)
def test_subfolders_are_repeated_below_out_in_order(
    names: tuple[str, ...], drawn: tuple[str, ...], tmp_path: Path
) -> None:
    photos, out = make_files(tmp_path / "photos", *names[::-1], "no.txt"), tmp_path / "out"
    sources = find_sources([photos], out=out)
    assert [source.file for source in sources.pictures] == [photos / name for name in names]
    expected = [out / "photos" / f"{name}.boxes.png" for name in drawn]
    assert [source.drawn for source in sources.all] == expected
    assert sources.left_out.others == 1


def test_picture_and_videos_with_equal_stems_have_distinct_outputs(tmp_path: Path) -> None:
    root = make_files(tmp_path, "a.jpg", "a.mp4", "b.mp4", "b.mkv")
    files = [root / name for name in ("a.jpg", "a.mp4", "b.mp4", "b.mkv")]
    drawn = [source.drawn.name for source in find_sources(files[:2], out=tmp_path).all]
    assert drawn == ["a.boxes.png", "a.boxes.mp4"]
    sources = find_sources(files, out=tmp_path)
    assert len({source.drawn for source in sources.all}) == 4
    assert [source.is_video for source in sources.all] == [False, True, True, True]


def test_earlier_outputs_are_not_sources(tmp_path: Path) -> None:
    make_files(tmp_path, "a.jpg", "predictions/a.boxes.png")
    sources = find_sources([tmp_path], out=tmp_path / "predictions")
    assert [source.file.name for source in sources.pictures] == ["a.jpg"]


def test_missing_file_and_folder_without_pictures_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jpg: no such picture"):
        find_sources([tmp_path / "none.jpg"], out=tmp_path)
    with pytest.raises(InputError, match="texts: no pictures"):
        find_sources([make_files(tmp_path / "texts", "a.txt")], out=tmp_path)


def test_links_end_and_lead_outside_only_with_the_users_word(tmp_path: Path) -> None:
    other = make_files(tmp_path / "other", "c.jpg")
    photos = make_files(tmp_path / "photos", "a.jpg", "sub/b.jpg")
    (photos / "sub" / "up").symlink_to("..")
    (photos / "d.jpg").symlink_to(other / "c.jpg")
    (photos / "more").symlink_to(other)
    os.mkfifo(photos / "pipe.jpg")
    sources = find_sources([photos], out=tmp_path / "out")
    assert [source.file for source in sources.pictures] == [photos / "a.jpg", photos / "sub/b.jpg"]
    [note] = sources.left_out.notes()
    assert f"(--allow-outside takes them): 2, first {photos}/d.jpg" in note
    sources = find_sources([photos], out=tmp_path / "out", allow_outside=True)
    names = [str(source.file.relative_to(photos)) for source in sources.pictures]
    assert names == ["a.jpg", "d.jpg", "sub/b.jpg", "more/c.jpg"]
    # A link that the user names is his word.
    assert len(find_sources([photos / "more"], out=tmp_path / "out").pictures) == 1
    for name in ("a.jpg", "sub/b.jpg"):
        (photos / name).unlink()
    with pytest.raises(InputError, match=r"no pictures in this folder .*--allow-outside takes"):
        find_sources([photos], out=tmp_path / "out")


def test_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (make_files(tmp_path, "a.jpg") / "closed").mkdir(mode=0)
    if os.access(tmp_path / "closed", os.R_OK):
        pytest.skip("root reads every folder")
    with pytest.raises(InputError, match="closed: cannot be read"):
        find_sources([tmp_path], out=tmp_path / "out")


@pytest.mark.parametrize("parts", [[], [[]], [[1]], [[1, 2], [], [3]]])
def test_box_file_is_one_array(parts: list[list[int]], tmp_path: Path) -> None:
    file = tmp_path / "new" / "boxes.json"
    with box_file(file) as add:
        for part in parts:
            add([{"number": number} for number in part])
        assert not file.exists()
    content = json.loads(file.read_text())
    assert [box["number"] for box in content] == [number for part in parts for number in part]
    assert [path.name for path in file.parent.iterdir()] == ["boxes.json"]


def test_box_file_is_complete_after_an_exception(tmp_path: Path) -> None:
    file = tmp_path / "boxes.json"
    with pytest.raises(KeyboardInterrupt), box_file(file) as add:
        add([{"number": 1}])
        raise KeyboardInterrupt
    assert json.loads(file.read_text()) == [{"number": 1}]


def test_box_file_without_a_path_and_with_an_unwritable_one(tmp_path: Path) -> None:
    with box_file(None) as add:
        add([{"number": 1}])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/boxes\.json: cannot be written"):
        box_file(tmp_path / "file" / "boxes.json").__enter__()
