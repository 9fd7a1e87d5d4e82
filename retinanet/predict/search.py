"""The sources that `predict` looks at, the detector, and the file and counts of its boxes.

Sources are pictures, folders of them, videos and cameras. A `Search` has what all of them share:
the detector, the JSON file of the boxes, the counts, and the signal that ends it early.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from rich.console import Console

from common.errors import InputError, one_line, printable
from data.annotations import ClassMap
from data.decoding import SUFFIXES
from data.transforms import resize_image
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import SCORE_THRESHOLD, detect_batch, on_original
from retinanet.evaluation.matching import ImageDetections, xywh
from retinanet.evaluation.output import LONGEST_NAME, Pixels
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.signals import StopRequest

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mjpeg", ".mjpg", ".mpg", ".ts")
"""Of files that cameras and their programs write, in lower case."""

Kind = Literal["picture", "video", "camera"]
ENDINGS = {"picture": ".boxes.png", "video": ".boxes.mp4", "camera": ".boxes.mp4"}
SHOWN_CLASSES = 5


class Source(NamedTuple):
    """One picture or video, and where it goes once boxes are drawn on it."""

    file: Path
    kind: Kind
    drawn: Path


class Sources(NamedTuple):
    """All of them: pictures, then videos and cameras; each in the order of the command line."""

    all: tuple[Source, ...]
    passed_over: int  # Files in folders that are no pictures by their names

    @property
    def pictures(self) -> list[Source]:
        """The pictures."""
        return [source for source in self.all if source.kind == "picture"]

    @property
    def videos(self) -> list[Source]:
        """The videos and cameras."""
        return [source for source in self.all if source.kind != "picture"]


def find_sources(paths: Sequence[Path], *, out: Path) -> Sources:
    """Return the pictures and videos of files, folders, and cameras such as /dev/video0.

    A file's drawn copy goes to `out`, a folder's to `out`/NAME/…, where NAME is the folder's and
    the rest its tree. It is called by the file's stem, or, where two in one folder share that, by
    their whole names. Nothing that is in `out` already is looked at.

    Raises:
        InputError: One is missing, or is a folder without pictures.
    """
    files: list[tuple[Path, Kind, Path]] = []
    passed_over = 0
    for path in paths:
        if path.is_dir():
            pictures, others = pictures_below(path, out=out)
            if not pictures:
                raise InputError(f"{path}: holds no pictures ({', '.join(SUFFIXES)})")
            name = path.resolve().name
            files += [(file, "picture", name / file.relative_to(path).parent) for file in pictures]
            passed_over += others
        elif path.is_char_device():
            files.append((path, "camera", Path()))
        elif path.exists():  # what has neither's name is tried as a picture
            is_video = path.suffix.lower() in VIDEO_SUFFIXES
            files.append((path, "video" if is_video else "picture", Path()))
        else:
            raise InputError(f"{path}: no such picture, folder or video")
    stems = Counter((folder, file.stem + ENDINGS[kind]) for file, kind, folder in files)
    crowded = {(folder, Path(name).suffix) for (folder, name), count in stems.items() if count > 1}
    sources = []
    for file, kind, folder in files:
        ending = ENDINGS[kind]
        stem = file.name if (folder, Path(ending).suffix) in crowded else file.stem
        sources.append(Source(file, kind, out / folder / f"{stem}{ending}"))
    sources.sort(key=lambda source: source.kind != "picture")
    return Sources(tuple(sources), passed_over)


def pictures_below(folder: Path, *, out: Path) -> tuple[list[Path], int]:
    """Return the pictures of a tree, by name, and the number of other files; not those in `out`."""

    def refuse(error: OSError) -> None:  # os.walk would pass over it without a word
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error

    pictures: list[Path] = []
    others = 0
    excluded = out.resolve()
    for parent, folders, files in os.walk(folder, onerror=refuse):
        here = Path(parent)
        folders[:] = sorted(name for name in folders if (here / name).resolve() != excluded)
        wanted = [here / name for name in sorted(files) if name.lower().endswith(SUFFIXES)]
        pictures += wanted
        others += len(files) - len(wanted)
    return pictures, others


def numbered(sources: Sources) -> Sources:
    """Return the sources with names for the drawn copies that no file has yet.

    Where any copy would replace a file, all get the lowest free number: `NAME.boxes-2.png`.
    """
    number, free = 1, sources.all
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
    """Yield a function that adds boxes to a JSON array, an object a line; without a file to none.

    However the context is left, the file gets its name then, and is JSON with the boxes so far.

    Raises:
        InputError: It cannot be written; the function raises it too.
    """
    if file is None:
        yield lambda records: None
        return
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = partial.open("w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}; set --json") from error
    is_empty = True

    def add(records: Sequence[dict[str, Any]]) -> None:
        nonlocal is_empty
        if not records:
            return
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        try:
            stream.write(("[\n" if is_empty else ",\n") + ",\n".join(lines))
        except OSError as error:
            raise InputError(f"{file}: cannot be written: {error.strerror}") from error
        is_empty = False

    try:
        yield add
    finally:
        try:
            stream.write("[]\n" if is_empty else "\n]\n")
            stream.close()
            partial.replace(file)
        except OSError as problem:
            with suppress(OSError):
                stream.close()
            raise InputError(f"{file}: cannot be written: {problem.strerror}") from problem


class PictureDetector:
    """A checkpoint's model for pictures of any size, in the precision of its training."""

    def __init__(
        self, checkpoint: Checkpoint, *, least_score: float, only: Sequence[str] = ()
    ) -> None:
        """Load the checkpoint's weights.

        Boxes below `least_score` are left out, and those of other classes if `only` names some.

        Raises:
            InputError: A class is not known, or the weights cannot be read.
        """
        self._classes = ClassMap.from_json(checkpoint.model.classes)
        for name in only:
            if name not in self._classes.names:
                known = ", ".join(sorted(set(self._classes.names)))
                raise InputError(f"--class: {name!r} is none of the checkpoint's classes: {known}")
        pairs = list(zip(self._classes.category_ids, self._classes.names, strict=True))
        wanted = [number for number, name in pairs if not only or name in only]
        self._wanted = np.array(wanted, dtype=np.int64)
        self._size = checkpoint.model.image_size
        self._least_score = least_score
        self._model = checkpoint.build_model().eval()
        self._forward = torch_forward(self._model, precision=checkpoint.model.precision)
        self.names = {category_id: name[:LONGEST_NAME] for category_id, name in pairs}
        """Category ids to names."""

    def find(self, pictures: Sequence[Pixels]) -> list[ImageDetections]:
        """Return detections in pixels of the RGB pictures, which have any sizes; best first."""
        input_size = (self._size, self._size)
        shape = (len(pictures), 3, *input_size)
        images = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        for image, pixels in zip(images, pictures, strict=True):
            image.copy_(resize_image(pixels, self._size))
        threshold = min(SCORE_THRESHOLD, self._least_score)
        batch = detect_batch(self._model, images, forward=self._forward, score_threshold=threshold)
        results = []
        for place, (pixels, detections) in enumerate(zip(pictures, batch, strict=True)):
            result = on_original(
                detections,
                self._classes,
                image_id=place,
                input_size=input_size,
                original_size=(pixels.shape[0], pixels.shape[1]),
            )
            rows = result.scores >= self._least_score
            rows &= np.isin(result.category_ids, self._wanted)
            results.append(result.of_rows(rows))
        return results


