"""Detecting in videos and before cameras: every frame, or every few, drawn and timed."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

import numpy as np
from rich.console import Console

from retinanet.errors import InputError
from retinanet.evaluation.detections import ImageDetections
from retinanet.evaluation.pictures import draw_detections
from retinanet.prediction.search import Search
from retinanet.prediction.sources import Source
from retinanet.prediction.tally import Tally, counted
from retinanet.prediction.video_reading import Frame, Video, open_video
from retinanet.prediction.video_writing import VideoWriter
from retinanet.printable import printable
from retinanet.progress import SECONDS_BETWEEN_LINES, Advance, progress

MOST_WAITING = 32
"""Frames that wait for the network, whether they are looked at or not: memory is kept small."""
NOTHING = ImageDetections(
    image_id=0, boxes=np.zeros((0, 4)), scores=np.zeros(0), category_ids=np.zeros(0, np.int64)
)
"""Before the first frame that is looked at."""


def detect_in_video(source: Source, search: Search, *, every: int) -> None:
    """Look at a video's frames, until it ends or a signal asks to stop.

    A frame that is not looked at shows the boxes of the one before. A video that cannot be opened
    or is damaged is told of.

    Args:
        source: The video or camera, and where the drawn copy goes.
        search: What finds boxes, and where they go.
        every: 1 looks at all frames, 2 at every second one, from the first on.

    Raises:
        InputError: An output cannot be written.
    """
    frames_before = search.tally.frames
    with ExitStack() as stack:
        try:
            video = stack.enter_context(open_video(source))
        except InputError as error:
            search.tally.problem(str(error))
            return
        writer = None
        if search.draws:
            rate = {"rate": video.rate, "time_base": video.time_base}
            writer = stack.enter_context(VideoWriter(source.drawn, **rate))
        title = printable(str(source.file))
        advance = stack.enter_context(frames_progress(search.console, title, video.total))
        seconds, shown = 0.0, NOTHING
        waiting = groups(video.frames, search.tally, every=every, batch_size=search.batch_size)
        for frames in waiting:
            shown = look_at(source, frames, video, search, every=every, shown=shown, writer=writer)
            seconds = seconds_at(frames[-1], video)
            advance(frames[-1].number + 1, "")
            if search.stop.received:
                break
        else:
            if ends_early(seconds, video.seconds):
                said = f"ends after {seconds:.1f} of {video.seconds:.1f} seconds; it was cut short"
                search.tally.problem(f"{source.file}: {said}")
    where = f" → {source.drawn}" if search.draws else ""
    looked_at = counted(search.tally.frames - frames_before, "frame")
    line = printable(f"{source.file}{where}: {looked_at} looked at")
    search.console.print(line, soft_wrap=True)


def look_at(
    source: Source,
    frames: Sequence[Frame],
    video: Video,
    search: Search,
    *,
    every: int,
    shown: ImageDetections,
    writer: VideoWriter | None,
) -> ImageDetections:
    """Find the boxes of some frames, and draw them on these and on those between.

    Args:
        source: The video.
        frames: In order.
        video: The same, open.
        search: What finds boxes, and where they go.
        every: Every how many frames are looked at.
        shown: The boxes of the frame before.
        writer: Of the drawn copy.

    Returns:
        The boxes of the last frame.
    """
    wanted = [frame for frame in frames if frame.number % every == 0]
    found = search.detector.find([frame.pixels for frame in wanted]) if wanted else []
    boxes = dict(zip((frame.number for frame in wanted), found, strict=True))
    for frame in frames:
        if frame.number in boxes:
            shown = boxes[frame.number]
            place = {"frame": frame.number, "seconds": seconds_at(frame, video)}
            search.note(source.file, shown, **place)
        if writer is not None:
            names = search.detector.names
            drawn = draw_detections(frame.pixels, shown, names=names, least_score=0)
            writer.add(drawn, frame.place)
    search.tally.frames += len(wanted)
    return shown


def seconds_at(frame: Frame, video: Video) -> float:
    """When a frame is shown, from the first one on."""
    return round(float(frame.place * video.time_base), 3)


def ends_early(seconds: float, told: float) -> bool:
    """Whether the last frame is more than a second, and a tenth, before the end that is told."""
    return told - seconds > max(1.0, told / 10)


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
