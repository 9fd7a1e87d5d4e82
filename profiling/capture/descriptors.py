"""Where what C code prints goes: descriptors of this process, turned elsewhere for a while."""

import ctypes
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

OUTPUT, ERRORS = 1, 2


@contextmanager
def redirected(descriptor: int, target: int) -> Iterator[None]:
    """Have what is written to a descriptor go where another one does, exact to the line.

    Raises:
        OSError: One of them is closed.
    """
    flush_c()
    kept = os.dup(descriptor)
    try:
        os.dup2(target, descriptor)
        yield
    finally:
        flush_c()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextmanager
def errors_to_nowhere() -> Iterator[None]:
    """Drop what C++ says on stderr."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with redirected(ERRORS, nowhere):
            yield
    finally:
        os.close(nowhere)


@contextmanager
def python_output_apart() -> Iterator[None]:
    """Give Python's own stdout another descriptor of the same terminal, file or pipe.

    So `redirected` can take descriptor 1, and neither this program's words nor the progress bar,
    which a thread draws, land in a log.
    """
    apart = copy_of_output()
    if apart is None:
        yield
        return
    try:
        with redirect_stdout(apart):
            yield
    finally:
        apart.close()


def copy_of_output() -> io.TextIOWrapper | None:
    """sys.stdout on a descriptor of its own; None where it is not on descriptor 1."""
    output = sys.stdout
    try:
        if not isinstance(output, io.TextIOWrapper) or output.fileno() != OUTPUT:
            return None
    except io.UnsupportedOperation:
        return None
    output.flush()
    return io.TextIOWrapper(
        os.fdopen(os.dup(OUTPUT), "wb", 0 if output.write_through else -1),
        encoding=output.encoding,
        errors=output.errors,
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )


def flush_c() -> None:
    """Write out what C's stdio holds back until a buffer is full, as it does for files."""
    ctypes.CDLL(None).fflush(None)
