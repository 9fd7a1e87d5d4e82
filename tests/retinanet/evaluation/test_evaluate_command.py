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
from tests.retinanet.report.samples import split, write_split
from tests.support.commands import RunHere, error_line
from tests.support.fast_precision import FAST_PRECISION
from tests.support.random_detectors import NAMES


@pytest.fixture
def data(tmp_path: Path) -> list[str | Path]:
    """Options for three images with one box each."""
    photos, box = tmp_path / "photos", (9, 9, 59, 49)
    write_split(photos, split(*[[(7, box)]] * 3, names=NAMES, ids=(7, 8, 44)))
    annotations = photos / "labels" / "openimages-mlperf.json"
    return ["--annotations", annotations, "--images", photos / "data"]


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


def test_folder_that_cannot_be_written_is_refused_before_the_evaluation(
    detector: Path, data: list[str | Path], tmp_path: Path, run_here: RunHere
) -> None:
    (tmp_path / "out").touch()
    done = run_here(main, "evaluate", "--checkpoint", detector, *data, "--out", tmp_path / "out")
    assert error_line(done).startswith(f"error: {tmp_path}/out/step-000007.json: cannot be written")
    assert done.stdout == ""


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
    files = [tmp_path / "photos" / "data" / f"{number}.png" for number in range(3)]
    with Image.open(files[1]) as image:
        image.resize((100, 50)).save(files[1])
    numbers = tmp_path / "map.json"
    words = ["--checkpoint", detector, "--tiles", "80", "--precision", "float32"]
    words += ["--json", numbers]
    done = run_here(main, "evaluate", *words, *data, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 7, 3 images, float32, tiles of 80 pixels that share 0.2\n" in done.stdout
    assert json.loads(numbers.read_text())["tiles"] == {"side": 80, "overlap": 0.2}
    measured = json.loads((tmp_path / "out" / "step-000007.json").read_text())
    found = Detector.load(detector, precision="float32").predict(files, min_score=0.05, tiles=80)
    scales = {10: 1, 11: 2, 12: 1}
    for number, result in enumerate(found, 10):
        boxes = [box["bbox"] for box in measured if box["image_id"] == number]
        assert len(boxes) == len(result) > 20
        expected = xywh(result.boxes) * scales[number]
        np.testing.assert_allclose(boxes, expected, atol=0.01)
