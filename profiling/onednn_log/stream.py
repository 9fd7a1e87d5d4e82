"""The lines of a file: plain or gzip, of any length, never more than a block in memory."""

import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retinanet.regular_files import regular_descriptor

STANDARD_INPUT = Path("-")
LONGEST_LINE = 65_536
"""Characters. oneDNN's own are below a thousand; of longer ones the beginning is kept."""
BLOCK = 1 << 20


@contextmanager
def opened(file: Path) -> Iterator[io.BufferedIOBase]:
    """A file's bytes, unpacked where they are packed; `-` is standard input.

    Beside regular files the pipes of a shell's `<(command)` are read, but no FIFO and no device.

    Raises OSError.
    """
    is_standard_input = file == STANDARD_INPUT
    descriptor = 0 if is_standard_input else regular_descriptor(file, pipes=True)
    with io.FileIO(descriptor, closefd=not is_standard_input) as raw:
        stream = io.BufferedReader(raw, BLOCK)
        if stream.peek(2)[:2] == b"\x1f\x8b":
            yield gzip.GzipFile(fileobj=stream)
        else:
            yield stream


def lines_of(stream: io.BufferedIOBase, advance: Callable[[int], None]) -> Iterator[str]:
    """Lines without their newlines; bytes that are no UTF-8 are replaced.

    `advance` is told the bytes of each block.
    """
    rest = ""
    while block := stream.read1(BLOCK):
        advance(len(block))
        whole, newline, tail = block.decode("utf-8", "replace").rpartition("\n")
        if not newline:
            rest = (rest + tail)[:LONGEST_LINE]
            continue
        for line in (rest + whole).split("\n"):
            yield line[:LONGEST_LINE]
        rest = tail[:LONGEST_LINE]
    if rest:
        yield rest
