"""`retinanet predict` on videos that a real encoder has written."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from retinanet.__main__ import main
from tests.support.commands import RunHere, start_program

pytestmark = pytest.mark.slow


def write_video(
    file: Path,
    *,
    frames: int = 9,
    codec: str = "mpeg4",
    rate: Fraction = Fraction(10),
    timestamps: Sequence[int] | None = None,
    size: tuple[int, int] = (96, 64),
) -> Path:
    """Noise that changes with every frame; `timestamps` in ms, by default from the rate."""
    random = np.random.default_rng(0)
    pixel_format = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    with av.open(str(file), "w", format="mjpeg" if file.suffix == ".mjpeg" else None) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        if timestamps is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(frames):
            pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if timestamps is not None:
                frame.pts, frame.time_base = timestamps[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


def read_video(file: Path) -> tuple[list[np.ndarray], list[float], Any]:
    """Return frames, their times after the first, and facts about the stream."""
    with av.open(str(file)) as container:
        stream: Any = container.streams.video[0]
        decoded: list[Any] = list(container.decode(video=0))
        facts = (stream.average_rate, stream.codec_context.name, stream.codec_context.pix_fmt)
    times = [float(frame.pts * frame.time_base) for frame in decoded]
    frames = [frame.to_ndarray(format="rgb24") for frame in decoded]
    return frames, [time - times[0] for time in times], facts


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mkv", "libx264"),
        ("a.mjpeg", "mjpeg"),
        pytest.param("a.mp4", "mpeg4", marks=pytest.mark.exhaustive),
        pytest.param("a.mp4", "libx264", marks=pytest.mark.exhaustive),
        pytest.param("a.mov", "mjpeg", marks=pytest.mark.exhaustive),
        pytest.param("a.avi", "mjpeg", marks=pytest.mark.exhaustive),
        pytest.param("a.webm", "libvpx-vp9", marks=pytest.mark.exhaustive),
    ],
)
def test_any_video_becomes_an_mp4_for_browsers(
    name: str, codec: str, detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    rate = Fraction(25) if name == "a.mjpeg" else Fraction(10)
    video = write_video(tmp_path / name, codec=codec, frames=5, rate=rate)
    out, boxes = tmp_path / "out", tmp_path / "boxes.json"
    arguments = ["--checkpoint", detector, video, "--out", out, "--json", boxes, "--score", "0.1"]
    done = run_here(main, "predict", *arguments, "--batch-size", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{video} → {out / 'a.boxes.mp4'}: 5 frames processed" in done.stdout
    # The length of raw MJPEG is unknown.
    shown = re.findall(rf"^{re.escape(str(video))}, frames \d+(/5)?", done.stdout, re.MULTILINE)
    assert shown and set(shown) == {"" if name == "a.mjpeg" else "/5"}
    frames, times, (average, written_codec, pixel_format) = read_video(out / "a.boxes.mp4")
    assert (written_codec, pixel_format) == ("h264", "yuv420p")
    assert len(frames) == 5 and average == rate
    assert times == pytest.approx([number / float(rate) for number in range(5)], abs=2e-3)
    assert frames[0].shape == (480, 720, 3)
    content = json.loads(boxes.read_text())
    assert {box["frame"] for box in content} == set(range(5))
    for box in content:
        assert box["seconds"] == pytest.approx(box["frame"] / float(rate), abs=2e-3)


def test_frames_keep_their_times(detector: Path, tmp_path: Path, run_here: RunHere) -> None:
    timestamps = [0, 40, 90, 500, 1000]
    video = write_video(tmp_path / "a.mkv", codec="libx264", frames=5, timestamps=timestamps)
    arguments = ["--checkpoint", detector, video, "--out", tmp_path]
    assert run_here(main, "predict", *arguments).returncode == 0
    _, times, _ = read_video(tmp_path / "a.boxes.mp4")
    assert times == pytest.approx([timestamp / 1000 for timestamp in timestamps], abs=2e-3)


def test_every_third_frame_is_processed_and_all_are_shown(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    video, boxes = write_video(tmp_path / "a.mp4", frames=8), tmp_path / "boxes.json"
    arguments = ["--checkpoint", detector, video, "--every", "3", "--json", boxes]
    arguments += ["--score", "0.1", "--out", tmp_path, "--batch-size", "2"]
    done = run_here(main, "predict", *arguments)
    assert done.returncode == 0 and "3 frames processed" in done.stdout
    assert {box["frame"] for box in json.loads(boxes.read_text())} == {0, 3, 6}
    assert len(read_video(tmp_path / "a.boxes.mp4")[0]) == 8


def test_odd_sides_are_padded(detector: Path, tmp_path: Path, run_here: RunHere) -> None:
    video = write_video(tmp_path / "a.avi", codec="mjpeg", frames=2, size=(501, 485))
    done = run_here(main, "predict", "--checkpoint", detector, video, "--out", tmp_path)
    assert done.returncode == 0
    assert read_video(tmp_path / "a.boxes.mp4")[0][0].shape == (486, 502, 3)


def test_damaged_video_keeps_the_frames_before(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    video = write_video(tmp_path / "a.mkv", frames=30, size=(320, 240))
    content = video.read_bytes()
    video.write_bytes(content[: len(content) // 2])
    invalid = tmp_path / "none.mp4"
    invalid.write_bytes(b"no video at all")
    good = write_video(tmp_path / "good.mp4", frames=2)
    options = ["--out", tmp_path, "--every", "5"]
    done = run_here(main, "predict", "--checkpoint", detector, video, invalid, good, *options)
    assert done.returncode == 2
    assert f"error: {invalid}: cannot be read as a video: " in done.stderr
    assert re.search(r"error: .*a\.mkv: truncated: ends after \d\.\d of 3\.0 seconds", done.stderr)
    assert done.stderr.count("\n") == 2
    assert 5 < len(read_video(tmp_path / "a.boxes.mp4")[0]) < 30
    assert len(read_video(tmp_path / "good.boxes.mp4")[0]) == 2
    assert not (tmp_path / "none.boxes.mp4").exists()


def test_playlist_does_not_open_its_files(
    detector: Path, tmp_path: Path, run_here: RunHere
) -> None:
    """FFmpeg detects playlists by their content, not by their name."""
    write_video(tmp_path / "b.ts", codec="libx264", frames=3)
    video = tmp_path / "a.mp4"
    video.write_text("ffconcat version 1.0\nfile b.ts\n")
    done = run_here(main, "predict", "--checkpoint", detector, video, "--out", tmp_path / "out")
    assert done.returncode == 2 and f"error: {video}: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_missing_pyav_is_an_error(
    detector: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_video(tmp_path / "a.mp4", frames=1)
    monkeypatch.setitem(sys.modules, "av", None)
    done = run_here(main, "predict", "--checkpoint", detector, video)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "a.mp4: av not installed; run `make serving`" in done.stderr


@pytest.mark.exhaustive
def test_ctrl_c_leaves_a_playable_video(detector: Path, tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.mp4", frames=900, size=(64, 48))
    boxes = tmp_path / "boxes.json"
    command = [sys.executable, "-m", "retinanet", "predict", "--checkpoint", detector, video]
    options = ["--out", tmp_path, "--json", boxes, "--score", "0.1", "--batch-size", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = start_program(*map(str, command), *map(str, options), env=environment)
    deadline = time.monotonic() + 90
    while not list(tmp_path.glob(".a.boxes.mp4.*.partial")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "SIGINT: stopped before the end" in output
    frames = read_video(tmp_path / "a.boxes.mp4")[0]
    assert 0 < len(frames) < 900
    content = json.loads(boxes.read_text())
    assert {box["frame"] for box in content} <= set(range(len(frames)))
    assert not list(tmp_path.glob(".*"))


def test_frames_are_cut_into_tiles(detector: Path, tmp_path: Path, run_here: RunHere) -> None:
    video, found = write_video(tmp_path / "a.mp4", frames=5), {}
    for name, more in (("plain", ()), ("tiles", ("--tiles", "48"))):
        boxes = tmp_path / f"{name}.json"
        words = ("--checkpoint", detector, video, "--no-pictures", "--json", boxes)
        done = run_here(main, "predict", *words, "--every", "2", "--score", "0.1", *more)
        assert (done.returncode, done.stderr) == (0, "") and "3 frames processed" in done.stdout
        found[name] = [box["frame"] for box in json.loads(boxes.read_text())]
    assert set(found["plain"]) == set(found["tiles"]) == {0, 2, 4}
    assert len(found["tiles"]) > len(found["plain"])
