"""Lists of JSON objects as checked columns; the culprit is searched for only after a failure."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from common.errors import InputError

INT64_MAX = 2**63 - 1
REQUIRED = object()


@dataclass(frozen=True)
class JsonTable:
    """One of COCO's lists (`images`, `annotations`, `categories`), read one field at a time.

    Every method raises InputError with one line that names file, entry and field:
    `labels.json: annotations[17].bbox: expected …, found …`.
    """

    file: Path
    name: str
    entries: list[Any]
    first: int = 0
    """How many entries of the list came before these."""

    def values(self, field: str, *, default: object = REQUIRED) -> list[Any]:
        """The field of every entry, unchecked; `default` where an entry lacks it."""
        try:
            if default is REQUIRED:
                return [entry[field] for entry in self.entries]
            return [entry.get(field, default) for entry in self.entries]
        except (KeyError, TypeError, AttributeError):
            pass  # the fast way failed: find out where
        for index, entry in enumerate(self.entries):
            if not isinstance(entry, dict):
                self.fail(index, None, f"expected an object, found {shown(entry)}")
            if field not in entry:
                self.fail(index, field, "missing; COCO's format requires it")
        raise AssertionError(f"no culprit for {self.name}.{field}")

    def integers(
        self,
        field: str,
        *,
        default: object = REQUIRED,
        minimum: int = -INT64_MAX,
        maximum: int = INT64_MAX,
    ) -> NDArray[np.int64]:
        """An int64 column within the bounds. `true`, `1.0` and `"1"` are no integers."""
        column = self.values(field, default=default)

        def is_valid(value: object) -> bool:
            return type(value) is int and minimum <= value <= maximum

        of_one_type = set(map(type, column)) <= {int}
        if column and not (of_one_type and minimum <= min(column) <= max(column) <= maximum):
            bounded = (minimum, maximum) != (-INT64_MAX, INT64_MAX)
            expected = f"an integer from {minimum} to {maximum}" if bounded else "an integer"
            self._refuse_first(column, field, is_valid, expected=expected)
        return np.array(column, dtype=np.int64)

    def flags(self, field: str) -> NDArray[np.bool_]:
        """A bool column of `true`, `false`, 0 or 1; false where missing."""
        column = self.values(field, default=0)
        if not set(map(type, column)) <= {int, bool} or not set(column) <= {0, 1}:
            self._refuse_first(
                column,
                field,
                lambda value: type(value) in (int, bool) and value in (0, 1),
                expected="0 or 1",
            )
        return np.array(column, dtype=np.bool_)

    def strings(self, field: str) -> tuple[str, ...]:
        """A column of strings, none of them empty."""
        column = self.values(field)
        if not (set(map(type, column)) <= {str} and all(column)):
            self._refuse_first(
                column,
                field,
                lambda value: isinstance(value, str) and value != "",
                expected="a string that is not empty",
            )
        return tuple(column)

    def numbers(self, field: str, *, default: NDArray[np.float64]) -> NDArray[np.float64]:
        """A float64 column of finite numbers ≥ 0; `default` [N] stands in where missing or null."""
        column = [
            stand_in if value is None else value
            for value, stand_in in zip(
                self.values(field, default=None), default.tolist(), strict=True
            )
        ]
        array = _finite(column)
        if array is None or bool((array < 0).any()):
            self._refuse_first(
                column,
                field,
                lambda value: _is_number(value) and value >= 0,
                expected="a number ≥ 0",
            )
        return array

    def boxes(self, field: str, *, largest: float) -> NDArray[np.float64]:
        """A float64 column `[N, 4]` of COCO's boxes: x, y, width, height in pixels, whose sizes
        are at most `largest`.
        """
        column = self.values(field)
        array = None
        if set(map(type, column)) <= {list} and set(map(len, column)) <= {4}:
            array = _finite(list(chain.from_iterable(column)))
        if (
            array is None
            or bool((array.reshape(-1, 4)[:, 2:] < 0).any())
            or bool((np.abs(array) > largest).any())
        ):
            self._refuse_first(
                column,
                field,
                lambda value: _is_box(value, largest=largest),
                expected="[x, y, width, height]: 4 finite numbers, the last two ≥ 0"
                f" and none beyond {largest:g}",
            )
        return array.reshape(-1, 4)

    def fail(self, index: int, field: str | None, problem: str) -> NoReturn:
        """Raise InputError about one of these entries, or one of its fields."""
        place = f"{self.name}[{self.first + index}]" + (f".{field}" if field else "")
        raise InputError(f"{self.file}: {place}: {problem}")

    def _refuse_first(
        self, column: list[Any], field: str, is_valid: Callable[[Any], bool], *, expected: str
    ) -> NoReturn:
        for index, value in enumerate(column):
            if not is_valid(value):
                self.fail(index, field, f"expected {expected}, found {shown(value)}")
        raise AssertionError(f"no culprit for {self.name}.{field}")


def shown(value: object) -> str:
    """A JSON value in one short line, for an error message."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a value that is nested too deep"
    return text if len(text) <= 60 else text[:57] + "..."


def _finite(column: list[Any]) -> NDArray[np.float64] | None:
    """The column as float64, or None where a value is not a finite number."""
    if not set(map(type, column)) <= {int, float}:
        return None
    try:
        array = np.array(column, dtype=np.float64)
    except OverflowError:
        return None
    return array if bool(np.isfinite(array).all()) else None


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and _finite([value]) is not None


def _is_box(value: object, *, largest: float) -> bool:
    if not (isinstance(value, list) and len(value) == 4 and all(map(_is_number, value))):
        return False
    return bool(value[2] >= 0 and value[3] >= 0 and max(map(abs, value)) <= largest)
