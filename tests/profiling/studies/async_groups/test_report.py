import pytest

from profiling.studies.async_groups import compare_trained, format_choice
from profiling.studies.async_groups_search import (
    Evaluated,
    Point,
    Probed,
    Setting,
    Trained,
    best,
    common_seconds,
)

PLAIN = Setting(1, 0.9)
TWO = Setting(2, 0.3)


def probed(setting: Setting, *, loss: float, seconds: float = 1.0, scatter: float = 0.0) -> Probed:
    """Forty steps whose loss falls by 0.01 each, from so high that it ends at `loss`."""
    points = [
        Point(
            seconds=seconds * step,
            loss=loss + 0.01 * (40 - step) + scatter * (-1) ** step,
            images=8,
        )
        for step in range(1, 41)
    ]
    return Probed(setting=setting, points=points, staleness=0.0)


def test_probes_are_compared_at_the_time_until_which_all_have_trained() -> None:
    slow = probed(PLAIN, loss=1.0, seconds=2.0)
    fast = probed(TWO, loss=1.1, seconds=1.0)
    assert common_seconds([slow, fast]) == 40.0
    assert best([slow, fast]) == TWO  # at 40 s the slow one is still at 1.2


def test_a_difference_within_the_scatter_is_called_so() -> None:
    close = [probed(PLAIN, loss=1.0, scatter=0.5), probed(TWO, loss=0.9, scatter=0.5)]
    assert "not significant" in format_choice(close)
    clear = [probed(PLAIN, loss=1.0), probed(TWO, loss=0.5)]
    assert format_choice(clear).startswith("best: 2 groups, beta1 0.3; its loss is lower by 0.5")
    assert "significant" not in format_choice(clear)


def test_plain_training_is_held_against_the_best_of_the_others() -> None:
    words = format_choice([probed(PLAIN, loss=0.5), probed(TWO, loss=1.0)])
    assert words.startswith("best: 1 group, beta1 0.9; ")
    assert "than that of 2 groups, beta1 0.3" in words


def trained(
    setting: Setting, *, seconds: float, epochs: float = 3.0, is_reached: bool = True
) -> Trained:
    score = 0.7 if is_reached else 0.2
    before = Evaluated(epoch=epochs / 2, seconds=seconds / 2, map=score / 2, map_50=0.5)
    last = Evaluated(epoch=epochs, seconds=seconds, map=score, map_50=0.9)
    return Trained(setting=setting, curve=[before, last], steps=100, staleness=0.9, target=0.65)


def test_what_did_not_reach_the_target_is_never_sooner() -> None:
    lines = list(
        compare_trained(
            [
                trained(TWO, seconds=50, is_reached=False),
                trained(PLAIN, seconds=100),
                trained(Setting(2, 0.9), seconds=150, epochs=6.0),
            ]
        )
    )
    assert lines == [
        "fastest to the target: 1 group, beta1 0.9, 1 min 40 s",
        "2 groups, beta1 0.9: 1.50 times as long, 2.00 times the epochs",
        "2 groups, beta1 0.3: target not reached, best mAP 0.200 in 0.50 times as long",
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_where_none_reached_the_target_that_is_said(count: int) -> None:
    found = [trained(TWO, seconds=50, is_reached=False)] * count
    assert list(compare_trained(found)) == [
        "no training reached the target: increase training.epochs"
    ]
