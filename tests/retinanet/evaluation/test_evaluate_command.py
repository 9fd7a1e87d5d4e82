"""`python -m retinanet evaluate`."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retinanet.__main__ import main
from tests.support.commands import RunHere
from tests.support.random_detectors import NAMES, write_detector


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_detector(tmp_path_factory.mktemp("run"))


@pytest.fixture
def data(tmp_path: Path) -> list[str | Path]:
    """Three pictures with a box each, as options."""
    folder = tmp_path / "photos"
    folder.mkdir()
    images, boxes = [], []
    for number in (1, 2, 3):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 90, "height": 60})
        boxes.append({"id": number, "image_id": number, "category_id": 7, "bbox": [9, 9, 50, 40]})
    categories = [{"id": one, "name": name} for one, name in zip((7, 8, 44), NAMES, strict=True)]
    content = {"images": images, "annotations": boxes, "categories": categories}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return ["--annotations", tmp_path / "boxes.json", "--images", folder]


def test_all_that_an_evaluation_leaves_is_there_and_stays(
    checkpoint: Path, data: list[str | Path], tmp_path: Path, run_here: RunHere
) -> None:
    out, numbers = tmp_path / "out", tmp_path / "map.json"
    words = ["--checkpoint", checkpoint, *data, "--out", out, "--json", numbers]
    done = run_here(main, "evaluate", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "evaluation, images 3/3" in done.stdout
    assert f"boxes, classes, chart and pictures: {out}/step-000007.*" in done.stdout
    endings = ("classes.csv", "json", "pictures.png", "png")
    assert sorted(one.name for one in out.iterdir()) == [f"step-000007.{one}" for one in endings]
    with Image.open(out / "step-000007.pictures.png") as image:
        assert image.size == (1600, 860) and np.asarray(image).std() > 10
    written = json.loads(numbers.read_text())
    assert set(written["per_class"]) == {"one"}

    again = run_here(main, "evaluate", *words)
    assert again.returncode == 2 and "exists; give --json another file" in again.stderr
    again = run_here(main, "evaluate", *words[:-2])
    assert again.returncode == 2 and "exists; give --overwrite or another --out" in again.stderr
    assert run_here(main, "evaluate", *words, "--overwrite").returncode == 0
    assert json.loads(numbers.read_text()) == written


def test_no_pictures_are_made_where_none_are_wanted(
    checkpoint: Path, data: list[str | Path], tmp_path: Path, run_here: RunHere
) -> None:
    words = ["--checkpoint", checkpoint, *data, "--out", tmp_path / "out", "--pictures", "0"]
    done = run_here(main, "evaluate", *words)
    assert done.returncode == 0 and "boxes, classes, chart: " in done.stdout
    assert not list((tmp_path / "out").glob("*.pictures.png"))


def test_an_exported_file_is_no_checkpoint(tmp_path: Path, run_here: RunHere) -> None:
    (tmp_path / "model.pt2").touch()
    done = run_here(main, "evaluate", "--checkpoint", tmp_path / "model.pt2")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "is an exported model" in done.stderr
    assert "give --checkpoint what it was made of" in done.stderr


@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
def test_help_teaches_by_examples(command: str, run_here: RunHere) -> None:
    done = run_here(main, command, "--help")
    assert done.returncode == 0
    assert f"examples:\n  python -m retinanet {command} --checkpoint runs/demo" in done.stdout
