from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InputError
from retinanet.config_file import load_config
from retinanet.config_types import (
    BatchSplit,
    Interval,
    describe_split,
    explicit_momentum,
    group_of_rank,
    implicit_momentum,
    parse_interval,
    planned_groups,
    planned_split,
    ranks_of_groups,
    require_groups,
    resolve_beta1,
    split_at_start,
    split_by_speed,
)
from retinanet.training.build import build_optimizer
from tests.retinanet.engine.layers import Layers
from tests.support.commands import error_message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30min", Interval(1800, "seconds")),
        ("90s", Interval(90, "seconds")),
        ("2 h", Interval(7200, "seconds")),
        ("500 steps", Interval(500, "steps")),
        ("1step", Interval(1, "steps")),
        ("epoch", Interval(1, "epochs")),
        ("2 epochs", Interval(2, "epochs")),
    ],
)
def test_intervals_in_time_steps_and_epochs(text: str, expected: Interval) -> None:
    checkpoint = load_config("demo.yaml", [f"checkpoint.every={text}"]).checkpoint
    assert parse_interval(checkpoint.every) == expected


def slowest(split: tuple[int, ...], speeds: list[float]) -> float:
    return max(images / speed for images, speed in zip(split, speeds, strict=True))


@given(
    speeds=st.lists(st.floats(min_value=0.01, max_value=100), min_size=1, max_size=4),
    extra=st.integers(min_value=0, max_value=6),
    limits=st.lists(st.integers(min_value=1, max_value=10), min_size=4, max_size=4),
)
def test_split_by_speed_has_the_fastest_slowest_rank(
    speeds: list[float], extra: int, limits: list[int]
) -> None:
    ranks = len(speeds)
    images, most = ranks + extra, limits[:ranks]
    if sum(most) < images:
        most = []
    split = split_by_speed(speeds, images=images, most=most)
    counts = [range(1, limit + 1) for limit in most or [images] * ranks]
    assert sum(split) == images and all(map(range.__contains__, counts, split))
    others = (other for other in product(*counts) if sum(other) == images)
    assert slowest(split, speeds) == min(slowest(other, speeds) for other in others)


def test_split_at_start() -> None:
    for split in ("even", "speed"):
        assert split_at_start(split, batch_size=3, ranks=4) == (3, 3, 3, 3)
    assert split_at_start((3, 1), batch_size=2, ranks=2) == (3, 1)


@pytest.mark.parametrize(
    ("split", "ranks", "expected"),
    [
        ((3, 2), 2, "2 numbers with the sum 4"),
        ((3, 1), 3, "3 numbers with the sum 6"),
        ((3, 1), 1, "1 number with the sum 2"),
    ],
)
def test_split_for_other_ranks_or_another_batch_is_refused(
    split: tuple[int, ...], ranks: int, expected: str
) -> None:
    message = error_message(split_at_start, split, batch_size=2, ranks=ranks)
    assert message.startswith(f"distributed.batch_split: expected {expected} ")
    assert message.endswith(f"found {list(split)}")


@pytest.mark.parametrize(
    ("images", "speeds", "text"),
    [
        ((3, 1), (), "3 images on rank 0, 1 on rank 1"),
        ((1, 3), (), "1 image on rank 0, 3 on rank 1"),
        ((2, 2, 2), (), "2 images on ranks 0-2"),
        (
            (1, 3, 1, 3),
            (0.68, 2.1, 0.711, 2.1),
            "1 image on ranks 0,2, 3 on ranks 1,3, by measured speed 0.68–0.71 and 2.10 images/s",
        ),
    ],
)
def test_description_of_a_split(
    images: tuple[int, ...], speeds: tuple[float, ...], text: str
) -> None:
    assert describe_split(images, speeds) == text


