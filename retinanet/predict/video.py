"""Detection in videos: every frame or every n-th, drawn with its time.

PyAV (FFmpeg's libraries) reads video files, and writes videos that browsers play.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.console import progress
from common.errors import InputError, printable
from common.files import create_file, open_regular, put_in_place, temporary_name
from common.wording import counted
from data.decoding import MAX_PIXELS
from retinanet.evaluation.matching import ImageDetections
from retinanet.evaluation.output import draw_detections
from retinanet.predict.search import DetectionCounter, Search, Source, StoppedError

if TYPE_CHECKING:
    from av.container import InputContainer

MOST_WAITING = 32
"""Limit of decoded frames in memory, processed or not."""
NOTHING = ImageDetections(
    image_id=0, boxes=np.zeros((0, 4)), scores=np.zeros(0), category_ids=np.zeros(0, np.int64)
)
"""The detections before the first processed frame."""
FILES_ONLY = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,matroska,webm,avi,mjpeg,mpeg,mpegts",
}
"""Without these, FFmpeg detects a playlist by its content and opens the files that it lists."""
MICROSECONDS = 1_000_000  # Units of a container's duration per second
USUAL_RATE = Fraction(25)  # Frames per second if the file does not specify it
CODECS = {
    "libx264": {"crf": "20", "preset": "veryfast"},
    "libopenh264": {},
    "libvpx-vp9": {"crf": "30", "b": "0", "deadline": "realtime", "cpu-used": "6"},
}
"""Codecs in order of preference: the first that FFmpeg's build has; browsers play all in .mp4."""


def detect_in_video(source: Source, search: Search, *, every: int) -> None:
    """Detect objects in every n-th frame of a video, until its end or a signal.

    The frames between show the boxes of the last processed frame. The error of a video that cannot
    be opened or is damaged is printed.

    Raises:
        InputError: An output cannot be written.
    """
    frames_before = search.counter.frames
    with ExitStack() as stack:
        try:
            video = stack.enter_context(open_video(source))
        except InputError as error:
            search.counter.problem(str(error))
            return
        write = None
        if search.draws:
            writer = video_writer(source.drawn, rate=video.rate, time_base=video.time_base)
            write = stack.enter_context(writer)
        title = f"{printable(str(source.file))}, frames"
        advance = stack.enter_context(progress(search.console, title, total=video.total or None))
        seconds, shown = 0.0, NOTHING
        for frames in batch_frames(
            video.frames, search.counter, every=every, batch_size=search.at_once
        ):
            selected = [frame for frame in frames if frame.number % every == 0]
            pictures = [frame.pixels for frame in selected]
            try:
                results = search.detect(pictures, partial(advance, frames[0].number))
            except StoppedError:
                break
            boxes = dict(zip((frame.number for frame in selected), results, strict=True))
            for frame in frames:
                seconds = round(float(frame.timestamp * video.time_base), 3)
                if frame.number in boxes:
                    shown = boxes[frame.number]
                    search.record(source.file, shown, frame=frame.number, seconds=seconds)
                if write is not None:
                    names = search.detector.names
                    # The detector has dropped boxes below --score already.
                    drawn = draw_detections(frame.pixels, shown, names=names, least_score=0)
                    write(drawn, frame.timestamp)
            search.counter.frames += len(selected)
            advance(frames[-1].number + 1, "")
            if search.stop.received:
                break
        else:
            # The duration in the header is often not exact: allow 10 %, and at least 1 s.
            if video.seconds - seconds > max(1.0, video.seconds / 10):
                text = f"truncated: ends after {seconds:.1f} of {video.seconds:.1f} seconds"
                search.counter.problem(f"{source.file}: {text}")
    where = f" → {source.drawn}" if search.draws else ""
    processed = counted(search.counter.frames - frames_before, "frame")
    line = printable(f"{source.file}{where}: {processed} processed")
    search.console.print(line, soft_wrap=True)


class Frame(NamedTuple):
    """One picture of a video; `number` counts from 0."""

    number: int
    pixels: NDArray[np.uint8]  # [H, W, 3] RGB, upright
    timestamp: int
    """When it is shown, in the video's `time_base`, from 0; strictly increasing."""


class Video(NamedTuple):
    """An open video; `total` (frames) and `seconds` are 0 if the file does not specify them."""

    rate: Fraction  # Frames per second, on average
    time_base: Fraction  # Unit of the frames' timestamps. [seconds]
    total: int
    seconds: float
    frames: Iterator[Frame]  # Raises InputError if the file is damaged


WriteFrame = Callable[[NDArray[np.uint8], int], None]
"""Writes a frame: [H, W, 3] RGB, all of one size, and its increasing timestamp in `time_base`.
Raises InputError if it cannot be written."""


