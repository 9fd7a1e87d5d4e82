"""Exclusive locks between processes: the kernel's `flock`, which ends with its process.

Lustre mounted without `flock`, and NFS without a lock daemon, refuse it. There nothing is held: a
run or a download prints one line that says so, and work that several processes may do at the same
time must be correct even then.
"""

import errno
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from common.errors import InputError, one_line
from common.files import open_regular, or_refused, updated_descriptor

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks."""


class LockHeldError(Exception):
    """Another process holds the lock."""


def lock_now(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting; return False if its file system has no locks.

    Raises BlockingIOError if another process holds the lock.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


class FileLock:
    """A lock on a file, created if need be, from `take` to `release` or the process's end."""

    def __init__(self, path: Path) -> None:
        """Open the file, and never change its content; raise OSError for a link."""
        self.path = path
        self._is_new = not os.path.lexists(path)
        self._is_taken = False
        self._file = os.fdopen(updated_descriptor(path), "rb")

    def take(self) -> None:
        """Acquire the lock without waiting. Acquiring it again has no effect.

        On a file system without locks, prints a line instead.

        Raises:
            LockHeldError: Another process holds it.
            OSError: The folder cannot be written.
        """
        try:
            has_lock = lock_now(self._file)
        except BlockingIOError as error:
            raise LockHeldError from error
        if not has_lock and not self._is_taken:
            text = one_line(
                f"warning: {self.path.parent}: its file system has no locks; another run or "
                "download in this folder would not be refused: start only one"
            )
            print(text, file=sys.stderr, flush=True)
        # The lock's holder may have removed the file between our opening and locking it.
        if not self._has_name():
            raise LockHeldError
        self._is_taken = True

    def release(self, *, remove: bool = False) -> None:
        """Release the lock; with `remove` the file is removed, if it was created here."""
        # Removed before the lock is released, or another process could take it on this file in
        # between. `take` of a process that has opened the file before finds that the name is gone.
        if remove and self._is_new and self._is_taken and not self._file.closed:
            with suppress(OSError):  # the folder may be gone, or made anew by the next holder
                if self._has_name():
                    self.path.unlink()
        self._file.close()

    def _has_name(self) -> bool:
        """Return whether the open file is still the one of this path."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.lstat())
        except FileNotFoundError:
            return False


@contextmanager
def locked_folder(folder: Path, work: str = "download") -> Iterator[None]:
    """Make and lock the folder; raise InputError if it is locked or cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out: {folder}: is a file; set a folder")
    try:
        with or_refused(f"--out: {folder}", advice="set a folder that can be written"):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f".{work}.lock")
            lock.take()
    except LockHeldError as error:
        raise InputError(
            f"--out: {folder}: another {work} is running in this folder; wait for it or stop it"
        ) from error
    try:
        yield
    finally:
        lock.release(remove=work != "download")  # a download may be continued with more images


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock on a file. Nothing is created or changed."""
    try:
        with open_regular(path) as file:
            lock_now(file, fcntl.LOCK_SH)
    except BlockingIOError:
        return True
    except OSError:  # no such file
        pass
    return False


def has_locks(folder: Path) -> bool:
    """Return whether a folder's file system has `flock`; OSError if it cannot be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return lock_now(file)


LONGEST_WAIT = 3600.0  # [s] more than the work of any holder, such as the index of a large file
BETWEEN_TRIES = 0.1  # [s]


@contextmanager
def one_process_at_a_time(
    lock: Path, *, what: str, tell: Callable[[str], object], longest: float = LONGEST_WAIT
) -> Iterator[None]:
    """Hold a lock between processes; the kernel releases it when a process dies.

    The file is made if it is not there. If another process holds the lock, `tell` gets a line that
    names `what` that process is doing. If the file system has no locks, nothing is held: the
    caller's work must be correct even then.

    Raises:
        OSError: The file cannot be made.
        InputError: It is a link or no regular file, or another process still holds the lock after
            the `longest` time [s].
    """
    try:
        descriptor = updated_descriptor(lock)
    except OSError as error:
        if lock.is_symlink() or (lock.exists() and not lock.is_file()):
            raise InputError(f"{lock}: {error.strerror}, not a lock; remove it") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        began, is_told = time.monotonic(), False
        while True:
            try:
                lock_now(file)
                break
            except BlockingIOError:
                if not is_told:
                    is_told = True
                    tell(f"waiting for another process, which is {what}")
                if time.monotonic() - began > longest:
                    raise InputError(
                        f"{lock}: another process has been {what} for {longest / 60:.0f} minutes; "
                        "end it, and run the same command again"
                    ) from None
                time.sleep(BETWEEN_TRIES)
        yield
