import numpy as np
import pytest

from common.errors import InputError
from retinanet.config_file import load_config
from retinanet.config_types import beta1_of, explicit_momentum, implicit_momentum
from retinanet.training.build import build_optimizer
from tests.retinanet.engine.layers import Layers


@pytest.mark.parametrize(("groups", "left"), [(1, 0.9), (2, 0.4), (4, 0.15), (10, 0), (16, 0)])
def test_what_the_groups_bring_by_themselves_is_taken_from_beta1(groups: int, left: float) -> None:
    assert beta1_of("auto", groups=groups) == explicit_momentum(groups) == left


@pytest.mark.parametrize("told", [0.0, 0.5, 0.9])
def test_a_number_that_is_told_stays_whatever_the_groups(told: float) -> None:
    assert {beta1_of(told, groups=groups) for groups in (1, 2, 16)} == {told}


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_late_gradients_move_weights_as_the_implicit_momentum_does(groups: int) -> None:
    """The theorem behind the rule: on a quadratic, where it is drawn which group is done next."""
    generator = np.random.default_rng(groups)
    runs, rate = 40_000, 0.05
    every, weight, read = np.arange(runs), np.ones(runs), np.ones((runs, groups))
    means = [1.0]
    for _ in range(40):
        group = generator.integers(groups, size=runs)
        weight = weight - rate * read[every, group]
        read[every, group] = weight
        means.append(weight.mean())
    momentum = implicit_momentum(groups)
    expected = means[:2]  # they all read the same weights before
    while len(expected) < len(means):
        before, last = expected[-2:]
        expected.append(last + momentum * (last - before) - (1 - momentum) * rate * last)
    np.testing.assert_allclose(means, expected, atol=5e-3)


@pytest.mark.parametrize("value", ["1", "1.0", "-0.1", "true", "fast", "null", "[0.9]", ".nan"])
def test_what_is_no_beta1_is_told_what_may_be(value: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config("demo.yaml", [f"training.beta1={value}"])
    message = str(caught.value)
    assert message.startswith(
        "command line: training.beta1: input should be a number from 0 to below 1, or auto, found "
    )
    assert "\n" not in message


@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_the_optimizer_of_a_run_in_groups_has_the_beta1_that_is_left(name: str) -> None:
    for words, groups, beta1 in (([], 1, 0.9), ([], 2, 0.4), (["training.beta1=0.7"], 2, 0.7)):
        config = load_config("demo.yaml", [f"training.optimizer={name}", *words])
        made = build_optimizer(config.training, Layers(), engine="torch", groups=groups)
        assert made.param_groups[0]["betas"] == (beta1, 0.999)
