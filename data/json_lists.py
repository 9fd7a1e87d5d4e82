"""Very large JSON files: the lists of an object, read and written some thousand entries at a time.

Python's own decoder needs a whole text: OpenImages' 2.6 GB would become tens of gigabytes of
objects. Here it gets one entry after the other from a window on the file. Unlike other
incremental JSON readers it accepts NaN, which a data set with a wrong box may hold.
"""

import gc
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, TextIO

from common.console import Advance, ignore_progress
from common.errors import InputError
from common.files import open_regular, or_unreadable
from data.annotations import shown


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: JSON holds no cycles, and the search for them takes a third."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


ENTRIES_AT_ONCE = 10_000  # a box's dict takes about a kilobyte: 10 MB
READ_AT_ONCE = 8 << 20  # characters
LONGEST_VALUE = 256 << 20  # characters; a longer value lacks a quote or a bracket
NEAR_THE_END = 64  # a value that the window cuts off fails this close to its end; strings apart
BLANKS = ("", " ", "\t", "\n", "\r")
BLANK_CHARACTERS = re.compile(r"[ \t\n\r]+")


def stream_lists(
    path: Path, names: Collection[str], *, advance: Advance = ignore_progress
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the entries of the lists `names` of a JSON object, in the file's order.

    Yields a list's name with up to `ENTRIES_AT_ONCE` of its entries, again and again; an empty list
    yields itself. Other members are skipped. `advance` is called with the number of bytes read.

    Raises:
        InputError: One line, with line and column where the file is not JSON; or the file cannot be
            read, is no object, lacks one of `names`, or has something else than a list there.
    """
    try:
        # utf-8-sig: some tools write a byte order mark, which Python's JSON decoder refuses.
        with (
            or_unreadable(path),
            TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file,
        ):
            window = Window(path, file, advance)
            missing = set(names)
            for name in members(window):
                if name not in names:
                    window.value()
                    continue
                missing.discard(name)
                for entries in list_entries(window, name):
                    yield name, entries
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be parsed as JSON: {error}") from error
    for name in names:
        if name in missing:
            other = LABELME if is_of_labelme(path) else "this is not COCO's format"
            raise InputError(f"{path}: {name}: missing; {other}")


LABELME = (
    "this is labelme's format, a file for each photo, which is not read; convert all of them by "
    "labelme2coco.py, of labelme's examples"
)


def is_of_labelme(path: Path) -> bool:
    """Return whether a JSON file seems to hold the shapes that somebody drew in one photo."""
    with or_unreadable(path), open_regular(path) as file:
        # The name of a field, not a class of this name; they stand before the photo's own bytes.
        return re.search(rb'"shapes"\s*:', file.read(4096)) is not None


class Window:
    """The part of a text file that is in memory; `position` is the next character's."""

    def __init__(self, path: Path, file: TextIO, advance: Advance) -> None:
        self.path, self.file, self.advance = path, file, advance
        self.text, self.position = "", 0
        self.at_end = False
        self.lines_before = self.columns_before = 0
        self.decode = json.JSONDecoder().raw_decode

    def read_on(self) -> None:
        """Read the next part of the file, and drop the text before `position`."""
        dropped = self.text[: self.position]
        last_break = dropped.rfind("\n")
        self.columns_before = len(dropped) + (self.columns_before if last_break < 0 else 0)
        self.columns_before -= last_break + 1
        self.lines_before += dropped.count("\n")
        # As much again as is there, so that a long value is not read over and over.
        added = self.file.read(max(READ_AT_ONCE, len(self.text) - self.position))
        self.text = self.text[self.position :] + added
        self.position = 0
        self.at_end = not added
        self.advance(self.file.buffer.tell(), "")

    def peek(self) -> str:
        """Return the next character that is not blank, or an empty string at the file's end."""
        while True:
            character = self.text[self.position : self.position + 1]
            if character not in BLANKS:
                return character
            blanks = BLANK_CHARACTERS.match(self.text, self.position)
            self.position = blanks.end() if blanks else self.position
            if self.position == len(self.text):
                if self.at_end:
                    return ""
                self.read_on()

    def take(self, expected: str) -> str:
        """Return the next character, which must be one of `expected`, and go past it."""
        character = self.peek()
        if not character or character not in expected:
            self.fail(self.position, "expected " + " or ".join(expected))
        self.position += 1
        return character

    def skip(self, character: str) -> bool:
        """Go past the next character if it is this one, and return whether it is."""
        is_next = self.peek() == character
        self.position += is_next
        return is_next

    def value(self) -> Any:
        """Return the next value of any kind, and go past it."""
        while True:
            self.peek()
            try:
                value, end = self.decode(self.text, self.position)
                # A number near the window's end may continue after it: 1.5 of "1.5e" and "3".
                may_go_on = isinstance(value, int | float) and not isinstance(value, bool)
                if self.at_end or not (may_go_on and end > len(self.text) - NEAR_THE_END):
                    self.position = end
                    return value
            except json.JSONDecodeError as error:
                # An unterminated string is reported at its beginning, far from the window's end.
                cut_off = error.msg.startswith("Unterminated")
                cut_off |= error.pos > len(self.text) - NEAR_THE_END
                if self.at_end or not cut_off:
                    self.fail(error.pos, error.msg)
            except (ValueError, RecursionError) as error:
                # ValueError: an integer of more than 4,300 digits. RecursionError: too many levels.
                raise InputError(f"{self.path}: cannot be parsed as JSON: {error}") from error
            if len(self.text) - self.position > LONGEST_VALUE:
                self.fail(self.position, "a value has no end; a quote or bracket is missing")
            self.read_on()

    def fail(self, position: int, problem: str) -> NoReturn:
        """Raise InputError with the line and column of a place in the window."""
        before = self.text[:position]
        line = self.lines_before + before.count("\n") + 1
        last_break = before.rfind("\n")
        column = self.columns_before + position if last_break < 0 else position - last_break - 1
        raise InputError(f"{self.path}: line {line}, column {column + 1}: not JSON: {problem}")


def members(window: Window) -> Iterator[str]:
    """Yield the names of the object that the file is; the caller reads each one's value."""
    if not window.skip("{"):
        raise InputError(
            f"{window.path}: not COCO's format: expected an object with images, annotations and "
            f"categories, found {shown(window.value())}"
        )
    ended = window.skip("}")
    while not ended:
        if window.peek() != '"':
            window.fail(window.position, "expected a name in double quotes")
        name = window.value()
        window.take(":")
        yield name
        ended = window.take(",}") == "}"
    if window.peek():
        window.fail(window.position, "extra characters after its end")


def list_entries(window: Window, name: str) -> Iterator[list[Any]]:
    """Yield the entries of the list that comes next, `ENTRIES_AT_ONCE` at a time."""
    if not window.skip("["):
        raise InputError(f"{window.path}: {name}: expected a list, found {shown(window.value())}")
    entries: list[Any] = []
    ended = window.skip("]")
    while not ended:
        entries.append(window.value())
        ended = window.take(",]") == "]"
        if len(entries) == ENTRIES_AT_ONCE and not ended:
            yield entries
            entries = []
    yield entries


def slices(count: int) -> Iterator[slice]:
    """Yield the rows of the blocks in which `count` entries are written."""
    return (slice(row, row + ENTRIES_AT_ONCE) for row in range(0, count, ENTRIES_AT_ONCE))


def entries_of(**columns: Iterable[Any]) -> list[dict[str, Any]]:
    """Return an entry for each row of some fields."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def list_parts(
    head: Mapping[str, Any], lists: Iterable[tuple[str, Iterable[list[Any]]]]
) -> Iterator[bytes]:
    """Yield the parts of a JSON object: the members of `head`, then lists with an entry a line.

    The entries of a list come some at a time.
    """
    yield json.dumps(head)[:-1].encode()
    for name, blocks in lists:
        yield f',\n"{name}": ['.encode()
        for place, block in enumerate(filter(None, blocks)):
            lines = ",\n".join(map(json.dumps, block))
            yield f"{',' if place else ''}\n{lines}".encode()
        yield b"]"
    yield b"}\n"
