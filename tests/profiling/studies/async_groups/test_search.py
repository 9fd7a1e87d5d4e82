"""The search for compute groups: settings, losses, results and their comparison."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from common.errors import InputError
from profiling.studies.async_groups import (
    RATES,
    Evaluated,
    Point,
    Probed,
    Results,
    Setting,
    Trained,
    best,
    common_seconds,
    compare_trained,
    for_whole,
    format_choice,
    images_per_second,
    loss_at,
    loss_chart,
    map_chart,
    map_curve,
    mean_staleness,
    read_results,
    search,
    settings_grid,
    step_points,
    steps_after,
    write_results,
)

PLAIN = Setting(1, 0.9)
TWO = Setting(2, 0.3)
ABOUT = {"config": "demo.yaml", "ranks": 2}


def searched(ranks: int, best: dict[int, float]) -> list[Setting]:
    """Return the probed settings; `best`: best momentum by number of groups."""

    def choose_best(settings: Sequence[Setting]) -> Setting:
        return Setting(settings[0].groups, best[settings[0].groups])

    return list(search(ranks, choose_best=choose_best))


@pytest.mark.parametrize(
    ("groups", "momenta"), [(1, [0.9]), (2, [0.0, 0.4, 0.6, 0.9]), (16, [0.0, 0.6, 0.9])]
)
def test_grid_has_the_momentum_of_the_rule_and_all_learning_rates(
    groups: int, momenta: list[float]
) -> None:
    settings = [Setting(groups, beta1, rate) for beta1 in momenta for rate in RATES]
    assert settings_grid(groups) == settings
    if groups == 1:  # which is probed first
        assert searched(8, {8: 0.4})[: len(RATES)] == settings


@pytest.mark.parametrize(
    ("ranks", "best_momentum", "groups"),
    [
        (8, {8: 0.4}, [8]),
        (8, {8: 0.0, 4: 0.6, 2: 0.0}, [8, 4]),
        (8, {8: 0.0, 4: 0.0, 2: 0.0}, [8, 4, 2]),
        (6, {6: 0.0, 3: 0.0}, [6, 3]),
        (2, {2: 0.0}, [2]),
    ],
)
def test_groups_are_halved_while_no_momentum_is_best(
    ranks: int, best_momentum: dict[int, float], groups: list[int]
) -> None:
    settings = searched(ranks, best_momentum)
    assert list(dict.fromkeys(setting.groups for setting in settings)) == [1, *groups]


def test_whole_training_takes_the_next_larger_learning_rate() -> None:
    assert for_whole(Setting(2, 0.4, 0.03)) == Setting(2, 0.4, 0.1)
    assert for_whole(Setting(1, 0.9, 0.3)) == for_whole(Setting(1, 0.9)) == Setting(1, 0.9)


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "loss": 1.0, "seconds": 1.0, "images": 4, **values}


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([(0, 1.0), (1, 2.5), (0, 1.0), (0, 1.0)], [1.0, 2.0, 2.5, 3.0]),
        # Groups begin after the last common step.
        ([(None, 5.0), (1, 2.0), (0, 3.0), (1, 2.0), (None, 1.0)], [5.0, 7.0, 8.0, 9.0, 10.0]),
    ],
)
def test_groups_train_in_parallel(
    steps: list[tuple[int | None, float]], seconds: list[float]
) -> None:
    records = [{"kind": "evaluation", "step": 1}]
    for number, (group, time) in enumerate(steps, 1):
        records.append(step(number, seconds=time, **({} if group is None else {"group": group})))
    points = step_points(steps_after(records))
    assert [point.seconds for point in points] == seconds
    assert images_per_second(points) == pytest.approx(4 * len(steps) / seconds[-1])


def test_cold_start_and_skipped_steps_do_not_count() -> None:
    groups = [step(3, group=1, staleness=2), step(4, group=0, staleness=1)]
    records = [step(1), step(2, loss=None), *groups]
    assert [point.seconds for point in step_points(steps_after(records, 1))] == [1.0, 1.0]
    assert (mean_staleness(records), mean_staleness([])) == (1.5, 0.0)


def test_loss_is_the_mean_of_the_last_quarter() -> None:
    points = [Point(seconds=float(at), loss=float(at), images=1) for at in range(1, 13)]
    loss = loss_at(points, 8.0)
    assert loss.mean == 7.5 and loss.error == pytest.approx(math.sqrt(0.5) / math.sqrt(2))
    assert (loss_at([], 8.0).mean, images_per_second([])) == (math.inf, 0.0)


def test_evaluation_has_the_time_of_all_before() -> None:
    metric = {"kind": "evaluation", "seconds": 10.0, "map": 0.25, "map_50": None}
    groups = [step(2, group=0, seconds=2.0), step(3, group=1, seconds=3.0)]
    first, second = ({**metric, "epoch": epoch} for epoch in (1.0, 2.0))
    curve = map_curve([step(1, seconds=5.0), first, *groups, second])
    assert [(at.epoch, at.seconds) for at in curve] == [(1.0, 15.0), (2.0, 28.0)]
    assert {(at.map, at.map_50) for at in curve} == {(0.25, 0.0)}


def probed(setting: Setting, *, loss: float, seconds: float = 1.0, scatter: float = 0.0) -> Probed:
    """Return forty steps whose loss falls by 0.01 each and ends at `loss`."""
    losses = [loss + 0.01 * (40 - step) + scatter * (-1) ** step for step in range(1, 41)]
    points = [Point(seconds=seconds * at, loss=loss, images=8) for at, loss in enumerate(losses, 1)]
    return Probed(setting=setting, points=points, staleness=0.0)


def test_probes_are_compared_at_equal_time() -> None:
    slow = probed(PLAIN, loss=1.0, seconds=2.0)
    fast = probed(TWO, loss=1.1, seconds=1.0)
    assert common_seconds([slow, fast]) == 40.0
    assert best([slow, fast]) == TWO  # at 40 s the slow one is still at 1.2


@pytest.mark.parametrize(
    ("plain", "two", "scatter", "text"),
    [
        (1.0, 0.5, 0.0, "best: 2 groups, beta1 0.3; its loss is lower by 0.5"),
        (0.5, 1.0, 0.0, "best: 1 group, beta1 0.9; its loss is lower by 0.5"),
        (1.0, 0.9, 0.5, ", which is not significant"),
    ],
)
def test_choice_names_both_settings_and_whether_it_is_significant(
    plain: float, two: float, scatter: float, text: str
) -> None:
    probes = [probed(PLAIN, loss=plain, scatter=scatter), probed(TWO, loss=two, scatter=scatter)]
    choice = format_choice(probes)
    assert text in choice and ("significant" in choice) == (scatter > 0)
    assert f"than that of {TWO.title if plain < two else PLAIN.title}" in choice


def trained(
    setting: Setting, *, seconds: float, epochs: float = 3.0, is_reached: bool = True
) -> Trained:
    score = 0.7 if is_reached else 0.2
    before = Evaluated(epoch=epochs / 2, seconds=seconds / 2, map=score / 2, map_50=0.5)
    last = Evaluated(epoch=epochs, seconds=seconds, map=score, map_50=0.9)
    return Trained(setting=setting, curve=[before, last], steps=100, staleness=0.9, target=0.65)


def test_training_below_the_target_is_never_fastest() -> None:
    below, plain = trained(TWO, seconds=50, is_reached=False), trained(PLAIN, seconds=100)
    longer = trained(Setting(2, 0.9), seconds=150, epochs=6.0)
    first, second, third = compare_trained([below, plain, longer])
    assert first.startswith("fastest to the target: 1 group, beta1 0.9")
    assert "beta1 0.9" in second and "1.50 times as long, 2.00 times the epochs" in second
    assert "beta1 0.3" in third and "not reached, best mAP 0.200" in third
    [line] = compare_trained([below, below])
    assert line == "no training reached the target: increase training.epochs"


def sample_results() -> Results:
    points = [Point(seconds=1.5, loss=0.7, images=8)]
    probe = Probed(setting=Setting(2, 0.3), points=points, staleness=0.5)
    training = trained(Setting(1, 0.9, 0.3), seconds=10.0)
    return Results(about=dict(ABOUT), probes=[probe], trained=[training])


def test_results_are_read_back_by_the_same_command(tmp_path: Path) -> None:
    assert read_results(tmp_path, ABOUT) == Results(about=ABOUT, probes=[], trained=[])
    write_results(tmp_path, sample_results())
    assert read_results(tmp_path, ABOUT) == sample_results()
    with pytest.raises(InputError, match="ranks was 2, is now 4; give another --out"):
        read_results(tmp_path, {**ABOUT, "ranks": 4})


@pytest.mark.parametrize(
    "text", ["", "[]", '{"about": {}}', '{"about": {}, "probes": [1]}', "[" * 100_000]
)
def test_other_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "probes.json").write_text(text)
    with pytest.raises(InputError, match="was not written by this command"):
        read_results(tmp_path, ABOUT)


@pytest.mark.slow
def test_each_learning_rate_has_a_panel() -> None:
    points = [Point(seconds=float(step), loss=1 / step, images=8) for step in range(1, 9)]
    probes = [
        Probed(setting=Setting(2, 0.4, rate), points=points, staleness=1.0) for rate in (1, 0.3)
    ]
    charts = [loss_chart(probes[:count], probes[0].setting, title="x") for count in (1, 2)]
    for target in (None, 0.5):
        training = replace(sample_results().trained[0], target=target)
        charts.append(map_chart([training], title="x"))
    single, pair, *_ = (imread(io.BytesIO(chart)).shape[1] for chart in charts)
    assert single < pair
