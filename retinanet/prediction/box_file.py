"""Boxes as JSON, written as they are found: an array with an object a line."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retinanet.errors import InputError
from retinanet.evaluation.box_dicts import xywh
from retinanet.evaluation.detections import ImageDetections


class BoxFile:
    """A context manager: however it is left, the file is whole JSON with the boxes so far."""

    def __init__(self, file: Path | None) -> None:
        """Begin to write.

        Args:
            file: Gets its name at the end; None: nothing is written.

        Raises:
            InputError: It cannot be written.
        """
        self._file = file
        self._is_empty = True
        if file is None:
            return
        self._partial = file.with_name(f".{file.name}.partial")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._partial.open("w", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise InputError(f"{file}: cannot be written: {error.strerror}; set --json") from error

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the array, and give the file its name."""
        if self._file is None:
            return
        try:
            self._stream.write("[]\n" if self._is_empty else "\n]\n")
            self._stream.close()
            self._partial.replace(self._file)
        except OSError as problem:
            with suppress(OSError):
                self._stream.close()
            raise InputError(f"{self._file}: cannot be written: {problem.strerror}") from problem

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Write some boxes.

        Raises:
            InputError: They cannot be written.
        """
        if self._file is None or not records:
            return
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        try:
            self._stream.write(("[\n" if self._is_empty else ",\n") + ",\n".join(lines))
        except OSError as error:
            raise InputError(f"{self._file}: cannot be written: {error.strerror}") from error
        self._is_empty = False


def box_records(
    file: Path, found: ImageDetections, *, names: dict[int, str], **more: float
) -> list[dict[str, Any]]:
    """A picture's boxes for JSON, best first.

    Args:
        file: The picture, or the video that it is a frame of.
        found: Its boxes.
        names: Category ids to names.
        more: Fields that all of them get, such as the frame's number.
    """
    rows = zip(xywh(found.boxes), found.scores, found.category_ids, strict=True)
    return [
        {
            "file": str(file),
            **more,
            "bbox": [round(edge, 2) for edge in box.tolist()],
            "score": round(float(score), 4),
            "category_id": int(category_id),
            "category": names[int(category_id)],
        }
        for box, score, category_id in rows
    ]
