"""A text file piece by piece, unpacked if it is packed, as far as it goes."""

import codecs
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO

CHUNK = 1 << 20
"""Bytes read at a time."""
UNPACKED = 1 << 23
"""Bytes that are unpacked at a time at the most."""
GZIP = b"\x1f\x8b"
GZIP_WINDOW = 31
"""zlib's number for gzip with its header."""


def text_chunks(file: IO[bytes], advance: Callable[[int, str], None]) -> Iterator[str]:
    """UTF-8 text, plain or in gzip; a packed file gives what is there before its damage.

    Args:
        file: Need not be one that one can seek in.
        advance: Called with the number of bytes read so far.

    Raises:
        UnicodeDecodeError: It is no such text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    blocks = blocks_of(file, advance)
    first = next(blocks, b"")
    blocks = chain([first], blocks)
    for block in unpacked(blocks) if first.startswith(GZIP) else blocks:
        yield decoder.decode(block)


def blocks_of(file: IO[bytes], advance: Callable[[int, str], None]) -> Iterator[bytes]:
    """The file's bytes."""
    done = 0
    while block := file.read(max(CHUNK, len(GZIP))):
        done += len(block)
        advance(done, "")
        yield block


def unpacked(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Unpack gzip up to its end, or to where it is damaged or cut off."""
    member = zlib.decompressobj(GZIP_WINDOW)
    try:
        for block in blocks:
            rest = block
            while rest:
                if member.eof:
                    member = zlib.decompressobj(GZIP_WINDOW)
                yield member.decompress(rest, UNPACKED)
                rest = member.unconsumed_tail or member.unused_data
        yield member.flush()
    except zlib.error:
        return
