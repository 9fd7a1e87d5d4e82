"""Where things are kept that can be made again, and how one process makes them for all."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems without locks say, such as Lustre mounted without `flock`."""


def user_cache() -> Path | None:
    """`${XDG_CACHE_HOME:-~/.cache}/retinanet-cpu`; None for a user without a home."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return cache / "retinanet-cpu"


def private_cache_folders() -> list[Path]:
    """The user's cache, and after it a folder of the user's own among the temporary files."""
    temporary = Path(tempfile.gettempdir()) / f"retinanet-cpu-{os.getuid()}"
    folders = [temporary] if is_our_own(temporary) or not temporary.exists() else []
    cache = user_cache()
    return [cache, *folders] if cache else folders


def is_our_own(folder: Path) -> bool:
    """Whether nobody else can have put something there."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def first_writable(folders: Sequence[Path], *, mode: int = 0o777) -> Path:
    """The first folder that takes a file; it is made, with `mode`, if it is not there.

    Raises:
        OSError: There is none; the message has each one's reason.
    """
    reasons = []
    for folder in folders:
        try:
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise OSError("; ".join(reasons))


@contextmanager
def one_process_at_a_time(
    lock: Path, *, waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold a lock between processes; the kernel lets go of it when a process dies.

    Where the file system has no locks, nothing is held: what is done must be right even then.

    Args:
        lock: A file; made if it is not there.
        waiting: Called once if another process holds it.
    """
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