class DetectionCounter:
    """The counts of what was looked at and found; prints at once what could not be read."""

    def __init__(self, errors: Console) -> None:
        """Print problems on the console `errors`."""
        self._errors, self._began = errors, time.perf_counter()
        self.pictures = self.frames = self.problems = 0
        self.classes: Counter[str] = Counter()

    def problem(self, text: str) -> None:
        """Print and count something that could not be read."""
        self.problems += 1
        self._errors.print(f"error: {one_line(text)}", soft_wrap=True)

    def summary(self) -> str:
        """Return all counts in a line."""
        seconds = time.perf_counter() - self._began
        kinds = ((self.pictures, "picture"), (self.frames, "frame"))
        looked_at = [counted(number, kind) for number, kind in kinds if number]
        boxes = self.classes.total()
        text = f"{' and '.join(looked_at) or 'nothing'}, {counted(boxes, 'box', 'boxes')}"
        if boxes:
            best = self.classes.most_common(SHOWN_CLASSES)
            text += f" ({', '.join(f'{printable(name)} {count}' for name, count in best)}"
            text += ", …)" if len(self.classes) > len(best) else ")"
        rate = (self.pictures + self.frames) / seconds
        return f"{text} in {seconds:.1f} s, {rate:.1f} a second"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return `1 picture`, `2 pictures`."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


@dataclass(frozen=True, kw_only=True)
class Search:
    """The state and options of one `predict`."""

    detector: PictureDetector
    batch_size: int
    draws: bool  # Whether drawn copies are written
    add_boxes: AddBoxes  # To the JSON file, if there is one
    counter: DetectionCounter
    console: Console
    stop: StopRequest  # Checked between two batches

    def record(self, file: Path, found: ImageDetections, **more: float) -> list[dict[str, Any]]:
        """Write, count and return the boxes of a picture or frame, best first, as in the JSON.

        `file` is the picture, or the video that it is a frame of. All get the fields in `more`,
        such as the frame's number.

        Raises:
            InputError: They cannot be written.
        """
        rows = zip(xywh(found.boxes), found.scores, found.category_ids.tolist(), strict=True)
        records: list[dict[str, Any]] = [
            {
                "file": str(file),
                **more,
                "bbox": [round(edge, 2) for edge in box.tolist()],
                "score": round(float(score), 4),
                "category_id": category_id,
                "category": self.detector.names[category_id],
            }
            for box, score, category_id in rows
        ]
        self.add_boxes(records)
        self.counter.classes.update(record["category"] for record in records)
        return records
