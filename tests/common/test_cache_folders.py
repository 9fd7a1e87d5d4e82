"""Who else could write into a folder of code, and the folders that take its place."""

import grp
import os
import pwd
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.cache_folders import (
    first_writable,
    make_folder,
    private_cache_folders,
    user_cache,
    why_untrusted,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
OTHER_USER = OTHER_GROUP = 54_321


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home and the folder for temporary files."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir(mode=0o700)
    return tmp_path / "home"


@pytest.fixture
def cache(home: Path) -> Path:
    folder = home / ".cache" / "retinanet-cpu"
    make_folder(folder)
    return folder


@pytest.fixture
def foreign_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of new files has another member."""
    name = grp.getgrgid(os.getegid()).gr_name
    group = grp.struct_group((name, "x", os.getegid(), ["somebody"]))
    monkeypatch.setattr("grp.getgrgid", lambda _: group)


@pytest.fixture(params=[0o000, 0o002, 0o027, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(*folders: Path) -> set[int]:
    return {folder.stat().st_mode & 0o7777 for folder in folders}


@pytest.mark.parametrize("value", ["", "cache", "./cache", "~/cache"])
def test_cache_home_that_is_not_absolute_is_ignored(
    value: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert user_cache() == home / ".cache/retinanet-cpu"
    monkeypatch.setenv("HOME", "home")
    assert user_cache() is None


@pytest.mark.usefixtures("umask")
def test_mode_does_not_depend_on_the_umask(home: Path, tmp_path: Path) -> None:
    index = home / ".cache/retinanet-cpu/indexes/annotations.index"
    other, shared = tmp_path / "temporary/private", tmp_path / "temporary/shared"
    first_writable([index])
    make_folder(other, mode=0o700)
    make_folder(shared, mode=0o755)
    made = [folder for folder in index.parents if home in folder.parents]
    assert len(made) == 3 and modes(index, *made, other) == {0o700}
    assert modes(shared) == {0o755}


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o707, 0o1777, 0o770])
@pytest.mark.usefixtures("foreign_group")
def test_folder_that_others_can_write_is_not_trusted(mode: int, level: int, cache: Path) -> None:
    assert why_untrusted(cache) == ""
    folder = [cache, *cache.parents][level]
    folder.chmod(mode)
    reason = why_untrusted(cache)
    if mode == 0o1777 and level > 0:  # as in /tmp, only the owner can replace an entry
        assert reason == ""
    else:
        assert f"may write to {folder} (chmod g" in reason


def test_users_own_group_may_write(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwuid(os.geteuid())
    group = grp.struct_group((user.pw_name, "x", user.pw_gid, [user.pw_name]))
    monkeypatch.setattr("grp.getgrgid", lambda _: group)
    for folder in (cache, cache.parent, cache.parents[1]):
        os.chown(folder, -1, user.pw_gid)
        folder.chmod(0o2775)
    assert why_untrusted(cache) == ""
    # A group of all users, who have it as their primary one and are not among its members.
    group = grp.struct_group(("users", "x", user.pw_gid, []))
    assert "group users may write to" in why_untrusted(cache)


def test_access_list_is_not_the_users_own_group(cache: Path) -> None:
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), (2, 7, OTHER_USER), (4, 0, nobody), (16, 7, nobody), (32, 0, nobody)]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(cache, "system.posix_acl_access", value)
    except OSError as error:
        pytest.skip(f"a file system without access lists: {error.strerror}")
    assert f"may write to {cache}" in why_untrusted(cache)


def test_links_are_followed_to_their_end(cache: Path, home: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    make_folder(disk / "me", mode=0o755)
    cache.rmdir()
    cache.symlink_to("../link")
    (home / "link").symlink_to(disk / "me")
    assert why_untrusted(cache) == ""
    disk.chmod(0o777)
    assert f"all users may write to {disk} (chmod" in why_untrusted(cache)
    disk.chmod(0o755)
    (disk / "me").chmod(0o777)
    assert f"all users may write to {disk}/me (chmod" in why_untrusted(cache)
    (home / "link").unlink()
    (home / "link").symlink_to("link")
    assert why_untrusted(cache) == ""  # nobody can reach it
    with pytest.raises(OSError, match="Not a directory"):
        first_writable([cache])


def test_folder_above_the_home_does_not_count(cache: Path, home: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert why_untrusted(cache) == why_untrusted(home) == ""
    (tmp_path / "elsewhere").mkdir()
    assert why_untrusted(tmp_path / "elsewhere") == ""  # who can replace one can replace the other
    (tmp_path / "elsewhere" / "open").mkdir()
    (tmp_path / "elsewhere" / "open").chmod(0o777)
    assert why_untrusted(tmp_path / "elsewhere/open/new") != ""


@needs_root
def test_owner_is_this_user_or_root_or_that_of_the_code(cache: Path, tmp_path: Path) -> None:
    for folder in (cache, cache.parent, cache.parents[1]):
        os.chown(folder, OTHER_USER, -1)
        assert why_untrusted(cache) == f"{folder} belongs to user {OTHER_USER}"
        os.chown(folder, 0, -1)
    cache.rmdir()
    cache.symlink_to(tmp_path / "temporary")
    os.lchown(cache, OTHER_USER, -1)
    assert why_untrusted(cache) == f"{cache} belongs to user {OTHER_USER}"
    code = tmp_path / "code"
    make_folder(code / "compiled", mode=0o755)
    code.chmod(0o777)
    for folder in (code, code / "compiled"):
        os.chown(folder, OTHER_USER, -1)
    assert why_untrusted(code / "compiled", code=code) == ""
    os.chown(code, 0, -1)
    assert "belongs to" in why_untrusted(code / "compiled", code=code)


@needs_root
@pytest.mark.parametrize("level", [0, 1, 2])
def test_group_of_others_may_not_write(level: int, cache: Path) -> None:
    folder = [cache, *cache.parents][level]
    os.chown(folder, -1, OTHER_GROUP)
    assert why_untrusted(cache) == ""
    folder.chmod(0o770)
    assert f"group {OTHER_GROUP} may write to {folder} (chmod g-w" in why_untrusted(cache)


def test_name_that_another_user_holds_is_replaced_by_a_random_one(cache: Path) -> None:
    temporary = Path(tempfile.gettempdir())
    folders = list(private_cache_folders())
    assert folders == [(cache, ""), (temporary / f"retinanet-cpu-{os.geteuid()}", "")]
    held = folders[1][0]
    held.mkdir()
    held.chmod(0o777)
    (temporary / f"{held.name}-held").symlink_to(held)
    _, (_, reason), (random, _) = private_cache_folders()
    assert str(held) in reason and modes(random) == {0o700}
    _, _, (found, _), (_, _) = private_cache_folders()
    assert found == random
    temporary.chmod(0o777)  # there any name can be taken
    assert [bool(reason) for _, reason in private_cache_folders()] == [False, True]
