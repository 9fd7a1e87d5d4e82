"""Folders outside a run for what the next run can use again, and who else could write into them.

Compiled code is loaded from such a folder. Whoever can write there, or replace a folder or a link
on the way there, can execute programs as this user. `why_untrusted` looks for such users.
"""

import errno
import grp
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_LINKS = 40  # as many as the kernel follows in one path


def user_home() -> Path | None:
    """Return the user's home; None for a user without one."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home if home.is_absolute() else None


def user_cache() -> Path | None:
    """Return `${XDG_CACHE_HOME:-~/.cache}/retinanet-cpu`; None for a user without a home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # "should consider the path invalid and ignore it" (XDG 0.8)
        home = user_home()
        if home is None:
            return None
        cache = home / ".cache"
    return cache / "retinanet-cpu"


def private_cache_folders() -> Iterator[tuple[Path, str]]:
    """Yield folders for code that only this user can write; `make_folder` makes the chosen one.

    Each comes with the result of `why_untrusted`. The user's cache is first. The next one is among
    the temporary files, under a name that all processes of the user on this host share, so that
    the ranks of a job compile once. If another user holds that name, a random one follows, which
    later starts find.

    Raises:
        OSError: There is no folder for temporary files.
    """
    cache = user_cache()
    if cache is not None:
        yield cache, why_untrusted(cache)
    parent = Path(tempfile.gettempdir())
    shared = parent / f"retinanet-cpu-{os.geteuid()}"
    reason = why_untrusted(shared)
    yield shared, reason
    if reason and not why_untrusted(parent, is_parent=True):
        for folder in sorted(parent.glob(f"{shared.name}-*")):
            if not why_untrusted(folder):
                yield folder, ""
        folder = Path(tempfile.mkdtemp(prefix=f"{shared.name}-", dir=parent))
        folder.chmod(0o700)
        yield folder, ""


def first_writable(folders: Sequence[Path]) -> Path:
    """Return the first folder that accepts a file, made if need be; else raise OSError."""
    reasons = []
    for folder in folders:
        try:
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise OSError("; ".join(reasons))


def make_folder(folder: Path, *, mode: int | None = None) -> None:
    """Make a folder and those above it, unless they are there; raise OSError if that fails.

    What is made has `mode`, whatever the umask is; None: as the umask says. The user's cache, and
    what is made above and in it, is for the user alone (0o700).
    """
    cache = user_cache()
    if cache is not None and folder.is_relative_to(cache):
        mode = 0o700
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        with suppress(FileExistsError):  # another process has made it
            path.mkdir(0o777 if mode is None else mode)
            if mode is not None:
                path.chmod(mode)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def why_untrusted(folder: Path, *, code: Path | None = None, is_parent: bool = False) -> str:
    """Return who else could put files into a folder, with a fix; empty: nobody could.

    All that is passed on the way counts, links and what they lead to included. It must belong to
    this user or root, and neither group nor others may write to it, with two exceptions:

    - The user's own group may write: the primary group, with the user's name and no other member.
      Debian, Ubuntu and Fedora give each user such a group, and some a umask of 002, so that all
      folders of the user are writable by that group.
    - All may write to a folder on the way that has the sticky bit, such as /tmp: there only the
      owner can remove or replace an entry. It does not protect the folder itself, unless that
      `is_parent` of the one in question.

    What is above the user's home does not count: whoever can replace the home can do anything.
    Neither does a folder of `code` that is being executed, with what is above it, for the same
    reason; the owner of that code is trusted like root. A folder that is not there yet, or cannot
    be reached, is as safe as those above it.
    """
    owners = {0, os.geteuid(), *([] if code is None else [code.stat().st_uid])}
    above = {*([] if code is None else [code, *code.parents])}
    home = user_home()
    if home is not None:
        real_home = Path(os.path.realpath(home))
        above |= {*real_home.parents}
        if folder.is_relative_to(home):
            folder = real_home / folder.relative_to(home)
    # All that comes before a place is trusted, so nobody else can be the cause of its error.
    with suppress(OSError):
        for place in way_to(folder):
            status = place.lstat()
            reason = "" if place in above else who_else_writes(place, status, owners)
            if reason and not (status.st_mode & stat.S_ISVTX and status.st_uid in owners):
                return reason
        if not is_parent:
            return who_else_writes(folder, folder.stat(), owners)
    return ""


def way_to(folder: Path) -> Iterator[Path]:
    """Yield all that is passed from the root to a folder, links before what they lead to."""
    place, names, links = Path("/"), list(reversed(folder.parts)), 0
    while names:
        place /= names.pop()
        yield place
        if place.is_symlink():
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            names += reversed(place.readlink().parts)
            place = place.parent


def who_else_writes(path: Path, status: os.stat_result, owners: Collection[int]) -> str:
    """Return which other user could change a file, folder or link, with a fix; empty: none."""
    if status.st_uid not in owners:
        return f"{path} belongs to {account('user', pwd.getpwuid, status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):  # its mode has no meaning
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"all users may write to {path} (chmod go-w {shlex.quote(str(path))})"
    if status.st_mode & stat.S_IWGRP and not is_own_group(path, status.st_gid):
        name = account("group", grp.getgrgid, status.st_gid)
        return f"{name} may write to {path} (chmod g-w {shlex.quote(str(path))})"
    return ""


def is_own_group(path: Path, group: int) -> bool:
    """Return whether a file's group has this user as its only member."""
    with suppress(OSError):  # a file system without access lists
        # With an access list the bit of the group stands for all users that the list names.
        if "system.posix_acl_access" in os.listxattr(path):
            return False
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    # By name, as others that have it as their primary group, such as `users`, are not among its
    # members, and many sites do not list their users.
    is_private = (group, entry.gr_name) == (user.pw_gid, user.pw_name)
    return is_private and {*entry.gr_mem} <= {user.pw_name}


def account(kind: str, lookup: Callable[[int], tuple[Any, ...]], number: int) -> str:
    """Return `user NAME` or `group NAME` for a message; the number where there is no name."""
    try:
        return f"{kind} {lookup(number)[0]}"
    except KeyError:
        return f"{kind} {number}"
