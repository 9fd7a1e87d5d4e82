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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise InputError(
            "another `ablate run` measures on this machine, and both would be wrong; wait until "
            "it has ended"
        ) from error
    finally:
        os.close(descriptor)
