"""Texts as two arrays, so that a million file names are neither objects nor a copy a process."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


class TextColumn(Sequence[str]):
    """Texts one after the other: a sequence of str that holds two arrays.

    Args:
        content: uint8, all texts joined, in UTF-8.
        starts: int64 [N + 1], where each begins in `content`; the last one is its length.
    """

    def __init__(self, content: NDArray[np.uint8], starts: NDArray[np.int64]) -> None:
        self.content = content
        self.starts = starts

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextColumn":
        """The texts of any iterable, in its order."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        starts = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(text) for text in encoded], out=starts[1:])
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One text, or a list of those of a slice. Raises IndexError as a list does."""
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        text = self.content[self.starts[place] : self.starts[place + 1]].tobytes()
        try:
            return text.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # an index that is not of our making
            return text.decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))
