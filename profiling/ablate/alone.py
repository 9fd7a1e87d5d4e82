"""One measurement on a machine at a time: two would each be wrong."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retinanet.errors import InputError


@contextmanager
def alone_on_this_machine() -> Iterator[None]:
    """Hold the machine, against others of this user, while the context lasts.

    Raises:
        InputError: Another measurement holds it.
    """
    # Among the temporary files, as a home may be that of many hosts.
    lock = Path(tempfile.gettempdir(), f"retinanet-ablate-{os.getuid()}.lock")
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InputError(f"{lock}: cannot be opened: {error.strerror}; set TMPDIR") from error
    try:
        require_lock(descriptor, lock)
        yield
    finally:
        os.close(descriptor)


def require_lock(descriptor: int, lock: Path) -> None:
    """Lock an open file for as long as it is open.

    Raises:
        InputError: Another process holds it, or its file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            "another `ablate run` measures on this machine, and both would be wrong; wait until "
            "it has ended"
        ) from error
    except OSError as error:
        raise InputError(
            f"{lock}: its file system has no locks ({error.strerror}); set TMPDIR to a local one"
        ) from error
