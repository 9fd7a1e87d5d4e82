"""Files that users name: no read waits for ever, and none is without a limit.

Opening a FIFO waits for a writer, and a device such as /dev/zero has no end. Regular files are
taken, and where they are read once, from beginning to end, the pipe of a shell's `<(command)`.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

MOST_BYTES = 64_000_000
"""Of a file that is read whole, unless its reader sets a limit of its own."""


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file for reading bytes.

    Raises:
        OSError: It cannot be opened or is something else; `strerror` says which.
    """
    return os.fdopen(regular_descriptor(file), "rb")


def regular_descriptor(file: Path, *, pipes: bool = False) -> int:
    """Return a descriptor that reads a regular file.

    Args:
        file: Where it is.
        pipes: Whether a pipe without a name is taken too: its writer has opened it already.

    Raises:
        OSError: As `open_regular`.
    """
    # Without O_NONBLOCK opening a FIFO would wait for a writer before anything can be checked.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    if pipes and is_unnamed_pipe(descriptor):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    raise OSError(errno.EINVAL, "it is not a regular file", str(file))


def is_unnamed_pipe(descriptor: int) -> bool:
    """Return whether a descriptor is of a pipe that no file system has a name for."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith("pipe:")


def read_bytes(file: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file or of an unnamed pipe.

    Raises:
        OSError: It cannot be read, is neither, or holds more than `most_bytes`.
    """
    with os.fdopen(regular_descriptor(file, pipes=True), "rb") as stream:
        # Files of /proc have a size of 0, whatever they hold: the limit is for what is read.
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(file))
    return content


def read_text(file: Path, *, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """Return the content of a regular file or of an unnamed pipe, in UTF-8.

    Raises:
        OSError: As `read_bytes`.
        UnicodeDecodeError: It is not UTF-8, and `errors` does not allow that.
    """
    return read_bytes(file, most_bytes=most_bytes).decode("utf-8", errors)
