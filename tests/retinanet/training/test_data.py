import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from common.errors import InputError
from data.dataset import DetectionData, SampleKey
from retinanet.config_file import load_config
from retinanet.config_types import loading_processes
from retinanet.training.data import (
    FIRST_STEPS,
    STEPS_MEASURED,
    BadImages,
    LoadingWatch,
    open_run_data,
)
from tests.support.step_results import step_result


def open_small(folder: Path, *overrides: str) -> DetectionData:
    small = ("data.scenes.train=2", "data.scenes.validation=1", "data.image_size=64")
    config = load_config("demo.yaml", [*small, *overrides])
    return open_run_data(config, scenes_folder=folder, console=Console(quiet=True))


def test_both_splits_use_the_configured_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = open_small(tmp_path / "a")
    other = open_small(tmp_path / "a", "data.decoder=torchvision")
    assert default.train.rules.decoder == default.validation.rules.decoder == "simplejpeg"
    assert other.train.rules.decoder == other.validation.rules.decoder == "torchvision"
    key = SampleKey(0, seed=0)
    assert torch.equal(default.train[key].image, other.train[key].image)
    monkeypatch.delattr("data.decoding.to_rgb")  # Pillow's function, the fallback
    assert default.train[key].image.shape == other.train[key].image.shape == (3, 64, 64)


def test_missing_decoder_is_refused_before_images_are_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(InputError, match="simplejpeg is not installed"):
        open_small(tmp_path / "scenes", "data.decoder=simplejpeg")
    assert not list(tmp_path.iterdir())


def test_generated_images_lock_and_replace_nothing_through_links(tmp_path: Path) -> None:
    mine = tmp_path / "thesis.txt"
    mine.write_text("mine")
    (tmp_path / ".scenes.lock").symlink_to(mine)
    with pytest.raises(InputError, match=r"\.scenes\.lock: it is a link"):
        open_small(tmp_path / "scenes")
    (tmp_path / ".scenes.lock").unlink()
    (tmp_path / "docs").mkdir()
    (tmp_path / "scenes").symlink_to("docs")
    with pytest.raises(InputError, match="is a link, or holds files"):
        open_small(tmp_path / "scenes")
    (tmp_path / "scenes").unlink()
    (tmp_path / "docs").rename(tmp_path / "scenes")
    mine = mine.rename(tmp_path / "scenes" / "thesis.txt")
    with pytest.raises(InputError, match="holds files that are not of generated scenes"):
        open_small(tmp_path / "scenes")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("share", "first_share", "is_open", "parts"),
    [
        (0.03, 0.0, True, ["3.0%"]),
        (0.009, 0.0, True, None),
        (0.001, 0.9, True, None),
        (0.7, 0.0, True, ["70.0%", "data.workers=3"]),
        (0.5, 0.0, False, None),
    ],
    ids=["noticeable", "little", "slow first steps", "several processes", "configured"],
)
def test_loading_moves_out_once_if_it_takes_a_noticeable_share(
    share: float, first_share: float, is_open: bool, parts: list[str] | None
) -> None:
    watch = LoadingWatch(is_open)
    shares = [first_share] * FIRST_STEPS + [share] * 3 * STEPS_MEASURED
    results = [step_result(seconds=2.0, data_seconds=2.0 * part) for part in shares]
    notes = [note for result in results if (note := watch.step(result))]
    assert len(notes) == (parts is not None)
    assert all(part in notes[0] for part in parts or ())


def test_number_of_loading_processes() -> None:
    assert loading_processes("auto", reserved_cores=0) == 1
    assert loading_processes("auto", reserved_cores=3) == 3
    assert loading_processes(0, reserved_cores=3) == 0


def test_each_bad_image_counts_once_and_too_many_end_the_run() -> None:
    images = BadImages(limit=2)
    assert images.note(("a: damaged", "a: damaged")) == ["a: damaged"]
    assert images.note(("a: damaged",)) == []
    assert images.note(("b: missing",)) == ["b: missing"]
    with pytest.raises(InputError, match=r"c: missing; .*data\.bad_image_limit=2"):
        images.note(("b: missing", "c: missing"))
    assert images.note(()) == images.note(("c: missing",)) == []  # already reported
