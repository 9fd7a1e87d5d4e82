"""The sources of `predict`, and the JSON file and counts of its boxes.

Sources are pictures, folders of them, and videos. A `Search` has what all of them share:
the detector, the JSON file of the boxes, the counts, and the signal that stops early.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from common.console import significant
from common.errors import InputError, one_line, printable
from common.files import create_file, encoded, or_refused, put_in_place, temporary_name
from common.walk import UNREADABLE, LeftOut, Reach, real_path
from common.wording import counted
from data.decoding import SUFFIXES
from data.packed import is_image_file, list_images
from data.tiling import Tiling
from retinanet.detector import Detector, box_records
from retinanet.evaluation.matching import ImageDetections
from retinanet.evaluation.output import Pixels
from retinanet.training.signals import StopRequest

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mjpeg", ".mjpg", ".mpg", ".ts")
"""File name extensions of videos, in lower case."""

PICTURE, VIDEO = ".boxes.png", ".boxes.mp4"  # Endings of drawn copies
SHOWN_CLASSES = 5


class Source(NamedTuple):
    """One picture or video, and the path of its copy with drawn boxes."""

    file: Path
    drawn: Path
    is_video: bool


class Sources(NamedTuple):
    """All sources: pictures, then videos; each in the order of the command line."""

    all: tuple[Source, ...]
    left_out: LeftOut  # What the folders hold beside pictures

    @property
    def pictures(self) -> list[Source]:
        """The pictures."""
        return [source for source in self.all if not source.is_video]

    @property
    def videos(self) -> list[Source]:
        """The videos."""
        return [source for source in self.all if source.is_video]


def find_sources(paths: Sequence[Path], *, out: Path, allow_outside: bool = False) -> Sources:
    """Return the pictures and videos of files and folders.

    The drawn copy of a file goes to `out`, that of a file in a folder to `out`/NAME/…, where NAME
    is the name of the folder, with the same subfolders. It is named after the file's stem, or
    after the whole name if two files in one folder share a stem. Files inside `out` are skipped.
    With `allow_outside`, links in a folder may lead out of it.

    Raises:
        InputError: A path is missing, or is a folder without pictures.
    """
    files: list[tuple[Path, str, Path]] = []  # With the ending and the folder of the copy
    left_out = LeftOut()
    for path in paths:
        if path.is_dir():
            reach = Reach.of(path, allow_outside=allow_outside)
            below = list_images(path, reach, left_out, suffixes=SUFFIXES, hidden=True, without=out)
            pictures = [path / name for name in below]
            if UNREADABLE in left_out.found:
                _, first = left_out.found[UNREADABLE]
                raise InputError(f"{first}: cannot be read; check the folder's permissions")
            if not pictures:
                raise InputError(
                    f"{path}: no pictures in this folder ({', '.join(SUFFIXES)}){left_out.reason()}"
                )
            # Resolved: the path `.` has no name.
            name = real_path(path).name
            files += [(file, PICTURE, name / file.relative_to(path).parent) for file in pictures]
        elif path.exists() or is_image_file(path):  # any other file name is tried as a picture
            is_video = path.suffix.lower() in VIDEO_SUFFIXES
            files.append((path, VIDEO if is_video else PICTURE, Path()))
        else:
            raise InputError(f"{path}: no such picture, folder or video")
    stems = Counter((folder, ending, file.stem) for file, ending, folder in files)
    # All copies of a folder then have whole names: the stem of a.jpg.webp equals a.jpg.
    shared = {(folder, ending) for (folder, ending, _), count in stems.items() if count > 1}
    sources = [
        Source(
            file,
            drawn=out
            / folder
            / f"{file.name if (folder, ending) in shared else file.stem}{ending}",
            is_video=ending == VIDEO,
        )
        for file, ending, folder in files
    ]
    return Sources(tuple(sorted(sources, key=lambda source: source.is_video)), left_out)


def number_outputs(sources: Sources) -> Sources:
    """Return the sources with unused names for the drawn copies.

    If any copy would replace a file, all get the lowest free number: `NAME.boxes-2.png`.
    """
    number, free = 1, sources.all
    # lexists: a broken link is not replaced either.
    while any(os.path.lexists(source.drawn) for source in free):
        number += 1
        free = tuple(
            source._replace(drawn=drawn.with_name(f"{drawn.stem}-{number}{drawn.suffix}"))
            for source in sources.all
            for drawn in [source.drawn]
        )
    return sources._replace(all=free)


AddBoxes = Callable[[Sequence[dict[str, Any]]], None]


@contextmanager
def box_file(file: Path | None) -> Iterator[AddBoxes]:
    """Yield a function that appends boxes to a JSON array, one object per line; no-op without file.

    On exit, also by an exception, the file is completed and renamed: JSON with all boxes so far.

    Raises:
        InputError: The file cannot be written; the function raises this too.
    """
    if file is None:
        yield lambda records: None
        return
    partial = temporary_name(file)
    with or_refused(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = create_file(partial)
    is_empty = True

    def add(records: Sequence[dict[str, Any]]) -> None:
        nonlocal is_empty
        if not records:
            return
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        with or_refused(file):
            # The surrogates of a name that is not UTF-8 become escapes such as \udc80: valid JSON.
            stream.write(encoded(("[\n" if is_empty else ",\n") + ",\n".join(lines)))
        is_empty = False

    try:
        yield add
    finally:
        with or_refused(file):
            try:
                with stream:
                    stream.write(b"[]\n" if is_empty else b"\n]\n")
                put_in_place(partial, file)
            finally:
                partial.unlink(missing_ok=True)  # left if the disk is full


class DetectionCounter:
    """Counts of processed pictures and frames and of boxes; prints errors immediately."""

    def __init__(self, errors: Console) -> None:
        """Print errors to the console `errors`."""
        self._errors, self._began = errors, time.perf_counter()
        self.pictures = self.frames = self.problems = 0
        self.classes: Counter[str] = Counter()

    def problem(self, text: str) -> None:
        """Print and count the error of an unreadable source."""
        self.problems += 1
        self._errors.print(f"error: {one_line(text)}", soft_wrap=True)

    def summary(self) -> str:
        """Return all counts on one line."""
        seconds = time.perf_counter() - self._began
        kinds = ((self.pictures, "picture"), (self.frames, "frame"))
        processed = [counted(number, kind) for number, kind in kinds if number]
        boxes = self.classes.total()
        text = f"{' and '.join(processed) or 'nothing'}, {counted(boxes, 'box', 'boxes')}"
        if boxes:
            best = self.classes.most_common(SHOWN_CLASSES)
            text += f" ({', '.join(f'{printable(name)} {count}' for name, count in best)}"
            text += ", …)" if len(self.classes) > len(best) else ")"
        rate = (self.pictures + self.frames) / seconds
        return f"{text} in {seconds:.1f} s, {significant(rate, 3)} per second"


class StoppedError(Exception):
    """A signal ended the detection within a picture."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The state and options of one `predict`."""

    detector: Detector
    least_score: float  # Boxes of a lower score are dropped
    only: Sequence[str] | None  # and those of all other classes, if it is given
    batch_size: int
    draws: bool  # Whether drawn copies are written
    add_boxes: AddBoxes  # Writes to the JSON file, if there is one
    counter: DetectionCounter
    console: Console
    stop: StopRequest  # Checked between two batches
    tiling: Tiling | None = None  # How pictures are cut

    @property
    def at_once(self) -> int:
        """How many pictures or frames `detect` takes: one that is cut fills batches."""
        return self.batch_size if self.tiling is None else 1

    def detect(
        self, pictures: Sequence[Pixels], show: Callable[[str], None] = lambda note: None
    ) -> list[ImageDetections]:
        """Return the detections in one batch of pictures or frames; `show` gets the progress.

        Raises:
            StoppedError: A signal came between two batches of tiles.
        """

        def between(done: int, total: int) -> None:
            show(f"tile {done} of {total}")
            if self.stop.received and done < total:
                raise StoppedError

        if not pictures:
            return []
        return self.detector.detect(
            pictures,
            least_score=self.least_score,
            only=self.only,
            tiling=self.tiling,
            batch_size=self.batch_size,
            between=between,
        )

    def record(
        self, file: Path, detections: ImageDetections, **fields: float
    ) -> list[dict[str, Any]]:
        """Write, count and return the boxes of a picture or frame, best first, as in the JSON.

        `file` is the picture, or the video of a frame. All boxes get the additional `fields`, such
        as the number of the frame.

        Raises:
            InputError: The boxes cannot be written.
        """
        names = self.detector.names
        records = box_records(detections, names=names, file=str(file), **fields)
        self.add_boxes(records)
        self.counter.classes.update(record["category"] for record in records)
        return records
