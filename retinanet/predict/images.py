"""Detecting in pictures: batch after batch, read ahead and drawn beside the network.

TODO-DOC A checkpoint's model as it is used on pictures of any size.

TODO-DOC What looking at pictures and at videos share: what finds boxes, and where these go.

TODO-DOC What has been found so far, and what to say of it.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from common.console import Advance, progress
from common.errors import InputError, one_line, printable
from data.annotations import ClassMap
from data.decoding import decode_image
from data.transforms import resize_image
from retinanet.engine.engines import torch_forward
from retinanet.evaluation.detect import SCORE_THRESHOLD, detect_batch, on_original
from retinanet.evaluation.detections import ImageDetections
from retinanet.evaluation.pictures import LONGEST_NAME, draw_detections, save_picture
from retinanet.predict.files import BoxFile, Source, box_records
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.signals import StopRequest

Pixels = NDArray[np.uint8]
THREADS = 2
"""That decode and compress: Pillow does both without holding Python's lock. torch is called by one
thread alone: each that calls it would get a team of threads of its own."""
FEW = 10
"""So many pictures get a line each; of more the progress is shown."""


class PictureDetector:
    """Finds a checkpoint's classes in pictures."""

    def __init__(
        self, checkpoint: Checkpoint, *, least_score: float, only: Sequence[str] = ()
    ) -> None:
        """Load the checkpoint's weights.

        Args:
            checkpoint: Whose model it is; it runs in the precision in which it was trained.
            least_score: Boxes below it are left out.
            only: Names of the classes that are wanted; none given: all.

        Raises:
            InputError: A class is not known, or the weights cannot be read.
        """
        self._classes = ClassMap.from_json(checkpoint.model.classes)
        self._wanted = np.array(wanted_ids(self._classes, only), dtype=np.int64)
        self._size = checkpoint.model.image_size
        self._least_score = least_score
        self._model = checkpoint.build_model().eval()
        self._forward = torch_forward(self._model, precision=checkpoint.model.precision)
        self.names = {
            category_id: name[:LONGEST_NAME]
            for category_id, name in zip(
                self._classes.category_ids, self._classes.names, strict=True
            )
        }
        """Category ids to names."""

    def find(self, pictures: Sequence[NDArray[np.uint8]]) -> list[ImageDetections]:
        """Detections in pixels of the pictures, best first.

        Args:
            pictures: RGB uint8 [H, W, 3] each, of any sizes.
        """
        shape = (len(pictures), 3, self._size, self._size)
        images = torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last)
        for image, pixels in zip(images, pictures, strict=True):
            image.copy_(resize_image(pixels, self._size))
        found = detect_batch(
            self._model,
            images,
            forward=self._forward,
            score_threshold=min(SCORE_THRESHOLD, self._least_score),
        )
        return [
            self._chosen(
                on_original(
                    detections,
                    self._classes,
                    image_id=place,
                    input_size=(self._size, self._size),
                    original_size=(pixels.shape[0], pixels.shape[1]),
                )
            )
            for place, (pixels, detections) in enumerate(zip(pictures, found, strict=True))
        ]

    def _chosen(self, found: ImageDetections) -> ImageDetections:
        rows = found.scores >= self._least_score
        rows &= np.isin(found.category_ids, self._wanted)
        return ImageDetections(
            image_id=found.image_id,
            boxes=found.boxes[rows],
            scores=found.scores[rows],
            category_ids=found.category_ids[rows],
        )


class DetectionCounter:
    """Counts, and tells at once what could not be read."""

    def __init__(self, errors: Console) -> None:
        """`errors`: where problems are told."""
        self._errors = errors
        self._began = time.perf_counter()
        self.pictures = 0
        self.frames = 0
        self.problems = 0
        self.classes: Counter[str] = Counter()

    def found(self, classes: Iterable[str]) -> None:
        """Note the classes of a picture's or frame's boxes."""
        self.classes.update(classes)

    def problem(self, text: str) -> None:
        """Tell of something that could not be read; the work goes on."""
        self.problems += 1
        self._errors.print(f"error: {one_line(text)}", soft_wrap=True)

    def described(self) -> str:
        """All in a line."""
        seconds = time.perf_counter() - self._began
        looked_at = [
            counted(number, one)
            for number, one in ((self.pictures, "picture"), (self.frames, "frame"))
            if number
        ]
        boxes = self.classes.total()
        text = f"{' and '.join(looked_at) or 'nothing'}, {counted(boxes, 'box', 'boxes')}"
        if boxes:
            best = self.classes.most_common(SHOWN_CLASSES)
            text += f" ({', '.join(f'{printable(name)} {count}' for name, count in best)}"
            text += ", …)" if len(self.classes) > len(best) else ")"
        number = self.pictures + self.frames
        return f"{text} in {seconds:.1f} s, {number / seconds:.1f} a second"


