"""Detecting in pictures: batch after batch, read ahead and drawn beside the network."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from data.decoding import decode_image
from retinanet.errors import InputError
from retinanet.evaluation.pictures import draw_detections, save_picture
from retinanet.prediction.search import Search
from retinanet.prediction.sources import Source
from retinanet.prediction.tally import Tally, best_of
from retinanet.printable import printable
from retinanet.progress import Advance, progress

Pixels = NDArray[np.uint8]
THREADS = 2
"""That decode and compress: Pillow does both without holding Python's lock. torch is called by one
thread alone: each that calls it would get a team of threads of its own."""
FEW = 10
"""So many pictures get a line each; of more the progress is shown."""


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
    batch: Sequence[tuple[Source, Pixels | InputError]], tally: Tally
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