def test_plan_describes_only_uneven_splits() -> None:
    def planned(split: BatchSplit, *, batch_size: int = 2, ranks: int = 2) -> str:
        return planned_split(split, batch_size=batch_size, ranks=ranks)

    assert planned("even") == planned((2, 2)) == planned("speed", ranks=1) == ""
    assert planned("speed", batch_size=1) == ""
    assert planned((3, 1)) == "3 images on rank 0, 1 on rank 1"
    assert planned("speed").startswith("4 images, split by the speed")


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (2, 1), (2, 2), (8, 2), (6, 3), (12, 12)])
def test_groups_are_neighbouring_ranks(ranks: int, groups: int) -> None:
    parts = ranks_of_groups(ranks, groups)
    assert [rank for part in parts for rank in part] == list(range(ranks))
    assert {len(part) for part in parts} == {ranks // groups} and len(parts) == groups
    for number, part in enumerate(parts):
        assert {group_of_rank(rank, ranks=ranks, groups=groups) for rank in part} == {number}


@pytest.mark.parametrize(
    ("groups", "ranks", "advice"),
    [(2, 3, "1 or 3"), (4, 6, "1, 2, 3 or 6"), (2, 1, "1"), (8, 4, "1, 2 or 4")],
)
def test_groups_of_unequal_size_are_refused(groups: int, ranks: int, advice: str) -> None:
    for require in (require_groups, planned_groups):
        with pytest.raises(InputError, match=rf"distributed\.groups: {groups} .*; use {advice}$"):
            require(groups, ranks=ranks)


@pytest.mark.parametrize(
    ("groups", "ranks", "text"),
    [(1, 1, ""), (1, 8, ""), (2, 2, "2 of 1 rank, "), (2, 8, "2 of 4 ranks, ")],
)
def test_plan_describes_groups_if_there_are_several(groups: int, ranks: int, text: str) -> None:
    planned = planned_groups(groups, ranks=ranks)
    assert planned.startswith(text) and bool(planned) == bool(text)


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("distributed.batch_split=speed", "distributed.batch_split"),
        ("distributed.batch_split=[3, 1]", "distributed.batch_split"),
        ("engine.name=ipex", "distributed"),
    ],
)
def test_settings_that_groups_exclude_are_refused(override: str, field: str) -> None:
    groups = "distributed.groups=2"
    for overrides in ([override, groups], [groups, override]):
        with pytest.raises(InputError, match=rf"^command line: {field}: .*groups.*$"):
            load_config("demo.yaml", overrides)
    load_config("demo.yaml", [override])
    load_config("demo.yaml", [groups])


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("distributed.groups", ["0", "-1", "1.5", "true", "two", "null"], ""),
        (
            "distributed.batch_split",
            ["[0, 2]", "[-1, 3]", "[1.5, 1]", "[true, 1]", "[]", "3", "fast"],
            "even, speed, or ",
        ),
        (
            "training.beta1",
            ["1", "1.0", "-0.1", "true", "fast", "null", "[0.9]", ".nan"],
            "from 0 to below 1, or auto",
        ),
        *(
            (
                f"profile.{section}.steps",
                ["0", "0-3", "5-3", "-1", "1-", "20,21", "1.5", "true", "[1, 2]"],
                "such as 20-22 or 20",
            )
            for section in ("onednn", "trace")
        ),
        (
            "checkpoint.every",
            ["", "steps", "min", "0 steps", "-1h", "1.5h", "30", "30 m", "epoch 2", "9" * 20 + "s"],
            "a time, steps or epochs, such as 30min, 2h, 500 steps or epoch",
        ),
        (
            "training.milestones",
            ["[16, 8]", "[8, 8]", "[0]", "[-1]", "[true]", "[.nan]", "[a]", "8", "{}", "null"],
            "rising numbers of epochs, such as [16, 22]",
        ),
    ],
)
def test_invalid_values_are_refused(field: str, values: list[str], expected: str) -> None:
    for value in values:
        message = error_message(load_config, "demo.yaml", [f"{field}={value}"])
        assert message.startswith(f"command line: {field}: ")
        assert expected in message


@pytest.mark.parametrize(("groups", "beta1"), [(1, 0.9), (2, 0.4), (4, 0.15), (10, 0), (16, 0)])
def test_automatic_beta1_is_reduced_by_the_implicit_momentum(groups: int, beta1: float) -> None:
    assert resolve_beta1("auto", groups=groups) == explicit_momentum(groups) == beta1
    assert resolve_beta1(0.5, groups=groups) == 0.5


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_implicit_momentum_describes_late_gradients(groups: int) -> None:
    """The theorem behind the rule, on a quadratic; the next group to finish is random."""
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
    expected = means[:2]  # before, all groups have read the same weights
    while len(expected) < len(means):
        before, last = expected[-2:]
        expected.append(last + momentum * (last - before) - (1 - momentum) * rate * last)
    np.testing.assert_allclose(means, expected, atol=5e-3)


@pytest.mark.parametrize("name", ["adam", "lamb"])
@pytest.mark.parametrize(
    ("overrides", "groups", "beta1"), [([], 1, 0.9), ([], 2, 0.4), (["training.beta1=0.7"], 2, 0.7)]
)
def test_optimizer_gets_the_beta1_of_its_groups(
    name: str, overrides: list[str], groups: int, beta1: float
) -> None:
    config = load_config("demo.yaml", [f"training.optimizer={name}", *overrides])
    optimizer = build_optimizer(config.training, Layers(), engine="torch", groups=groups)
    assert optimizer.param_groups[0]["betas"] == (beta1, 0.999)
