"""`retinanet evaluate`."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retinanet.__main__ import main
from retinanet.detector import Detector
from retinanet.evaluation.matching import xywh
from retinanet.training.convert import convert_detector
from tests.support.commands import RunHere, error_line
from tests.support.fast_precision import FAST_PRECISION
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
    content = json.loads(numbers.read_text())
    assert set(content["per_class"]) == {"one"} and content["precision"] == FAST_PRECISION
    assert f"step 7, 3 images, {FAST_PRECISION}\n" in done.stdout

    for options, option in ((arguments, "--json"), (arguments[:-2], "--out")):
        again = run_here(main, "evaluate", *options)
        assert again.returncode == 2 and "exists" in again.stderr and option in again.stderr
    (out / "step-000007.pictures.png").unlink()
    numbers.write_text("")
    assert run_here(main, "evaluate", *arguments, "--overwrite", "--pictures", "0").returncode == 0
    assert set(json.loads(numbers.read_text())["per_class"]) == {"one"}
    assert not list(out.glob("*.pictures.png"))


def converted(detector: Path, names: Sequence[str], folder: Path) -> Path:
    """Return the detector's weights as `convert --detector` writes them, with a list of names."""
    (folder / "names.txt").write_text("\n".join(names))
    convert_detector(
        detector=detector / "model.safetensors", classes=folder / "names.txt",
        out=folder / "converted", image_size=64, trust=False, overwrite=False,
    )  # fmt: skip
    return folder / "converted"


@pytest.mark.slow
def test_detector_with_a_list_of_names_is_evaluated_by_them(
    detector: Path, data: list[str | Path], tmp_path: Path, run_here: RunHere
) -> None:
    """The list has the ids 0 to 2 for its names, the annotations 7, 8 and 44."""
    maps = []
    for checkpoint in (detector, converted(detector, NAMES, tmp_path)):
        numbers = tmp_path / f"{checkpoint.name}.json"
        options = ["--checkpoint", checkpoint, *data, "--json", numbers]
        done = run_here(main, "evaluate", *options, "--out", tmp_path / checkpoint.name / "eval")
        assert (done.returncode, done.stderr) == (0, "")
        maps.append(json.loads(numbers.read_text()))
    assert maps[0] == maps[1]
    [file] = (tmp_path / "converted" / "eval").glob("step-*[0-9].json")
    assert {box["category_id"] for box in json.loads(file.read_text())} <= {7, 8, 44}


def test_detector_with_other_names_is_refused_with_a_way_out(
    detector: Path, data: list[str | Path], tmp_path: Path, run_here: RunHere
) -> None:
    checkpoint = converted(detector, ["one", "two", "drei"], tmp_path)
    line = error_line(run_here(main, "evaluate", "--checkpoint", checkpoint, *data))
    assert "id 7 is 'one' here and unknown in the training set" in line
    assert line.endswith(f"or convert the detector again with --classes {data[1]}")
    line = error_line(run_here(main, "evaluate", "--checkpoint", checkpoint))
    assert line.endswith("has no validation images; give --annotations and --images")


@pytest.mark.parametrize("command", [["report"], ["evaluate", "--checkpoint"]])
def test_missing_images_are_named_by_the_options_that_give_them(
    command: list[str], detector: Path, data: list[str | Path], run_here: RunHere
) -> None:
    line = error_line(run_here(main, *command, detector))
    assert (
        f"data.root: {detector.parents[1]}/scenes is not a folder; give --annotations and --images"
        in line
    )
    _, annotations, _, images = data
    for options, problem in (
        (("none.json", images), "--annotations: none.json does not exist"),
        ((annotations, "none"), "--images: none does not exist"),
    ):
        paths = ("--annotations", options[0], "--images", options[1])
        assert f"error: {problem}" in error_line(run_here(main, *command, detector, *paths))


@pytest.mark.slow
def test_tiles_measure_what_predict_finds_in_tiles(
    detector: Path, data: list[str | Path], tmp_path: Path, run_here: RunHere
) -> None:
    """The second image's file is half as large as annotated: its boxes are scaled."""
    with Image.open(tmp_path / "photos" / "2.png") as image:
        image.resize((45, 30)).save(tmp_path / "photos" / "2.png")
    numbers = tmp_path / "map.json"
    words = ["--checkpoint", detector, "--tiles", "40", "--precision", "float32"]
    words += ["--json", numbers]
    done = run_here(main, "evaluate", *words, *data, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 7, 3 images, float32, tiles of 40 pixels that share 0.2\n" in done.stdout
    assert json.loads(numbers.read_text())["tiles"] == {"side": 40, "overlap": 0.2}
    measured = json.loads((tmp_path / "out" / "step-000007.json").read_text())
    files = [tmp_path / "photos" / f"{number}.png" for number in (1, 2, 3)]
    found = Detector.load(detector, precision="float32").predict(files, min_score=0.05, tiles=40)
    scales = {1: 1, 2: 2, 3: 1}
    for number, result in enumerate(found, 1):
        boxes = [box["bbox"] for box in measured if box["image_id"] == number]
        assert len(boxes) == len(result) > 20
        expected = xywh(result.boxes) * scales[number]
        np.testing.assert_allclose(boxes, expected, atol=0.01)
