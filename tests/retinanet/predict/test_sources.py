from pathlib import Path

import pytest

from common.errors import InputError
from retinanet.predict.search import find_sources


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def drawn_below(out: Path, *paths: Path) -> list[str]:
    return [str(one.drawn.relative_to(out)) for one in find_sources(paths, out=out).all]


def test_a_folders_tree_is_repeated_below_out_in_order(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", "b.jpg", "a.PNG", "sub/a.jpg", "sub/deep/a.webp", "no.txt")
    sources = find_sources([photos], out=tmp_path / "out")
    assert [str(one.file.relative_to(photos)) for one in sources.pictures] == [
        "a.PNG",
        "b.jpg",
        "sub/a.jpg",
        "sub/deep/a.webp",
    ]
    assert drawn_below(tmp_path / "out", photos) == [
        "photos/a.boxes.png",
        "photos/b.boxes.png",
        "photos/sub/a.boxes.png",
        "photos/sub/deep/a.boxes.png",
    ]
    assert sources.passed_over == 1


def test_files_of_one_stem_keep_their_whole_names(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", "a.jpg", "a.png", "a.jpg.png", "other/a.jpg")
    assert drawn_below(tmp_path, photos) == [
        "photos/a.jpg.boxes.png",
        "photos/a.jpg.png.boxes.png",
        "photos/a.png.boxes.png",
        "photos/other/a.boxes.png",
    ]


def test_a_picture_and_a_video_of_one_stem_do_not_meet(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.jpg", "a.mp4", "b.mp4", "b.mkv")
    files = [root / name for name in ("a.jpg", "a.mp4")]
    assert drawn_below(tmp_path, *files) == ["a.boxes.png", "a.boxes.mp4"]
    files.append(root / "b.mp4")
    files.append(root / "b.mkv")
    sources = find_sources(files, out=tmp_path)
    assert len({one.drawn for one in sources.all}) == 4
    assert [one.kind for one in sources.all] == ["picture", "video", "video", "video"]


def test_what_was_drawn_before_is_not_looked_at(tmp_path: Path) -> None:
    tree(tmp_path, "a.jpg", "predictions/a.boxes.png")
    sources = find_sources([tmp_path], out=tmp_path / "predictions")
    assert [one.file.name for one in sources.pictures] == ["a.jpg"]


def test_what_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jpg: no such picture, folder or video"):
        find_sources([tmp_path / "none.jpg"], out=tmp_path)
    with pytest.raises(InputError, match="holds no pictures"):
        find_sources([tree(tmp_path / "texts", "a.txt")], out=tmp_path)


def test_a_character_device_is_a_camera() -> None:
    [camera] = find_sources([Path("/dev/null")], out=Path("out")).videos
    assert camera.kind == "camera" and camera.drawn == Path("out/null.boxes.mp4")
