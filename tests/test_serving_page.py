"""The programs in docs/serving.md run exported models by ONNX Runtime and by torchvision."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retinanet.__main__ import main
from tests.support.commands import RunHere, run_program
from tests.support.random_detectors import NAMES, write_detector

PAGE = Path(__file__).resolve().parents[1] / "docs" / "serving.md"
LINE = re.compile(r"(\w+) ([\d.]+) \[(.*)\]")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        ("onnxruntime", ("--out", "demo.onnx")),
        ("torchvision", ("--out", "demo.pth", "--format", "torchvision")),
    ],
)
def test_program_of_the_page_finds_the_boxes_of_predict(
    runtime: str, options: tuple[str, ...], tmp_path: Path, run_here: RunHere
) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    [program] = [text for text in programs if f"{runtime}" in text]
    checkpoint = write_detector(tmp_path / "run", score=-0.5)
    photo, boxes = tmp_path / "photo.jpg", tmp_path / "boxes.json"
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((200, 150), Image.Resampling.BICUBIC).save(photo)
    words = ["--checkpoint", checkpoint]
    flag, name, *more = options
    exported = run_here(main, "export", *words, flag, tmp_path / name, *more)
    assert exported.returncode == 0, exported.stderr
    in_float32 = ("--precision", "float32", "--no-pictures", "--json", boxes)
    predicted = run_here(main, "predict", *words, photo, *in_float32)
    assert predicted.returncode == 0, predicted.stderr
    user = run_program(sys.executable, "-c", program, cwd=tmp_path)
    assert user.returncode == 0, user.stderr
    shown = [LINE.fullmatch(line) for line in user.stdout.splitlines()]
    printed = [(item[1], [float(edge) for edge in item[3].split()]) for item in shown if item]
    wanted = json.loads(boxes.read_text())
    assert len(printed) == len(shown) and len(wanted) > 10
    assert {name for name, _ in printed} <= set(NAMES)
    near = sum(any(is_near(box, *other) for other in printed) for box in wanted)
    # Pillow rounds a level otherwise here and there: near 0.4 a box may come or go.
    assert near >= 0.9 * len(wanted) and abs(len(printed) - len(wanted)) <= 0.1 * len(wanted)


def is_near(box: dict[str, Any], name: str, edges: list[float]) -> bool:
    """Return whether the page's program has printed this box."""
    x, y, width, height = box["bbox"]
    difference = np.abs(np.array([x, y, x + width, y + height]) - edges)
    return box["category"] == name and difference.max() < 2
