"""`python -m retinanet predict` on videos that a real encoder has written."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from retinanet.__main__ import main
from tests.support.commands import RunHere
from tests.support.random_detectors import write_detector

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_detector(tmp_path_factory.mktemp("run"))


def write_video(
    file: Path,
    *,
    frames: int = 9,
    codec: str = "mpeg4",
    rate: Fraction = Fraction(10),
    places: Sequence[int] | None = None,
    size: tuple[int, int] = (96, 64),
) -> Path:
    """Noise that changes with every frame; `places` in milliseconds, else by the rate."""
    random = np.random.default_rng(0)
    pixel_format = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    with av.open(str(file), "w", format="mjpeg" if file.suffix == ".mjpeg" else None) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        if places is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(frames):
            pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if places is not None:
                frame.pts, frame.time_base = places[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file


def read_video(file: Path) -> tuple[list[np.ndarray], list[float], Any]:
    """Frames, their times from the first on, and the stream."""
    with av.open(str(file)) as container:
        stream: Any = container.streams.video[0]
        decoded: list[Any] = list(container.decode(video=0))
        facts = (stream.average_rate, stream.codec_context.name, stream.codec_context.pix_fmt)
    times = [float(frame.pts * frame.time_base) for frame in decoded]
    frames = [frame.to_ndarray(format="rgb24") for frame in decoded]
    return frames, [one - times[0] for one in times], facts


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "mpeg4"),
        ("a.mp4", "libx264"),
        ("a.mkv", "libx264"),
        ("a.mov", "mjpeg"),
        ("a.avi", "mjpeg"),
        ("a.webm", "libvpx-vp9"),
        ("a.mjpeg", "mjpeg"),
    ],
)
def test_what_cameras_write_becomes_an_mp4_that_browsers_play(
    name: str, codec: str, checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    rate = Fraction(25) if name == "a.mjpeg" else Fraction(10)
    video = write_video(tmp_path / name, codec=codec, frames=5, rate=rate)
    out, boxes = tmp_path / "out", tmp_path / "boxes.json"
    words = ["--checkpoint", checkpoint, video, "--out", out, "--json", boxes, "--score", "0.1"]
    done = run_here(main, "predict", *words, "--batch-size", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{video} → {out / 'a.boxes.mp4'}: 5 frames looked at" in done.stdout
    frames, times, (average, codec_found, pixel_format) = read_video(out / "a.boxes.mp4")
    assert (codec_found, pixel_format) == ("h264", "yuv420p")
    assert len(frames) == 5 and average == rate
    assert times == pytest.approx([number / float(rate) for number in range(5)], abs=2e-3)
    assert frames[0].shape == (480, 720, 3)
    found = json.loads(boxes.read_text())
    assert {box["frame"] for box in found} == set(range(5))
    for box in found:
        assert box["seconds"] == pytest.approx(box["frame"] / float(rate), abs=2e-3)


def test_frames_keep_their_own_times(checkpoint: Path, tmp_path: Path, run_here: RunHere) -> None:
    places = [0, 40, 90, 500, 1000]
    video = write_video(tmp_path / "a.mkv", codec="libx264", frames=5, places=places)
    words = ["--checkpoint", checkpoint, video, "--out", tmp_path]
    assert run_here(main, "predict", *words).returncode == 0
    _, times, _ = read_video(tmp_path / "a.boxes.mp4")
    assert times == pytest.approx([place / 1000 for place in places], abs=2e-3)


def test_every_third_frame_is_looked_at_and_all_are_shown(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    video, boxes = write_video(tmp_path / "a.mp4", frames=8), tmp_path / "boxes.json"
    words = ["--checkpoint", checkpoint, video, "--every", "3", "--json", boxes, "--score", "0.1"]
    done = run_here(main, "predict", *words, "--out", tmp_path, "--batch-size", "2")
    assert done.returncode == 0 and "3 frames looked at" in done.stdout
    assert {box["frame"] for box in json.loads(boxes.read_text())} == {0, 3, 6}
    assert len(read_video(tmp_path / "a.boxes.mp4")[0]) == 8


def test_odd_sides_are_made_even(checkpoint: Path, tmp_path: Path, run_here: RunHere) -> None:
    video = write_video(tmp_path / "a.avi", codec="mjpeg", frames=2, size=(501, 485))
    assert run_here(main, "predict", "--checkpoint", checkpoint, video, "--out", tmp_path)
    assert read_video(tmp_path / "a.boxes.mp4")[0][0].shape == (486, 502, 3)


def test_a_damaged_video_keeps_what_was_before(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    video = write_video(tmp_path / "a.mkv", frames=30, size=(320, 240))
    content = video.read_bytes()
    video.write_bytes(content[: len(content) // 2])
    none = tmp_path / "none.mp4"
    none.write_bytes(b"no video at all")
    good = write_video(tmp_path / "good.mp4", frames=2)
    words = ["--checkpoint", checkpoint, video, none, good, "--out", tmp_path, "--every", "5"]
    done = run_here(main, "predict", *words)
    assert done.returncode == 2
    assert f"error: {none}: cannot be read as a video: " in done.stderr
    assert re.search(r"error: .*a\.mkv: ends after \d\.\d of 3\.0 seconds; it was", done.stderr)
    assert done.stderr.count("\n") == 2
    assert 5 < len(read_video(tmp_path / "a.boxes.mp4")[0]) < 30
    assert len(read_video(tmp_path / "good.boxes.mp4")[0]) == 2
    assert not (tmp_path / "none.boxes.mp4").exists()


def test_a_list_of_files_in_a_videos_place_opens_none_of_them(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    """FFmpeg reads such lists too, whatever they are called."""
    write_video(tmp_path / "b.ts", codec="libx264", frames=3)
    video = tmp_path / "a.mp4"
    video.write_text("ffconcat version 1.0\nfile b.ts\n")
    done = run_here(main, "predict", "--checkpoint", checkpoint, video, "--out", tmp_path / "out")
    assert done.returncode == 2 and f"error: {video}: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_no_camera_is_told_of(
    checkpoint: Path, tmp_path: Path, run_here: RunHere
) -> None:
    words = ["--checkpoint", checkpoint, "/dev/null", "--out", tmp_path / "out"]
    done = run_here(main, "predict", *words)
    assert done.returncode == 2
    assert "error: /dev/null: cannot be read as a camera: " in done.stderr


def test_where_pyav_is_not_installed_the_command_says_how_to_get_it(
    checkpoint: Path, tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = write_video(tmp_path / "a.mp4", frames=1)
    monkeypatch.setitem(sys.modules, "av", None)
    done = run_here(main, "predict", "--checkpoint", checkpoint, video)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "a.mp4: av not installed; run `make serving`" in done.stderr


def test_ctrl_c_keeps_a_video_that_plays(checkpoint: Path, tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.mp4", frames=900, size=(64, 48))
    boxes = tmp_path / "boxes.json"
    command = [sys.executable, "-m", "retinanet", "predict", "--checkpoint", checkpoint, video]
    options = ["--out", tmp_path, "--json", boxes, "--score", "0.1", "--batch-size", "1"]
    process = subprocess.Popen(
        [*map(str, command), *map(str, options)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    partial = tmp_path / ".a.boxes.partial.mp4"
    deadline = time.monotonic() + 90
    while not partial.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "SIGINT: ended before all was looked at" in output
    frames = read_video(tmp_path / "a.boxes.mp4")[0]
    assert 0 < len(frames) < 900
    told = json.loads(boxes.read_text())
    assert {box["frame"] for box in told} <= set(range(len(frames)))
    assert not partial.exists()
