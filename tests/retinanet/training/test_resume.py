from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinanet.config import config_to_tree
from retinanet.config_file import load_config
from retinanet.training.checkpoint import Checkpoint
from retinanet.training.resume import differences, recorded_split
from retinanet.training.train_state import ModelDescription, State, TrainingPosition

WORDS = ("training.batch_size=2", "distributed.batch_split=speed")


def checkpoint(*changes: str, split: object = None, ranks: int = 2) -> Checkpoint:
    """Of a run of these settings; `split`: what its set-up says, None: nothing."""
    said: dict[str, Any] = {} if split is None else {"split of batches": split}
    state = State(
        model=ModelDescription(
            num_classes=1,
            norm="batch",
            trainable_layers=5,
            image_size=64,
            precision="float32",
            classes={},
        ),
        position=TrainingPosition(
            step=1, epoch=0, images=4, images_per_epoch=8, map_here=None, best_map=None
        ),
        setup={"ranks": ranks, **said},
        config=config_to_tree(load_config("demo.yaml", [*WORDS, *changes])),
        random_states=[],
        parts={},
    )
    return Checkpoint(Path("none"), state)


def recorded(kept: Checkpoint | None, *changes: str, ranks: int = 2) -> tuple[int, ...]:
    return recorded_split(kept, load_config("demo.yaml", [*WORDS, *changes]), ranks=ranks)


@pytest.mark.parametrize(("said", "split"), [([3, 1], (3, 1)), ("even", (2, 2))])
def test_a_split_by_speed_is_taken_up_again(said: object, split: tuple[int, ...]) -> None:
    assert recorded(checkpoint(split=said)) == split


def test_a_split_is_measured_where_there_was_none_by_speed() -> None:
    assert recorded(None) == ()
    assert recorded(checkpoint("distributed.batch_split=[3, 1]", split=[3, 1])) == ()
    assert recorded(checkpoint("distributed.batch_split=even", split="even")) == ()


def test_a_split_is_measured_anew_for_other_ranks_or_batches() -> None:
    assert recorded(checkpoint(split=[3, 1]), ranks=3) == ()
    assert recorded(checkpoint(split=[2, 1, 3], ranks=3)) == ()
    assert recorded(checkpoint(split=[3, 1]), "training.batch_size=4") == ()
    assert recorded(checkpoint(split="even"), "training.batch_size=4") == ()


@pytest.mark.parametrize("said", [[4, 0], [3, 2], [3.0, 1.0], [3], "3, 1", 7, None])
def test_what_is_no_split_of_these_ranks_is_not_taken_up(said: object) -> None:
    assert recorded(checkpoint(split=said)) == ()


def test_an_older_checkpoint_that_says_nothing_of_its_split_was_even() -> None:
    kept, config = checkpoint(), load_config("demo.yaml", WORDS)
    assert differences(kept.state, config, {"ranks": 2, "split of batches": "even"}) == []
    assert differences(kept.state, config, {"ranks": 2, "split of batches": [3, 1]}) == [
        "split of batches was even, is now [3, 1]"
    ]


def test_how_a_split_came_about_changes_no_step() -> None:
    kept = checkpoint(split=[3, 1])
    told = load_config("demo.yaml", [*WORDS, "distributed.batch_split=[3, 1]"])
    assert differences(kept.state, told, {"ranks": 2, "split of batches": [3, 1]}) == []
    assert differences(replace(kept.state, setup={}), told, {"split of batches": "even"}) == []
