"""The data of a run, as far as its configuration decides."""

import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from common.errors import InputError
from data.dataset import DetectionData, SampleKey
from retinanet.config_file import load_config
from retinanet.training.data import open_run_data


def opened(folder: Path, *overrides: str) -> DetectionData:
    few = ("data.scenes.train=2", "data.scenes.validation=1", "data.image_size=64")
    config = load_config("demo.yaml", [*few, *overrides])
    return open_run_data(config, scenes_folder=folder, console=Console(quiet=True))


def test_both_splits_are_read_by_the_chosen_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default, chosen = opened(tmp_path / "a"), opened(tmp_path / "a", "data.decoder=torchvision")
    assert default.train.decoder == default.validation.decoder == "simplejpeg"
    assert chosen.train.decoder == chosen.validation.decoder == "torchvision"
    key = SampleKey(0, seed=0)
    assert torch.equal(default.train[key].image, chosen.train[key].image)
    # Without it a JPEG falls to Pillow's function, which is taken away here.
    monkeypatch.delattr("data.decoding.to_rgb")
    assert default.train[key].image.shape == chosen.train[key].image.shape == (3, 64, 64)


def test_a_missing_decoder_is_refused_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "accimage", None)
    with pytest.raises(InputError, match="accimage is not installed"):
        opened(tmp_path / "scenes", "data.decoder=accimage")
    assert not list(tmp_path.iterdir())
