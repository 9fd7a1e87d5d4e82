"""The lines of a file: plain or gzip, of any length, never more than a block in memory."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

STANDARD_INPUT = Path("-")
LONGEST_LINE = 65_536
"""Characters. oneDNN's own are below a thousand; of longer ones the beginning is kept."""
BLOCK = 1 << 20


def opened(file: Path) -> IO[bytes]:
    """A file's bytes, unpacked where they are packed; `-` is standard input.

    Raises OSError.
    """
    stream = open(0, "rb", closefd=False) if file == STANDARD_INPUT else file.open("rb")
    if stream.peek(2)[:2] == b"\x1f\x8b":
        return gzip.open(stream, "rb")
    return stream


def lines_of(stream: IO[bytes], advance: Callable[[int], None]) -> Iterator[str]:
    """Lines without their newlines; bytes that are no UTF-8 are replaced.

    `advance` is told the bytes of each block.
    """
    rest = ""
    while block := stream.read(BLOCK):
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
