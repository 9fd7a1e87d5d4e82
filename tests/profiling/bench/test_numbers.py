import pytest
import torch
from torch import nn

from common.errors import InputError
from profiling.bench.measured_steps import onednn_seconds
from profiling.bench.recipes.step import convolution_flop, step_gflop
from profiling.bench.results import Finding
from profiling.bench.variant import STANDARD, Run, Variant, choose, times_as_fast

CONTESTANTS = [
    Variant(name="one", about="", recipe=""),
    Variant(name="other", about="", recipe="", by_default=False),
]


def run_of(seconds: float) -> Run:
    return Run(seconds=seconds, page_faults=0, rss_mb=1.0, peak_rss_mb=1.0, details={})


def test_executed_primitives_are_summed_by_kind() -> None:
    network = nn.Conv2d(4, 4, kernel_size=3)
    images = torch.zeros(2, 4, 10, 12, requires_grad=True)
    network(images)  # oneDNN makes a primitive when it first runs
    seconds = onednn_seconds(lambda: network(images).sum().backward())
    assert {"convolution forward_training", "convolution backward_data"} < set(seconds)
    assert all(0 < one < 10 for one in seconds.values())
    assert onednn_seconds(lambda: None) == {}


def test_arithmetic_of_convolutions_by_hand() -> None:
    first = nn.Conv2d(3, 8, kernel_size=3, padding=1).requires_grad_(requires_grad=False)
    second = nn.Conv2d(8, 4, kernel_size=1, stride=2)
    third = nn.Conv2d(4, 6, kernel_size=3, padding=1, groups=2)
    network = nn.Sequential(first, nn.ReLU(), second, third)
    forward_first = 2 * (2 * 8 * 10 * 12) * 3 * 9  # the frozen prefix: forward alone
    forward_second = 2 * (2 * 4 * 5 * 6) * 8  # no gradient to a frozen layer's output
    forward_third = 2 * (2 * 6 * 5 * 6) * 2 * 9
    images = torch.zeros(2, 3, 10, 12)
    flop = convolution_flop(network, lambda: network(images))
    assert flop == forward_first + 2 * forward_second + 3 * forward_third
    assert not any(module._forward_hooks for module in network.modules())


def test_arithmetic_of_the_standard_step() -> None:
    assert step_gflop(STANDARD) == pytest.approx(2322.0, abs=0.1)


def test_ratios_are_taken_round_by_round() -> None:
    runs = [run_of(1.0), run_of(2.0), run_of(10.0)]
    others = [run_of(3.0), run_of(4.0), run_of(15.0)]
    assert times_as_fast(runs, others) == (2.0, 1.5, 3.0)


def test_contestants_are_chosen_by_name() -> None:
    one, other = CONTESTANTS
    assert choose(CONTESTANTS, None) == [one]
    assert choose(CONTESTANTS, "all") == [one, other]
    assert choose(CONTESTANTS, "other,one") == [other, one]


@pytest.mark.parametrize("names", ["third", "one,one", "", "one,"])
def test_a_wrong_choice_is_told_with_the_names(names: str) -> None:
    with pytest.raises(InputError, match=r"^--contestants: "):
        choose(CONTESTANTS, names)


def test_a_target_is_met_or_not() -> None:
    assert Finding(what="", value=4.5, shown="", at_least=4.5).is_met
    assert not Finding(what="", value=4.4, shown="", at_least=4.5).is_met
    assert not Finding(what="", value=0.41, shown="", at_most=0.4).is_met
    assert Finding(what="", value=9.0, shown="").is_met
