"""`retinanet data show`: the sheet has the samples of a run, and wrong options are one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from data.__main__ import main
from data.loader import TrainingBatches
from data.synthetic import make_synthetic_data
from retinanet.config_file import load_config
from retinanet.input_sheet import choose_images, key_in_epoch, open_datasets, training_files
from tests.support.commands import RunHere, error_line

SMALL = ("data.image_size=64", "data.scenes.train=6", "data.scenes.validation=1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a folder of images and their annotations."""
    root = tmp_path_factory.mktemp("photos") / "scenes"
    make_synthetic_data(root, seed=3, train=6, validation=1)
    return root / "train" / "data", root / "train" / "labels" / "openimages-mlperf.json"


@pytest.mark.slow
def test_sheet_of_own_files_is_a_picture_and_is_not_replaced(
    photos: tuple[Path, Path], tmp_path: Path, run_here: RunHere
) -> None:
    out = tmp_path / "new" / "sheet.png"
    images, annotations = photos
    arguments = ["show", "--images", images, "--annotations", annotations, "--out", out]
    arguments += ["--count", "2", "--epochs", "1", "data.image_size=64", "data.augmentation=strong"]
    done = run_here(main, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    settings, last = done.stdout.splitlines()[-2:]
    assert settings == (
        "data.image_size=64 data.resize=square data.augmentation=strong run.seed=0, "
        "6 training images"
    )
    assert last == f"→ {out}"
    with Image.open(out) as picture:
        # Two rows of three pictures, and not an empty page
        assert picture.width == 1200 and 800 < picture.height < 1100
        assert np.asarray(picture).std() > 30
    before = out.read_bytes()
    again = run_here(main, *arguments)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert out.read_bytes() == before
    assert run_here(main, *arguments, "--overwrite", "--seed", "9").returncode == 0
    assert out.read_bytes() != before


@pytest.mark.slow
def test_sheet_of_a_configuration_with_synthetic_data(tmp_path: Path, run_here: RunHere) -> None:
    out = tmp_path / "sheet.png"
    arguments = ["--config", "demo.yaml", *SMALL, f"run.root={tmp_path / 'runs'}", "--out", out]
    done = run_here(main, "show", *arguments, "--count", "1", "--epochs", "1")
    assert (done.returncode, done.stderr) == (0, "") and out.exists()
    # Nothing else is written: the synthetic images were temporary.
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


@pytest.mark.parametrize("repeat_rare", [None, 1.0])
def test_keys_are_those_of_a_run(repeat_rare: float | None) -> None:
    changes = ["data.augmentation=[ssd, strong]", f"data.repeat_rare={repeat_rare or 'null'}"]
    settings = load_config("demo.yaml", [*SMALL, *changes])
    console = Console(quiet=True)
    with training_files(settings, seed=4, console=console) as split:
        train, plain = open_datasets(settings, split, console=console)
        assert len(train) == len(plain) and train.rows.tolist() == plain.rows.tolist()
        assert isinstance(train.images, int) == (repeat_rare is None)
        batches = TrainingBatches(train.images, batch_size=2, seed=4)
        for epoch in (0, 2):
            batches.set_position(epoch)
            keys = [key for batch in batches for key in batch]
            # Of a repeated image, the first one.
            for index, key in {key.index: key for key in reversed(keys)}.items():
                assert key_in_epoch(train.images, index, epoch=epoch, seed=4) == key
    assert not split.images.exists()


def test_images_are_chosen_by_the_seed() -> None:
    assert choose_images(5, count=9, seed=0) == [0, 1, 2, 3, 4]
    chosen = [choose_images(1000, count=4, seed=seed) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2] and chosen[0] == sorted(set(chosen[0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config: is missing; give --config NAME, or --images DIR and --annotations FILE"),
        (["--images", "a"], "--annotations: give --images and --annotations together"),
        (["--annotations", "a"], "--images: give --images and --annotations together"),
        (
            ["--images", "a", "--annotations", "b", "--config", "demo.yaml"],
            "--config: not allowed with --images",
        ),
        (["--config", "none.yaml"], "none.yaml: no such configuration file"),
        (["--config", "demo.yaml", "data.augmentation=mirror"], "data.augmentation: input should"),
        (["--config", "demo.yaml", "--out", "a.jpg"], "--out: a.jpg: expected the name of a .png"),
        (["--config", "demo.yaml", "--count", "99"], "--count: 99 images in 4 epochs: at most 400"),
        (["--config", "demo.yaml", "--count", "0"], "--count"),
        (["--images", "none", "--annotations", "no.json"], "no.json"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], message: str, run_here: RunHere, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_here(main, "show", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_no_image_of_the_data_set_is_replaced(photos: tuple[Path, Path], run_here: RunHere) -> None:
    images, annotations = photos
    photo = sorted(images.iterdir())[-1]
    out = photo.with_suffix(".png")
    out.hardlink_to(photo)
    arguments = ["--images", images, "--annotations", annotations, "--out", out, "--overwrite"]
    done = run_here(main, "show", *arguments, "--count", "1", "--epochs", "1")
    assert error_line(done).startswith(f"error: {out}: would replace {photo}, which this command")
    assert out.samefile(photo)