@dataclass(frozen=True, kw_only=True)
class Search:
    """One `predict` at work."""

    detector: PictureDetector
    batch_size: int
    """Pictures or frames at once."""
    draws: bool
    """Whether drawn copies are written."""
    box_file: BoxFile
    tally: DetectionCounter
    console: Console
    """Shows a line each, or the progress."""
    stop: StopRequest
    """Looked at between two batches."""

    def note(self, file: Path, found: ImageDetections, **more: float) -> list[dict[str, Any]]:
        """Write and count the boxes of a picture or frame; returns them as `box_records`.

        Raises:
            InputError: They cannot be written.
        """
        records = box_records(file, found, names=self.detector.names, **more)
        self.box_file.add(records)
        self.tally.found(record["category"] for record in records)
        return records


def detect_in_pictures(pictures: Sequence[Source], search: Search) -> None:
    """Look at all pictures, until a signal asks to stop; those that cannot be read are told of.

    Args:
        pictures: Where they are, and where their drawn copies go.
        search: What finds boxes, and where they go.

    Raises:
        InputError: An output cannot be written.
    """
    drawing: list[Future[None]] = []
    done = 0
    total = len(pictures)
    with ThreadPoolExecutor(THREADS) as pool, shown_progress(search.console, total) as advance:
        for batch in read_ahead(pictures, pool, batch_size=search.batch_size):
            if search.stop.received:
                break
            readable = readable_of(batch, search.tally)
            found = search.detector.find([pixels for _, pixels in readable]) if readable else []
            finish(drawing)
            for (source, pixels), detections in zip(readable, found, strict=True):
                records = search.note(source.file, detections)
                if search.draws:
                    names = search.detector.names
                    drawn = draw_detections(pixels, detections, names=names, least_score=0)
                    drawing.append(pool.submit(save_picture, drawn, source.drawn))
                if total <= FEW:
                    where = f" → {source.drawn}" if search.draws else ""
                    boxes = [(record["category"], record["score"]) for record in records]
                    line = printable(f"{source.file}{where}: {best_of(boxes)}")
                    search.console.print(line, soft_wrap=True)
            search.tally.pictures += len(readable)
            done += len(batch)
            advance(done, "")
        finish(drawing)


def shown_progress(console: Console, total: int) -> AbstractContextManager[Advance]:
    """The progress of many pictures; of a few nothing."""
    if total <= FEW:
        return nullcontext(lambda done, note: None)
    return progress(console, "pictures", total=total)


def read_ahead(
    pictures: Sequence[Source], pool: ThreadPoolExecutor, *, batch_size: int
) -> Iterator[list[tuple[Source, Pixels | InputError]]]:
    """Batches of pictures as they are decoded, the next one meanwhile."""
    reading: deque[list[tuple[Source, Future[Pixels | InputError]]]] = deque()
    for first in range(0, len(pictures), batch_size):
        batch = pictures[first : first + batch_size]
        reading.append([(source, pool.submit(read, source.file)) for source in batch])
        if len(reading) > 1:
            yield [(source, pixels.result()) for source, pixels in reading.popleft()]
    for rest in reading:
        yield [(source, pixels.result()) for source, pixels in rest]


def read(file: Path) -> Pixels | InputError:
    """A picture, upright as its EXIF orientation says; or what is wrong with it."""
    try:
        return decode_image(file, apply_exif_orientation=True)
    except InputError as error:
        return error


def readable_of(
    batch: Sequence[tuple[Source, Pixels | InputError]], tally: DetectionCounter
) -> list[tuple[Source, Pixels]]:
    """The pictures that could be read; the others are told of."""
    readable = []
    for source, pixels in batch:
        if isinstance(pixels, InputError):
            tally.problem(str(pixels))
        else:
            readable.append((source, pixels))
    return readable


def finish(drawing: list[Future[None]]) -> None:
    """Wait for drawn copies.

    Raises:
        InputError: One could not be written.
    """
    while drawing:
        drawing.pop().result()


def wanted_ids(classes: ClassMap, only: Collection[str]) -> list[int]:
    """The category ids of the classes with these names; of all, if there are none.

    Raises:
        InputError: A name is not known.
    """
    for name in only:
        if name not in classes.names:
            known = ", ".join(sorted(set(classes.names)))
            raise InputError(f"--class: {name!r} is none of the checkpoint's classes: {known}")
    pairs = zip(classes.category_ids, classes.names, strict=True)
    return [category_id for category_id, name in pairs if not only or name in only]


SHOWN_CLASSES = 5


def counted(number: int, one: str, several: str | None = None) -> str:
    """`1 picture`, `2 pictures`."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def best_of(boxes: Sequence[tuple[str, float]]) -> str:
    """A picture's boxes on one line: the best five of class and score."""
    if not boxes:
        return "nothing found; a lower --score shows less certain boxes"
    best = ", ".join(f"{printable(name)} {score:.2f}" for name, score in boxes[:5])
    return best + (f" and {len(boxes) - 5} more" if len(boxes) > 5 else "")
