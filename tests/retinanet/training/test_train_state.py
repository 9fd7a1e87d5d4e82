import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from retinanet.training.train_state import random_states, restore_random_states, seed_everything


@pytest.fixture(autouse=True)
def restored_generators() -> Iterator[None]:
    states = random_states()
    yield
    restore_random_states(states)


def draw() -> tuple[list[float], list[float], list[float]]:
    normal = np.random.standard_normal(3).tolist()  # an odd number: numpy caches the fourth
    return [random.gauss(0, 1) for _ in range(3)], normal, torch.rand(3).tolist()


def test_one_seed_starts_all_generators() -> None:
    values = []
    for seed in (4, 4, 5):
        seed_everything(seed)
        values.append(draw())
    assert values[0] == values[1]
    assert all(first != other for first, other in zip(values[0], values[2], strict=True))


def test_states_survive_json() -> None:
    seed_everything(4)
    draw()
    text = json.dumps(random_states())
    expected = [draw(), draw()]
    seed_everything(9)
    restore_random_states(json.loads(text))
    assert [draw(), draw()] == expected


@pytest.mark.parametrize(
    "damage",
    [
        {"python": [3, "00", None]},
        {"python": [3, "zz", None]},
        {"numpy": ["MT19937", "00" * 8, 0, 0, 0.0]},
        {"numpy": None},
        {"torch": "00" * 7},
        {"torch": 5},
        {"torch": "00" * 5056},
    ],
)
def test_damaged_states_are_refused_and_change_nothing(damage: dict[str, object]) -> None:
    seed_everything(4)
    before = random_states()
    with pytest.raises(ValueError, match="damaged"):
        restore_random_states({**before, **damage})
    assert random_states() == before
