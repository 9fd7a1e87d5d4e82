"""Exclusive locks between processes, also on file systems that have none.

The kernel's `flock` ends with the process that holds it. Lustre mounted without `flock`, and NFS
without a lock daemon, refuse it. There the holder creates a second file exclusively, `NAME.owner`,
which names its host and process, and renews that file's time of change. Another process takes the
file over if its process of this host has ended, or another host has not renewed it for `LOST_AFTER`
seconds.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from common.errors import OUR_BUG, InputError
from common.files import create_file, open_regular, updated_descriptor
from common.machine import own_process, start_time

# Times in seconds.
RENEWED_EVERY = 15.0
LOST_AFTER = 300.0  # more than a server's clock and cached attributes of NFS can differ
TAKING_OVER = 60.0  # the longest that a take-over lasts, which is three calls of the file system
MOST_BYTES = 10_000
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks, such as Lustre mounted without `flock`."""


class LockHeldError(Exception):
    """Another process holds the lock; the message names it, where it is known."""


class FileLock:
    """A lock on a file, created if need be, from `take` to `release` or the process's end."""

    def __init__(self, path: Path) -> None:
        """Open the file, and never change its content; raise OSError for a link."""
        self.path = path
        self._is_new = not os.path.lexists(path)
        self._is_taken = False
        self._file = os.fdopen(updated_descriptor(path), "rb")
        self._renewal: Thread | None = None
        self._released = Event()

    def take(self) -> None:
        """Acquire the lock without waiting. Acquiring it again has no effect.

        Raises:
            LockHeldError: Another process holds it.
            OSError: The folder cannot be written.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockHeldError from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            if self._renewal is None:
                create_owner_file(owner_file(self.path))
                self._renewal = Thread(target=self._renew, name="lock", daemon=True)
                self._renewal.start()
        # The lock's holder may have removed the file between our opening and locking it.
        try:
            is_there = os.path.samestat(os.fstat(self._file.fileno()), self.path.lstat())
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise LockHeldError
        self._is_taken = True

    def release(self, *, remove: bool = False) -> None:
        """Release the lock; with `remove` the file is removed, if it was created here."""
        if self._file.closed:
            return
        self._released.set()
        has_owner = self._renewal is not None
        # Removed before the lock is released, or another process could take it on this file in
        # between. `take` of a process that has opened the file before finds that the name is gone.
        if has_owner or (remove and self._is_new and self._is_taken):
            with suppress(OSError):  # the folder may be gone
                self.path.unlink()
        if has_owner:
            with suppress(OSError):
                owner_file(self.path).unlink()
        self._file.close()

    def _renew(self) -> None:
        owner = owner_file(self.path)
        while not self._released.wait(RENEWED_EVERY):
            with suppress(OSError):  # the server may answer later
                if read_owner(owner) == this_process():
                    # Without times the server of a network file system sets them by its own clock,
                    # as `age` does.
                    os.utime(owner)
                elif owner.exists() and not self._released.is_set():
                    # Both would write the same files.
                    print(f"error: {owner}: another process took the lock over", file=sys.stderr)
                    os._exit(OUR_BUG)


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock on a file. Nothing is created or changed."""
    try:
        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks
        pass
    owner = owner_file(path)
    return owner.exists() and is_alive(owner)


def has_locks(folder: Path) -> bool:
    """Return whether a folder's file system has `flock`; OSError if it cannot be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in NO_LOCKS
    return True


def owner_file(path: Path) -> Path:
    """Return the file beside a lock that replaces it where the file system has no locks."""
    return path.with_name(f"{path.name}.owner")


def create_owner_file(owner: Path) -> None:
    """Create the file, or take it over from an ended process; else raise LockHeldError."""
    if owner.exists() and not is_alive(owner):
        remove_stale(owner)
    try:
        with create_file(owner) as file:
            file.write(json.dumps(this_process()).encode())
    except FileExistsError as error:
        holder = read_owner(owner)
        if holder != this_process():  # a signal may have come between its creation and here
            name = f"process {holder.get('pid')} on {holder.get('host')}" if holder else ""
            raise LockHeldError(name) from error


def remove_stale(owner: Path) -> None:
    """Remove the file of an ended process; raise LockHeldError if another process is doing so."""
    # One process at a time. Otherwise, of two that find the same stale file, the slower one would
    # remove the file that the faster one has just created.
    turn = owner.with_name(f"{owner.name}.taken-over")
    with suppress(FileNotFoundError):
        if age(turn) > TAKING_OVER:  # its process was killed meanwhile
            turn.unlink()
    try:
        create_file(turn).close()
    except FileExistsError as error:
        raise LockHeldError from error
    try:
        # Again, as another process may just have taken it over, or be about to create it.
        if owner.exists() and not is_alive(owner):
            owner.unlink(missing_ok=True)
    finally:
        turn.unlink(missing_ok=True)


def is_alive(owner: Path) -> bool:
    """Return whether the process that an owner file names may still be running."""
    holder, current = read_owner(owner), this_process()
    try:
        # The number of a process of another host, container or boot has no meaning here. Then only
        # the age of the file shows whether its process is running.
        if not all(holder.get(key) == current[key] for key in ("host", "processes")):
            return age(owner) <= LOST_AFTER
    except FileNotFoundError:
        return False
    pid = holder.get("pid")
    # The kernel reuses process numbers, so the start time must be equal too.
    started = start_time(pid) if isinstance(pid, int) else None
    return started is not None and started == holder.get("started")


def read_owner(owner: Path) -> dict[str, object]:
    """Return the content of an owner file; empty if it is not yet, or no longer, written."""
    try:
        with open_regular(owner) as file:
            content = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def this_process() -> dict[str, object]:
    """Return the identity of this process among those of all hosts, containers and boots."""
    identity = own_process()
    return {
        "host": socket.gethostname(),
        "processes": identity.namespace if identity else "",
        "pid": os.getpid(),
        "started": identity.started if identity else None,
    }


def age(file: Path) -> float:
    """Return the seconds since a file's last change, by the clock that sets such times."""
    changed = file.stat().st_mtime
    try:
        # A network file system sets times by its server's clock. A new file there has its present
        # time.
        with tempfile.TemporaryFile(dir=file.parent) as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:  # a read-only folder
        now = time.time()
    return now - changed


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
    began, is_told = time.monotonic(), False
    try:
        descriptor = updated_descriptor(lock)
    except OSError as error:
        if lock.is_symlink() or (lock.exists() and not lock.is_file()):
            raise InputError(f"{lock}: {error.strerror}, not a lock; remove it") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                break
            else:
                break
        yield
