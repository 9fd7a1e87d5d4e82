"""Frames of a video file or a camera, by PyAV (FFmpeg's libraries)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.decoding.decode import MAX_PIXELS
from retinanet.errors import InputError
from retinanet.prediction.sources import Source
from retinanet.regular_files import open_regular

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

CAMERA_FORMAT = "v4l2"
"""Linux' cameras."""
FILES_ONLY = {
    "protocol_whitelist": "file",
    "format_whitelist": "mov,mp4,matroska,webm,avi,mjpeg,mpeg,mpegts",
}
"""FFmpeg would take a list of files for a video, whatever its name, and open all that it names."""
MICROSECONDS = 1_000_000
"""Of a container's duration, in a second."""
USUAL_RATE = Fraction(25)
"""Frames a second of a video that does not say."""


@dataclass(frozen=True)
class Frame:
    """One picture of a video."""

    number: int
    """From 0."""
    pixels: NDArray[np.uint8]
    """[H, W, 3] RGB, upright"""
    place: int
    """When it is shown, in the video's `time_base`, from 0; later than that of the frame before."""


@dataclass(frozen=True)
class Video:
    """An open video."""

    rate: Fraction
    """Frames a second, on average."""
    time_base: Fraction
    """Of the frames' places. [seconds]"""
    total: int
    """Frames, as far as the file says; 0 where it does not."""
    seconds: float
    """That it lasts, as far as the file says; 0 where it does not."""
    frames: Iterator[Frame]
    """Raises InputError where the file is damaged."""


@contextmanager
def open_video(source: Source) -> Iterator[Video]:
    """Open a video file or a camera.

    Raises:
        InputError: It cannot be opened, or holds no pictures.
    """
    import av  # noqa: PLC0415

    logging.getLogger("libav").setLevel(logging.CRITICAL + 1)  # what it says is in the errors too
    camera = source.kind == "camera"
    try:
        if not camera:
            open_regular(source.file).close()  # FFmpeg would wait for the writer of a FIFO
        container = av.open(
            str(source.file),
            format=CAMERA_FORMAT if camera else None,
            options={} if camera else FILES_ONLY,
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        kind = "camera" if camera else "video"
        raise InputError(f"{source.file}: cannot be read as a {kind}: {reason(error)}") from error
    with container:
        if not container.streams.video:
            raise InputError(f"{source.file}: holds no pictures; give a video")
        stream = container.streams.video[0]
        if stream.width * stream.height > MAX_PIXELS:
            size = f"{stream.width}×{stream.height} pixels"
            raise InputError(f"{source.file}: {size} exceed the limit of {MAX_PIXELS}")
        stream.thread_type = "AUTO"
        rate = stream.average_rate or stream.guessed_rate or USUAL_RATE
        time_base = stream.time_base or 1 / rate
        yield Video(
            rate=rate,
            time_base=time_base,
            total=total_frames(container, stream, rate),
            seconds=(container.duration or 0) / MICROSECONDS,
            frames=frames_of(source, container, step=max(1, round(1 / (rate * time_base)))),
        )


def total_frames(container: "InputContainer", stream: "VideoStream", rate: Fraction) -> int:
    """How many there are, as the file says or as its duration lets expect."""
    if stream.frames:
        return stream.frames
    return round(container.duration * rate / MICROSECONDS) if container.duration else 0


def frames_of(source: Source, container: "InputContainer", *, step: int) -> Iterator[Frame]:
    """The frames, each later than the one before, whatever the file says.

    Args:
        source: Named in messages.
        container: Open.
        step: What lies between two frames where the file does not say.

    Raises:
        InputError: The file is damaged; the frames before are good.
    """
    import av  # noqa: PLC0415

    first: int | None = None
    last = -step
    number = 0
    try:
        for frame in container.decode(video=0):
            if first is None:
                first = frame.pts or 0
            place = last + step if frame.pts is None else max(frame.pts - first, last + 1)
            yield Frame(number, upright(frame), place)
            last = place
            number += 1
    except (av.FFmpegError, OSError) as error:
        raise InputError(f"{source.file}: damaged after frame {number}: {reason(error)}") from error
    if number == 0:
        raise InputError(f"{source.file}: holds no frames that can be decoded")


def upright(frame: "VideoFrame") -> NDArray[np.uint8]:
    """A frame's pixels, turned as the telephone was held."""
    pixels = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(pixels, k=round(frame.rotation / 90)))


def reason(error: Exception) -> str:
    """What FFmpeg says."""
    return getattr(error, "strerror", None) or str(error)
