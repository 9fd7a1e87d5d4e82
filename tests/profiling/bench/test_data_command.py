"""The whole command with its real processes, on small photos."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from data.__main__ import main
from tests.support.commands import RunHere

REPOSITORY = Path(__file__).resolve().parents[3]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "data", "bench", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        Image.radial_gradient("L").convert("RGB").save(folder / f"{number}.jpg")
    return folder


def test_everybody_is_timed_printed_and_written(photos: Path, tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    sizes = ("--image-size=64", "--rounds=2", "--limit=4", "--batch-size=3", "--workers=1")
    done = bench(f"--images={photos}", "--decoders=pillow", *sizes, f"--json={file}")
    assert done.returncode == 0, done.stderr
    assert "4 images of" in done.stdout and "64×64; 2 rounds" in done.stdout
    assert "pipeline-pillow against mlperf" in done.stdout
    assert "at least 2" not in done.stdout  # the target is for 800×800
    content = json.loads(file.read_text())
    assert list(content["decoders"]) == ["pillow"]
    variants = content["contestants"]
    names = ["decode-pillow", "resize-pillow", "pipeline-pillow", "mlperf", "loader-1"]
    assert list(variants) == names
    for variant in variants.values():
        for seconds, rate in zip(variant["runs_s"], variant["images_per_s_of_runs"], strict=True):
            assert rate == pytest.approx(4 / seconds)
        assert len(variant["runs_s"]) == 2
    assert variants["loader-1"]["details"]["images"] == 4
    stages = variants["mlperf"]["stages_ms"]
    whole = 1000 / variants["mlperf"]["images_per_s"]
    assert sum(stages.values()) == pytest.approx(whole, rel=0.5)
    assert content["findings"][0]["target"] == "at least 2"
    assert content["environment"]["cores"] == len(os.sched_getaffinity(0))


def test_a_damaged_photo_is_one_line(photos: Path) -> None:
    damaged = photos / "3.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-50])
    done = bench(f"--images={photos}", "--image-size=64", "--rounds=1")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"error: {damaged}: damaged image: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--images=docs/images", "--decoders=opencv"], "--decoders: unknown decoder 'opencv'"),
        (["--images=none"], "--images: none is not a folder"),
        (["data.root=x"], "data.root=x: changes a configuration; name one with --config"),
        (["--config=coco.yaml", "data.root=none"], "data.root: none is not a folder"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str, run_here: RunHere) -> None:
    done = run_here(main, "bench", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {words}") and done.stderr.count("\n") == 1


def test_a_file_that_exists_is_not_overwritten(
    photos: Path, tmp_path: Path, run_here: RunHere
) -> None:
    file = tmp_path / "numbers.json"
    file.write_text("kept")
    done = run_here(main, "bench", f"--images={photos}", f"--json={file}")
    assert done.returncode == 2 and str(file) in done.stderr
    assert file.read_text() == "kept"
