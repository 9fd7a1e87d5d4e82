"""What `predict` is asked to look at: pictures, folders of them, videos, a camera.

TODO-DOC Boxes as JSON, written as they are found: an array with an object a line.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from common.errors import InputError
from data.decoding import SUFFIXES
from retinanet.evaluation.detections import ImageDetections, xywh

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mjpeg", ".mjpg", ".mpg", ".ts")
"""What cameras and their programs write, in lower case."""

Kind = Literal["picture", "video", "camera"]
ENDINGS = {"picture": ".boxes.png", "video": ".boxes.mp4", "camera": ".boxes.mp4"}


@dataclass(frozen=True)
class Source:
    """One picture or video, and where it goes once boxes are drawn on it."""

    file: Path
    kind: Kind
    drawn: Path


@dataclass(frozen=True)
class Sources:
    """All of them, in the order of the command line; folders by name."""

    pictures: tuple[Source, ...]
    videos: tuple[Source, ...]
    """Cameras too."""
    passed_over: int
    """Files in folders that are no pictures by their names."""

    @property
    def all(self) -> tuple[Source, ...]:
        """Pictures first."""
        return (*self.pictures, *self.videos)


def find_sources(paths: Sequence[Path], *, out: Path) -> Sources:
    """Look for pictures and videos.

    A file's drawn copy goes to `out`, a folder's to `out`/NAME/…, where NAME is the folder's and
    the rest its tree. It is called by the file's stem, or, where two in one folder share that, by
    their whole names.

    Args:
        paths: Files, folders, cameras such as /dev/video0.
        out: Where drawn copies go; nothing in it is looked at.

    Raises:
        InputError: One is missing, or is a folder without pictures.
    """
    found: list[tuple[Path, Kind, Path]] = []
    passed_over = 0
    for path in paths:
        if path.is_dir():
            inside, others = pictures_below(path, out=out)
            if not inside:
                raise InputError(f"{path}: holds no pictures ({', '.join(SUFFIXES)})")
            name = path.resolve().name
            found += [(one, "picture", name / one.relative_to(path).parent) for one in inside]
            passed_over += others
        elif path.exists():
            found.append((path, kind_of(path), Path()))
        else:
            raise InputError(f"{path}: no such picture, folder or video")
    sources = named(found, out=out)
    return Sources(
        pictures=tuple(one for one in sources if one.kind == "picture"),
        videos=tuple(one for one in sources if one.kind != "picture"),
        passed_over=passed_over,
    )


def numbered(sources: Sources) -> Sources:
    """Return the sources with names for the drawn copies that no file has yet.

    Where any copy would replace a file, all get the lowest free number: `NAME.boxes-2.png`.
    """
    number = 1
    found = sources
    while any(os.path.lexists(source.drawn) for source in found.all):
        number += 1
        found = replace(
            sources,
            pictures=tuple(with_number(source, number) for source in sources.pictures),
            videos=tuple(with_number(source, number) for source in sources.videos),
        )
    return found


def with_number(source: Source, number: int) -> Source:
    """Return a source whose drawn copy has a number before its suffix."""
    drawn = source.drawn
    return replace(source, drawn=drawn.with_name(f"{drawn.stem}-{number}{drawn.suffix}"))


def kind_of(path: Path) -> Kind:
    """By name; what is called neither is tried as a picture."""
    if path.is_char_device():
        return "camera"
    return "video" if path.suffix.lower() in VIDEO_SUFFIXES else "picture"


def pictures_below(folder: Path, *, out: Path) -> tuple[list[Path], int]:
    """The pictures of a tree, by name, and the number of other files; not those below `out`.

    Raises:
        InputError: A folder in it cannot be read.
    """
    pictures: list[Path] = []
    others = 0
    left_out = out.resolve()
    for parent, folders, files in os.walk(folder, onerror=refuse_folder):
        here = Path(parent)
        folders[:] = sorted(name for name in folders if (here / name).resolve() != left_out)
        wanted = [here / name for name in sorted(files) if name.lower().endswith(SUFFIXES)]
        pictures += wanted
        others += len(files) - len(wanted)
    return pictures, others


def refuse_folder(error: OSError) -> None:
    """Called by os.walk, which would pass over it without a word."""
    raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error


def named(found: Sequence[tuple[Path, Kind, Path]], *, out: Path) -> list[Source]:
    """The sources with the names of their drawn copies."""
    stems = Counter((folder, file.stem + ENDINGS[kind]) for file, kind, folder in found)
    crowded = {(folder, Path(name).suffix) for (folder, name), count in stems.items() if count > 1}
    return [
        Source(
            file,
            kind,
            out
            / folder
            / f"{file.name if (folder, Path(ENDINGS[kind]).suffix) in crowded else file.stem}"
            f"{ENDINGS[kind]}",
        )
        for file, kind, folder in found
    ]


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
