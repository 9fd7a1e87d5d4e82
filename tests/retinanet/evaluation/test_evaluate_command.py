"""`python -m retinanet evaluate`."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retinanet.__main__ import main
from tests.support.commands import RunHere
from tests.support.random_detectors import NAMES


@pytest.fixture
def data(tmp_path: Path) -> list[str | Path]:
    """Options for three images with one box each."""
    folder = tmp_path / "photos"
    folder.mkdir()
    images, boxes = [], []
    for number in (1, 2, 3):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 90, "height": 60})
        boxes.append({"id": number, "image_id": number, "category_id": 7, "bbox": [9, 9, 50, 40]})
    categories = [
        {"id": category_id, "name": name}
        for category_id, name in zip((7, 8, 44), NAMES, strict=True)
    ]
    content = {"images": images, "annotations": boxes, "categories": categories}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return ["--annotations", tmp_path / "boxes.json", "--images", folder]


@pytest.mark.slow
def test_evaluation_writes_files_and_replaces_none_without_overwrite(
    detector: Path, data: list[str | Path], tmp_path: Path, run_here: RunHere
) -> None:
    out, numbers = tmp_path / "out", tmp_path / "map.json"
    arguments = ["--checkpoint", detector, *data, "--out", out, "--json", numbers]
    done = run_here(main, "evaluate", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "evaluation, images 3/3" in done.stdout and f"{out}/step-000007.*" in done.stdout
    endings = ("classes.csv", "json", "pictures.png", "png")
    assert sorted(file.name for file in out.iterdir()) == [f"step-000007.{end}" for end in endings]
    with Image.open(out / "step-000007.pictures.png") as image:
        assert image.size == (1600, 860) and np.asarray(image).std() > 10
    assert set(json.loads(numbers.read_text())["per_class"]) == {"one"}

    for options, option in ((arguments, "--json"), (arguments[:-2], "--out")):
        again = run_here(main, "evaluate", *options)
        assert again.returncode == 2 and "exists" in again.stderr and option in again.stderr
    (out / "step-000007.pictures.png").unlink()
    numbers.write_text("")
    assert run_here(main, "evaluate", *arguments, "--overwrite", "--pictures", "0").returncode == 0
    assert set(json.loads(numbers.read_text())["per_class"]) == {"one"}
    assert not list(out.glob("*.pictures.png"))


def test_exported_file_is_not_a_checkpoint(tmp_path: Path, run_here: RunHere) -> None:
    (tmp_path / "model.pt2").touch()
    done = run_here(main, "evaluate", "--checkpoint", tmp_path / "model.pt2")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "exported model" in done.stderr and "--checkpoint" in done.stderr


@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
def test_help_has_examples(command: str, run_here: RunHere) -> None:
    done = run_here(main, command, "--help")
    assert done.returncode == 0
    assert f"examples:\n  python -m retinanet {command} --checkpoint runs/demo" in done.stdout
