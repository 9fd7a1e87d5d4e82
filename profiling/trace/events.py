"""The events of a Chrome trace, one at a time, whatever the size of the file.

TODO-DOC A text file piece by piece, unpacked if it is packed, as far as it goes.
"""

import codecs
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, NoReturn

from common.errors import InputError
from common.files import regular_descriptor

LONGEST_EVENT = 1 << 26
"""Characters after which what looks like the beginning of an event is taken for rubbish."""
BLANKS = re.compile(r"[ \t\r\n]*")


class TraceEvents:
    """`for event in TraceEvents(file)`: the dicts of `traceEvents`, in the file's order.

    Numbers with a decimal point are strings, exactly as they stand in the file: `ts` counts
    microseconds since long ago with nanoseconds behind the point, which a float rounds.
    """

    def __init__(self, file: Path, advance: Callable[[int, str], None] | None = None) -> None:
        """Nothing is read yet.

        Args:
            file: JSON, or JSON in gzip; told apart by its first bytes.
            advance: Called with the number of bytes read so far, of the file as it is on disk.
        """
        self.fields: dict[str, Any] = {}
        """What stands beside `traceEvents`, such as `baseTimeNanoseconds`."""
        self.is_cut_off = False
        """Whether the file ends, or is damaged, before the end of its events; known at the end."""
        self._file = file
        self._advance = advance or (lambda done, note: None)
        self._decoder = json.JSONDecoder(parse_float=str, strict=False)
        self._text = ""
        self._at = 0
        self._before = 0
        self._chunks: Iterator[str] = iter(())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Read the file.

        Raises:
            InputError: It cannot be read, is no JSON, or has no `traceEvents`.
        """
        try:
            with os.fdopen(regular_descriptor(self._file, pipes=True), "rb") as file:
                self._chunks = text_chunks(file, self._advance)
                yield from self._document()
        except UnicodeDecodeError as error:
            self._refuse("is neither JSON nor JSON in gzip", error)
        except OSError as error:
            raise InputError(f"{self._file}: cannot be read: {error.strerror or error}") from error

    def _more(self) -> bool:
        """Read on; what was decoded is let go."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._before += self._at
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True

    def _peek(self) -> str:
        """The next character that is no blank; empty at the end of the file."""
        while True:
            blanks = BLANKS.match(self._text, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """The next value.

        Raises:
            EOFError: The file ends within it.
        """
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._may_go_on(error):
                    self._refuse(f"is no JSON at character {self._before + error.pos}", error)
                if not self._more():
                    raise EOFError from error
            else:
                if end < len(self._text) or not self._more():
                    self._at = end
                    return value

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether the text ends too early, rather than being wrong."""
        rest = len(self._text) - self._at
        near_end = error.pos >= len(self._text) - 12  # of a number, `false`, `-Infinity`, `\\u00e4`
        return rest < LONGEST_EVENT and (near_end or error.msg.startswith("Unterminated string"))

    def _document(self) -> Iterator[dict[str, Any]]:
        first = self._peek()
        if not first:
            self._refuse("is empty, or damaged from its beginning on")
        if first not in "{[":
            self._refuse("is no JSON: it does not begin with { or [")
        try:
            if first == "[":
                yield from self._events()
            else:
                yield from self._object()
        except EOFError:
            if "traceEvents" not in self.fields and first == "{":
                self._refuse("ends before its traceEvents")
            self.is_cut_off = True

    def _object(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._next_item("}"):
            key = self._value()
            if self._peek() != ":":
                self._unexpected(":")
            self._at += 1
            if key == "traceEvents" and self._peek() == "[":
                self.fields[key] = None
                yield from self._events()
            elif isinstance(key, str):
                self.fields[key] = self._value()
        if self.fields.get("traceEvents", "") is not None:
            self._refuse("has no list of traceEvents; give what export_chrome_trace writes")

    def _events(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._next_item("]"):
            event = self._value()
            if isinstance(event, dict):
                yield event

    def _next_item(self, end: str) -> bool:
        """Step over a comma, or over the end."""
        found = self._peek()
        if found == ",":
            self._at += 1
            found = self._peek()
        if not found:
            raise EOFError
        if found == end:
            self._at += 1
        return found != end

    def _unexpected(self, wanted: str) -> NoReturn:
        if not self._peek():
            raise EOFError
        self._refuse(f"is no JSON at character {self._before + self._at}: expected {wanted}")

    def _refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        raise InputError(f"{self._file}: {what}") from cause


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
