from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from retinanet.config import config_to_tree
from retinanet.config_file import load_config
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.resume import differences, recorded_split, require_same_settings
from tests.support.states import STATE

OVERRIDES = ("training.batch_size=2", "distributed.batch_split=speed")


def make_checkpoint(*changes: str, split: object = None, ranks: int = 2) -> Checkpoint:
    """Return the checkpoint of a run; `split`: the split in its set-up, None: not in it."""
    split_setup: dict[str, Any] = {} if split is None else {"split of batches": split}
    state = replace(
        STATE,
        setup={"ranks": ranks, **split_setup},
        config=config_to_tree(load_config("demo.yaml", [*OVERRIDES, *changes])),
    )
    return Checkpoint(Path("none"), state)


def recorded(checkpoint: Checkpoint | None, *changes: str, ranks: int = 2) -> tuple[int, ...]:
    return recorded_split(checkpoint, load_config("demo.yaml", [*OVERRIDES, *changes]), ranks=ranks)


@pytest.mark.parametrize(("value", "split"), [([3, 1], (3, 1)), ("even", (2, 2))])
def test_split_by_speed_is_restored(value: object, split: tuple[int, ...]) -> None:
    assert recorded(make_checkpoint(split=value)) == split


def test_split_is_measured_again_for_other_splits_ranks_or_batches() -> None:
    assert recorded(None) == ()
    for split in ("[3, 1]", "even"):
        value = [3, 1] if split != "even" else split
        assert recorded(make_checkpoint(f"distributed.batch_split={split}", split=value)) == ()
    assert recorded(make_checkpoint(split=[3, 1]), ranks=3) == ()
    assert recorded(make_checkpoint(split=[2, 1, 3], ranks=3)) == ()
    assert recorded(make_checkpoint(split=[3, 1]), "training.batch_size=4") == ()
    assert recorded(make_checkpoint(split="even"), "training.batch_size=4") == ()


@pytest.mark.parametrize("value", [[4, 0], [3, 2], [3.0, 1.0], [3], "3, 1", 7, None])
def test_invalid_split_is_not_restored(value: object) -> None:
    assert recorded(make_checkpoint(split=value)) == ()


def test_older_checkpoint_without_a_split_was_even() -> None:
    state, config = make_checkpoint().state, load_config("demo.yaml", OVERRIDES)
    assert differences(state, config, {"ranks": 2, "split of batches": "even"}) == []
    assert differences(state, config, {"ranks": 2, "split of batches": [3, 1]}) == [
        "split of batches was even, is now [3, 1]"
    ]


def test_measured_and_configured_split_are_the_same_setup() -> None:
    state = make_checkpoint(split=[3, 1]).state
    config = load_config("demo.yaml", [*OVERRIDES, "distributed.batch_split=[3, 1]"])
    assert differences(state, config, {"ranks": 2, "split of batches": [3, 1]}) == []
    assert differences(replace(state, setup={}), config, {"split of batches": "even"}) == []


def test_fields_that_an_older_checkpoint_lacks_had_their_defaults() -> None:
    checkpoint = make_checkpoint()
    for field in ("resize", "augmentation"):
        del checkpoint.state.config["data"][field]
    for field in ("backbone", "variant"):
        del checkpoint.state.config["model"][field]
    config = load_config("demo.yaml", OVERRIDES)
    require_same_settings(checkpoint, config)
    assert differences(checkpoint.state, config, {}) == []
    letterbox = load_config("demo.yaml", [*OVERRIDES, "data.resize=letterbox"])
    with pytest.raises(InputError, match=r"data\.resize was square, is now letterbox"):
        require_same_settings(checkpoint, letterbox)
    resnet = load_config("demo.yaml", [*OVERRIDES, "model.backbone=resnet50"])
    with pytest.raises(InputError, match=r"model\.backbone was resnext50_32x4d, is now resnet50"):
        require_same_settings(checkpoint, resnet)


def test_another_augmentation_is_reported() -> None:
    config = load_config("demo.yaml", [*OVERRIDES, "data.augmentation=[flip, photometric]"])
    require_same_settings(make_checkpoint(), config)
    assert differences(make_checkpoint().state, config, {}) == [
        "data.augmentation was flip, is now ['flip', 'photometric']"
    ]
