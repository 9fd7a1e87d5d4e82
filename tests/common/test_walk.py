"""The walk through a data set's folders: links, files that are none, and what is left out."""

import os
import pickle
import socket
from pathlib import Path

import pytest

from common.errors import InputError
from common.walk import (
    IRREGULAR,
    OUTSIDE,
    UNREADABLE,
    VISITED,
    LeftOut,
    Options,
    Reach,
    real_path,
    walk_files,
    walk_folders,
)


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def link(path: Path, target: str | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def found(
    root: Path, *, reach: Reach | None = None, options: Options | None = None
) -> tuple[list[str], dict[str, int]]:
    """Return the files of a walk, and the numbers of what it left out."""
    left_out = LeftOut()
    files = list(walk_files(root, reach or Reach.of(root), left_out, **(options or {})))
    return files, {kind: number for kind, (number, _) in left_out.found.items()}


@pytest.mark.parametrize("target", [".", "..", "../..", "../deep/er", "."])
def test_link_to_a_folder_that_is_visited_or_above_ends(tmp_path: Path, target: str) -> None:
    root = make(tmp_path / "set" / "images", "b.jpg", "a.jpg", "deep/er/c.jpg")
    link(root / "x", target)
    files, left_out = found(root, reach=Reach.of(tmp_path))
    # `..` has no other file than those below the root.
    assert files == ["a.jpg", "b.jpg", "deep/er/c.jpg"]
    assert sum(left_out.values()) == 1


def test_links_between_folders_end_and_each_folder_has_its_own_path(tmp_path: Path) -> None:
    root = make(tmp_path, "b/1.jpg", "a/2.jpg", "c/3.jpg")
    for source, target in (("a", "b"), ("b", "a"), ("a", "c")):
        link(root / source / target, f"../{target}")
    assert found(root) == (["a/2.jpg", "b/1.jpg", "c/3.jpg"], {VISITED: 3})


def test_what_leads_outside_needs_the_users_word(tmp_path: Path) -> None:
    other = make(tmp_path / "other", "1.jpg", "below/2.jpg", "notes.txt")
    root = make(tmp_path / "set", "a.jpg")
    link(root / "b.jpg", other / "1.jpg")
    link(root / "c", other)
    link(root / "d.jpg", root / "a.jpg")
    link(root / "e.jpg", tmp_path / "other" / "none.jpg")
    link(root / "notes", other / "notes.txt")  # no image anyway
    options = Options(suffixes=(".jpg",))
    assert found(root, options=options) == (["a.jpg", "d.jpg"], {OUTSIDE: 3})
    reach = Reach.of(root, allow_outside=True)
    everything = ["a.jpg", "b.jpg", "d.jpg", "c/1.jpg", "c/below/2.jpg"]
    assert found(root, reach=reach, options=options) == (everything, {IRREGULAR: 1})
    # Named by the user, the other folder is in reach without his further word.
    both = Reach.of(root, other)
    assert found(root, reach=both, options=options)[0] == everything
    # So is what he names through a link.
    assert found(root / "c", options=options)[0] == ["1.jpg", "below/2.jpg"]
    options["linked_folders"] = False
    assert found(root, reach=reach, options=options)[0] == ["a.jpg", "b.jpg", "d.jpg"]


def test_only_regular_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.jpg", "folder.jpg/b.JPG")
    os.mkfifo(tmp_path / "fifo.jpg")
    link(tmp_path / "link.jpg", "fifo.jpg")
    link(tmp_path / "circle.jpg", "circle.jpg")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        everywhere = Reach.of(tmp_path, allow_outside=True)
        link(tmp_path / "zero.jpg", "/dev/zero")
        options = Options(suffixes=(".jpg",))
        files = ["a.jpg", "folder.jpg/b.JPG"]
        assert found(tmp_path, reach=everywhere, options=options) == (files, {IRREGULAR: 5})


def test_depth_hidden_names_and_a_folder_that_is_skipped(tmp_path: Path) -> None:
    root = make(tmp_path, "a", "b/c", "b/d/e", ".f/g", ".h")
    assert found(root)[0] == ["a", "b/c", "b/d/e"]
    assert found(root, options={"depth": 0})[0] == ["a"]
    assert found(root, options={"depth": 1})[0] == ["a", "b/c"]
    assert found(root, options={"hidden": True})[0] == [".h", "a", ".f/g", "b/c", "b/d/e"]
    assert found(root, options={"without": root / "b"}) == (["a"], {})
    folders = walk_folders(root, Reach.of(root), LeftOut())
    assert [folder.below for folder in folders] == ["", "b/", "b/d/"]


def test_photos_in_other_formats_are_named_and_macos_files_skipped(tmp_path: Path) -> None:
    root = make(tmp_path, "a.jpg", "._a.jpg", "b.HEIC", "c/d.avif", "c/e.cr3", "c/notes.txt")
    left_out = LeftOut()
    walked = walk_files(root, Reach.of(root), left_out, suffixes=(".jpg",), hidden=True)
    assert list(walked) == ["a.jpg"]
    assert left_out.others == 1
    assert left_out.note() == (
        "left out: photos in formats that are not read (convert them to JPEG): 3, first "
        f"{root}/b.HEIC"
    )
    labels = LeftOut()
    assert list(walk_files(root, Reach.of(root), labels, suffixes=(".xml",))) == []
    assert labels.note() == ""


def test_folder_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    assert found(tmp_path / "none") == ([], {UNREADABLE: 1})


def test_note_has_numbers_and_first_paths() -> None:
    left_out = LeftOut()
    assert left_out.note() == "" and left_out.notes() == [] and left_out.reason() == ""
    for path in ("b", "a", "c"):
        left_out.add(OUTSIDE, path)
    left_out.add(VISITED, "d")
    assert left_out.notes() == [
        "left out: folders that a link names again: 1, first d; paths that lead outside of the "
        "data set (--allow-outside takes them): 3, first a"
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a\0b", "n" * 300, "a/../../x", "/etc"])
def test_any_name_is_in_reach_or_not(tmp_path: Path, name: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    reach = Reach.of(root)
    is_inside = name in ("", ".", "n" * 300)
    assert reach.has(f"{root}/{name}") is (is_inside or name == "/etc")
    assert reach.has(Path(root, name)) is is_inside
    assert reach.fault(f"{root}/{name}") is not None  # folders are no files either
    assert Reach.of(Path("/")).has(root) and not reach.has(f"{root}-other")
    assert pickle.loads(pickle.dumps(reach)) == reach  # as the processes of a reader get it  # noqa: S301


def test_fault_names_the_option(tmp_path: Path) -> None:
    root = make(tmp_path / "set", "a.jpg")
    link(root / "b.jpg", "/etc/passwd")
    reach = Reach.of(root)
    assert reach.fault(root / "a.jpg") is None
    assert reach.fault(root / "c.jpg") == "does not exist"
    assert reach.fault(root) == "is not a regular file"
    expected = f"leads outside of {root}; give --allow-outside if you trust the data set"
    assert reach.fault(root / "b.jpg") == expected
    with pytest.raises(InputError, match=r"set/b\.jpg: leads outside of"):
        reach.require(root / "b.jpg")


def test_path_of_links_to_each_other_has_no_error(tmp_path: Path) -> None:
    link(tmp_path / "a", "b")
    link(tmp_path / "b", "a")
    assert real_path(tmp_path / "a" / "c").is_absolute()
    link(tmp_path / "c", make(tmp_path / "set", "a.jpg"))
    assert real_path(tmp_path / "c" / "a.jpg") == (tmp_path / "set" / "a.jpg").resolve()
