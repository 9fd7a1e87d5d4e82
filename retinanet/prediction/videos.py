"""Detecting in videos and before cameras: every frame, or every few, drawn and timed."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from retinanet.errors import InputError
from retinanet.evaluation.detections import ImageDetections
from retinanet.evaluation.pictures import draw_detections
from retinanet.prediction.box_file import BoxFile, box_records
from retinanet.prediction.detector import PictureDetector
from retinanet.prediction.sources import Source
from retinanet.prediction.tally import Tally
from retinanet.prediction.video_reading import Frame, open_video
from retinanet.prediction.video_writing import VideoWriter
from retinanet.progress import SECONDS_BETWEEN_LINES, Advance, progress
from retinanet.training.signals import StopRequest

MOST_WAITING = 32
"""Frames that wait for the network, whether they are looked at or not: memory is kept small."""
CUT_SHORT = 0.9
"""Of the frames that a file tells of: with fewer, its end is missing."""
NOTHING = ImageDetections(
    image_id=0, boxes=np.zeros((0, 4)), scores=np.zeros(0), category_ids=np.zeros(0, np.int64)
)
"""Before the first frame that is looked at."""


def detect_in_video(
    source: Source,
    detector: PictureDetector,
    *,
    every: int,
    batch_size: int,
    draws: bool,
    box_file: BoxFile,
    tally: Tally,
    console: Console,
    stop: StopRequest,
) -> None:
    """Look at a video's frames, until it ends or a signal asks to stop.

    A frame that is not looked at shows the boxes of the one before.

    Args:
        source: The video or camera, and where the drawn copy goes.
        detector: What finds boxes.
        every: 1 looks at all frames, 2 at every second one, from the first on.
        batch_size: Frames at once.
        draws: Whether a drawn copy is written.
        box_file: Gets the boxes, with the frames' numbers and times.
        tally: Gets the counts, and is told where the video is damaged.
        console: Shows the progress.
        stop: Looked at between two batches.

    Raises:
        InputError: The video cannot be opened, or an output cannot be written.
    """
    frames_before = tally.frames
    with ExitStack() as stack:
        try:
            video = stack.enter_context(open_video(source))
        except InputError as error:
            tally.problem(str(error))
            return
        rate = {"rate": video.rate, "time_base": video.time_base}
        writer = stack.enter_context(VideoWriter(source.drawn, **rate)) if draws else None
        advance = stack.enter_context(frames_progress(console, str(source.file), video.total))
        shown, number = NOTHING, 0
        for frames in groups(video.frames, tally, every=every, batch_size=batch_size):
            looked_at = [frame for frame in frames if frame.number % every == 0]
            found = detector.find([frame.pixels for frame in looked_at]) if looked_at else []
            boxes = dict(zip((frame.number for frame in looked_at), found, strict=True))
            for frame in frames:
                shown = boxes.get(frame.number, shown)
                if frame.number in boxes:
                    seconds = round(float(frame.place * video.time_base), 3)
                    note = {"frame": frame.number, "seconds": seconds}
                    records = box_records(source.file, shown, names=detector.names, **note)
                    box_file.add(records)
                    tally.found(record["category"] for record in records)
                if writer is not None:
                    writer.add(drawn(frame, shown, detector.names), frame.place)
            tally.frames += len(looked_at)
            number = frames[-1].number + 1
            advance(number, "")
            if stop.received:
                break
        else:
            if number < CUT_SHORT * video.total:
                said = f"ends after {number} of {video.total} frames; it was cut short"
                tally.problem(f"{source.file}: {said}")
    where = f" → {source.drawn}" if draws and writer is not None else ""
    looked = f"{tally.frames - frames_before} frames looked at"
    console.print(f"{source.file}{where}: {looked}", soft_wrap=True)


def drawn(frame: Frame, boxes: ImageDetections, names: dict[int, str]) -> NDArray[np.uint8]:
    """A frame with boxes."""
    return draw_detections(frame.pixels, boxes, names=names, least_score=0)


def groups(
    frames: Iterator[Frame], tally: Tally, *, every: int, batch_size: int
) -> Iterator[list[Frame]]:
    """Frames in order, with at most a batch to look at in each list.

    Where the video is damaged it is told of, after what was before.
    """
    waiting: list[Frame] = []
    problem = ""
    while not problem:
        try:
            frame = next(frames, None)
        except InputError as error:
            problem, frame = str(error), None
        if frame is None:
            break
        waiting.append(frame)
        wanted = sum(one.number % every == 0 for one in waiting)
        if wanted == batch_size or len(waiting) == MOST_WAITING:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
    if problem:
        tally.problem(problem)


def frames_progress(console: Console, title: str, total: int) -> AbstractContextManager[Advance]:
    """The progress of a video; of one whose length is not known the frames so far."""
    if total:
        return progress(console, f"{title}, frames", total=total)
    return nullcontext(frames_so_far(console, title))


def frames_so_far(console: Console, title: str) -> Advance:
    """A line every `SECONDS_BETWEEN_LINES`."""
    last = time.monotonic()

    def advance(done: int, note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            console.print(f"{title}: frame {done}; Ctrl-C ends it", soft_wrap=True)

    return advance
