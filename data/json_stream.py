"""The lists of a large JSON file, some entries at a time.

Python's own decoder reads the values. It wants a whole text, which for OpenImages' 2.6 GB would be
tens of gigabytes of objects; here it gets one entry after the other from a window on the file.
Unlike other readers of JSON by parts it takes NaN, which a data set with a wrong box may hold.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, TextIO

from data.columns import shown
from retinanet.errors import InputError
from retinanet.regular_files import open_regular

ENTRIES_AT_ONCE = 10_000
"""A box's dict takes about a kilobyte: 10 MB."""
READ_AT_ONCE = 8 << 20
"""Characters that are read from the file at once."""
LONGEST_VALUE = 256 << 20
"""Characters. What goes on for longer lacks a quote or a bracket."""
NEAR_THE_END = 64
"""A value that the window cuts off fails this close to its end, in characters; strings apart."""

BLANKS = ("", " ", "\t", "\n", "\r")
BLANK_CHARACTERS = re.compile(r"[ \t\n\r]+")

Advance = Callable[[int], None]
"""Called with the number of bytes that the file has been read to."""


def stream_lists(
    path: Path, names: Collection[str], *, advance: Advance
) -> Iterator[tuple[str, list[Any]]]:
    """The entries of the lists `names` of a JSON object, in the file's order.

    Yields a list's name with up to `ENTRIES_AT_ONCE` of its entries, again and again; an empty list
    yields itself. Other members are read and dropped.

    Raises:
        InputError: One line, with line and column where the file is not JSON; or the file cannot be
            read, is no object, lacks one of `names`, or has something else than a list there.
    """
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            window = Window(path, file, advance)
            missing = set(names)
            for name in members(window):
                if name in names:
                    missing.discard(name)
                    for entries in list_entries(window, name):
                        yield name, entries
                else:
                    window.value()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from error
    for name in names:
        if name in missing:
            raise InputError(f"{path}: {name}: missing, so this is not COCO's format")


class Window:
    """A part of a text file, from where it is read on; `position` is the next character's."""

    def __init__(self, path: Path, file: TextIO, advance: Advance) -> None:
        self.path = path
        self.file = file
        self.advance = advance
        self.text = ""
        self.position = 0
        self.at_end = False
        self.lines_before = 0
        self.columns_before = 0
        self.decode = json.JSONDecoder().raw_decode

    def more(self) -> None:
        """Read on, and let go of what was read before `position`."""
        gone = self.text[: self.position]
        last_break = gone.rfind("\n")
        self.columns_before = (
            self.columns_before + len(gone) if last_break < 0 else len(gone) - last_break - 1
        )
        self.lines_before += gone.count("\n")
        # As much again as is there, so that a long value is not read over and over.
        added = self.file.read(max(READ_AT_ONCE, len(self.text) - self.position))
        self.text = self.text[self.position :] + added
        self.position = 0
        self.at_end = not added
        self.advance(self.file.buffer.tell())

    def peek(self) -> str:
        """The next character that is not blank, or an empty string at the file's end."""
        while True:
            character = self.text[self.position : self.position + 1]
            if character not in BLANKS:
                return character
            blanks = BLANK_CHARACTERS.match(self.text, self.position)
            self.position = blanks.end() if blanks else self.position
            if self.position == len(self.text):
                if self.at_end:
                    return ""
                self.more()

    def take(self, wanted: str) -> str:
        """The next character, which must be one of `wanted`."""
        found = self.peek()
        if not found or found not in wanted:
            self.fail(self.position, "expected " + " or ".join(wanted))
        self.position += 1
        return found

    def value(self) -> Any:
        """The next value of any kind."""
        while True:
            self.peek()
            try:
                value, end = self.decode(self.text, self.position)
                # A number near the window's end may go on behind it: 1.5 of "1.5e" and "3".
                may_go_on = isinstance(value, int | float) and not isinstance(value, bool)
                if self.at_end or not (may_go_on and end > len(self.text) - NEAR_THE_END):
                    self.position = end
                    return value
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated")
                cut_off |= error.pos > len(self.text) - NEAR_THE_END
                if self.at_end or not cut_off:
                    self.fail(error.pos, error.msg)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{self.path}: not JSON that can be read: {error}") from error
            if len(self.text) - self.position > LONGEST_VALUE:
                self.fail(self.position, "a value that does not end; a quote or bracket is missing")
            self.more()

    def fail(self, position: int, problem: str) -> NoReturn:
        """Raise InputError with the line and column of a place in the window."""
        before = self.text[:position]
        line = self.lines_before + before.count("\n") + 1
        last_break = before.rfind("\n")
        column = self.columns_before + position if last_break < 0 else position - last_break - 1
        raise InputError(f"{self.path}: line {line}, column {column + 1}: not JSON: {problem}")


def members(window: Window) -> Iterator[str]:
    """The names of the object that the file is; the caller takes each one's value."""
    if window.peek() != "{":
        found = shown(window.value())
        raise InputError(
            f"{window.path}: not COCO's format: expected an object with images, annotations and "
            f"categories, found {found}"
        )
    window.take("{")
    if window.peek() == "}":
        window.take("}")
    else:
        while True:
            if window.peek() != '"':
                window.fail(window.position, "expected a name in double quotes")
            name = window.value()
            window.take(":")
            yield name
            if window.take(",}") == "}":
                break
    if window.peek():
        window.fail(window.position, "extra characters after its end")


def list_entries(window: Window, name: str) -> Iterator[list[Any]]:
    """The entries of the list that comes next, `ENTRIES_AT_ONCE` at a time."""
    if window.peek() != "[":
        found = shown(window.value())
        raise InputError(f"{window.path}: {name}: expected a list, found {found}")
    window.take("[")
    entries: list[Any] = []
    if window.peek() == "]":
        window.take("]")
        yield entries
        return
    while True:
        entries.append(window.value())
        ended = window.take(",]") == "]"
        if ended or len(entries) == ENTRIES_AT_ONCE:
            yield entries
            entries = []
        if ended:
            return
