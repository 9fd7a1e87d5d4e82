"""A video that browsers play, by PyAV (FFmpeg's libraries)."""

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retinanet.errors import InputError
from retinanet.prediction.video_reading import reason

CODECS = {
    "libx264": {"crf": "20", "preset": "veryfast"},
    "libopenh264": {},
    "libvpx-vp9": {"crf": "30", "b": "0", "deadline": "realtime", "cpu-used": "6"},
}
"""The first that FFmpeg's build has; browsers play each of them in an .mp4."""


class VideoWriter:
    """A context manager: however it is left, the file has its name and plays."""

    def __init__(self, file: Path, *, rate: Fraction, time_base: Fraction) -> None:
        """Make ready; the file is begun at the first frame, whose size it takes.

        Args:
            file: An .mp4.
            rate: Frames a second.
            time_base: Of the frames' places. [seconds]
        """
        self._file = file
        self._partial = file.with_name(f".{file.stem}.partial{file.suffix}")
        self._rate = rate
        self._time_base = time_base
        self._container: Any = None
        self._stream: Any = None

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def add(self, pixels: NDArray[np.uint8], place: int) -> None:
        """Write a frame.

        Args:
            pixels: [H, W, 3] RGB; all frames are of one size.
            place: When it is shown, in `time_base`, later than the one before.

        Raises:
            InputError: It cannot be written.
        """
        import av  # noqa: PLC0415

        try:
            if self._stream is None:
                self._begin(*pixels.shape[:2])
            frame = av.VideoFrame.from_ndarray(even(pixels), format="rgb24")
            frame.pts, frame.time_base = place, self._time_base
            self._container.mux(self._stream.encode(frame))
        except (av.FFmpegError, OSError) as error:
            raise InputError(f"{self._file}: cannot be written: {reason(error)}") from error

    def _begin(self, height: int, width: int) -> None:
        import av  # noqa: PLC0415

        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(self._partial), "w", format="mp4")
        codec = next(name for name in CODECS if name in av.codecs_available)
        stream = self._container.add_stream(codec, rate=self._rate, options=CODECS[codec])
        stream.width, stream.height = width + width % 2, height + height % 2
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = self._time_base
        self._stream = stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what the encoder still holds, and give the file its name."""
        import av  # noqa: PLC0415

        if self._container is None:
            return
        try:
            self._container.mux(self._stream.encode(None))
            self._container.close()
            self._partial.replace(self._file)
        except (av.FFmpegError, OSError) as problem:
            with suppress(OSError):
                self._partial.unlink(missing_ok=True)
            raise InputError(f"{self._file}: cannot be written: {reason(problem)}") from problem


def even(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """With a row or column doubled where their number is odd, which the codecs do not take."""
    height, width = pixels.shape[:2]
    return np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