@contextmanager
def video_writer(file: Path, *, rate: Fraction, time_base: Fraction) -> Iterator[WriteFrame]:
    """Yield a function that writes frames to an .mp4, which is playable also after an exception.

    The file is created at the first frame and renamed at the end. Raises InputError if it cannot be
    written.
    """
    import av  # noqa: PLC0415

    partial = temporary_name(file)
    container: Any = None
    stream: Any = None

    def write(pixels: NDArray[np.uint8], timestamp: int) -> None:
        nonlocal container, stream
        height, width = pixels.shape[:2]
        # yuv420p needs even sides: repeat the last row or column.
        pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        with or_failed(file, "cannot be written"):
            if stream is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                create_file(partial).close()
                container = av.open(str(partial), "w", format="mp4")
                codec = next(name for name in CODECS if name in av.codecs_available)
                stream = container.add_stream(codec, rate=rate, options=CODECS[codec])
                stream.height, stream.width = pixels.shape[:2]
                stream.pix_fmt = "yuv420p"
                # The default unit of time is one frame: uneven timestamps would be rounded.
                stream.codec_context.time_base = time_base
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = timestamp, time_base
            container.mux(stream.encode(frame))

    try:
        yield write
    finally:
        if container is not None:
            try:
                with or_failed(file, "cannot be written"):
                    # None flushes the frames that the encoder holds back.
                    container.mux(stream.encode(None))
                    container.close()
                    put_in_place(partial, file)
            finally:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)


def batch_frames(
    frames: Iterator[Frame], counter: DetectionCounter, *, every: int, batch_size: int
) -> Iterator[list[Frame]]:
    """Yield frames in order, in lists with at most a batch of frames to process.

    The error of a damaged video is printed after the frames before it.
    """
    waiting: list[Frame] = []
    problem = ""
    try:
        for frame in frames:
            waiting.append(frame)
            # With a large `every`, the frames between would fill the memory before a batch is full.
            selected = sum(frame.number % every == 0 for frame in waiting)
            if selected == batch_size or len(waiting) == MOST_WAITING:
                yield waiting
                waiting = []
    except InputError as error:
        problem = str(error)
    if waiting:
        yield waiting
    if problem:
        counter.problem(problem)


@contextmanager
def or_failed(file: Path, problem: str) -> Iterator[None]:
    """Turn an error of FFmpeg or of the system into an InputError: the file, and the problem."""
    import av  # noqa: PLC0415

    try:
        yield
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file}: {problem}: {reason}") from error


@contextmanager
def open_video(source: Source) -> Iterator[Video]:
    """Open a video file; raise InputError if it cannot be read."""
    import av  # noqa: PLC0415

    # No messages on stderr: the exceptions have the same ones.
    logging.getLogger("libav").setLevel(logging.CRITICAL + 1)
    with or_failed(source.file, "cannot be read as a video"):
        # av.open blocks on a FIFO without a writer.
        open_regular(source.file).close()
        container = av.open(str(source.file), options=FILES_ONLY)
    with container:
        if not container.streams.video:
            raise InputError(f"{source.file}: no video stream; give a video")
        stream = container.streams.video[0]
        if stream.width * stream.height > MAX_PIXELS:
            size = f"{stream.width}×{stream.height} pixels"
            raise InputError(f"{source.file}: {size}: the limit is {MAX_PIXELS} pixels")
        # PyAV's default is threads within a frame; AUTO also decodes several frames at once.
        stream.thread_type = "AUTO"
        rate = stream.average_rate or stream.guessed_rate or USUAL_RATE
        time_base = stream.time_base or 1 / rate
        duration = container.duration or 0
        yield Video(
            rate=rate,
            time_base=time_base,
            # Many containers do not store the number of frames: it is estimated by the duration.
            total=stream.frames or round(duration * rate / MICROSECONDS),
            seconds=duration / MICROSECONDS,
            frames=read_frames(source, container, step=max(1, round(1 / (rate * time_base)))),
        )


def read_frames(source: Source, container: "InputContainer", *, step: int) -> Iterator[Frame]:
    """Yield the frames, upright and with strictly increasing timestamps.

    `step` is the time between two frames without timestamps. Raises InputError if the file is
    damaged; the frames before are valid.
    """
    frames = container.decode(video=0)
    first: int | None = None
    last, number = -step, 0
    while True:
        with or_failed(source.file, f"damaged after frame {number}"):
            frame = next(frames, None)
            if frame is None:
                break
            # Videos of phones have a rotation, which the decoder does not apply. It is
            # counter-clockwise, as in np.rot90.
            pixels = np.rot90(frame.to_ndarray(format="rgb24"), k=round(frame.rotation / 90))
        if first is None:
            first = frame.pts or 0
        # Damaged files repeat timestamps or step back; the encoder rejects both.
        last = last + step if frame.pts is None else max(frame.pts - first, last + 1)
        yield Frame(number, np.ascontiguousarray(pixels), last)
        number += 1
    if number == 0:
        raise InputError(f"{source.file}: no frame can be decoded")
