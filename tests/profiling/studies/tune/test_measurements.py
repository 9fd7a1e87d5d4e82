"""The file of the measurements, and the probe runs in it."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from common.files import read_json_object
from profiling.bench.job import ExchangeTime
from profiling.studies.rounds import Measured, Shape
from profiling.studies.tune.measurements import (
    Evaluated,
    Measurements,
    PartialMeasurement,
    ProbeRun,
    Probes,
    RateRule,
    epochs_of_probes,
    probe_settings,
    read_measurements,
    require_same,
    write_measurements,
)
from tests.profiling.studies.tune.samples import measurements, probed, probes
from tests.support.commands import error_message
from tests.support.rank_steps import rank_steps

SHAPE = Shape(ranks=1, threads=2, batch_size=4)
BEGUN = PartialMeasurement(
    command="retinanet launch tune",
    environment={"cpu": "a processor", "torch": "2.8.0"},
    data="openimages",
    overrides=("data.image_size=64",),
    question={"image_size": 64},
    measured=(SHAPE,),
    shapes=(SHAPE,),
    jobs=(Measured(shape=SHAPE, jobs=((rank_steps(0, [1.0, 1.1]),),)),),
)


@pytest.mark.parametrize("content", [measurements(), BEGUN], ids=["complete", "partial"])
def test_measurements_are_read_back(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    write_measurements(file, content)
    assert read_measurements(file) == content


def test_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Its network was measured by all-reduces, beside some between ranks of the host."""
    time = {"ranks": 2, "size": 4096, "seconds": 1e-3}
    between = {
        "hosts": ["a", "b"],
        "all_reduces": [time] * 2,
        "over": "measured over 2 hosts, gloo",
    }
    old = json.loads(json.dumps(asdict(measurements())))
    del old["comm_cores"], old["peaks"]
    old |= {"all_reduces": [time], "all_reduces_over": "sockets", "last_bytes": 4096}
    file = tmp_path / "old.json"
    file.write_text(json.dumps(old | {"between_hosts": between}))
    read = read_measurements(file)
    assert isinstance(read, Measurements) and read.between_hosts is not None
    assert read.between_hosts.exchanges == (ExchangeTime(ranks=2, size=4096, seconds=1e-3),) * 2
    assert replace(read, between_hosts=None) == measurements()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": 1}'])
def test_other_file_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"other.json: was not written by .* another name"):
        read_measurements(file)


@pytest.mark.parametrize(
    ("field", "number", "named"),
    [
        ("cores", 10**23, "cores: expected a number of at most 1e+19"),
        ("metric_seconds", 1e308, "metric_seconds: expected a number of at most 1e+19"),
        ("data_share", float("nan"), "data_share: expected a number of at most 1e+19"),
        ("gradient_bytes", 0, "(gradient_bytes: "),
        ("gradient_bytes", 10**15, "(gradient_bytes: "),
        ("threads", 0, "(steps.0.shape.threads: "),
    ],
)
def test_number_that_nothing_can_have_is_refused(
    field: str, number: float, named: str, tmp_path: Path
) -> None:
    plan = json.loads(json.dumps(asdict(measurements())))
    (plan["steps"][0]["shape"] if field == "threads" else plan)[field] = number
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    with pytest.raises(InputError, match=rf"plan\.json: .*{re.escape(named)}"):
        read_measurements(file)


def test_missing_or_endlessly_nested_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.json: cannot be read"):
        read_measurements(tmp_path / "none.json")
    file = tmp_path / "plan.json"
    for text in ("[" * 100_000, '{"unfinished": true, "shapes": ' + "[" * 100_000):
        file.write_text(text)
        with pytest.raises(InputError, match=r"plan\.json"):
            read_measurements(file)
        with pytest.raises(InputError, match=r"plan\.json"):
            read_json_object(file, advice="")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"environment": {"cpu": "another", "torch": "2.8.0"}}, "cpu a processor, .* another"),
        ({"environment": {"cpu": "a processor", "torch": "3"}}, "torch 2.8.0, .* 3"),
        ({"question": {"image_size": 96}}, "image_size 64, .* 96"),
    ],
)
def test_only_the_same_machine_versions_and_training_continue(
    changes: dict[str, Any], error: str
) -> None:
    file = Path("here.json")
    other_kernel = replace(BEGUN, environment={**BEGUN.environment, "kernel": "6.1"})
    for continued in (BEGUN, other_kernel):
        require_same(file, continued, BEGUN)
    with pytest.raises(InputError, match=f"^here.json: .*{error}"):
        require_same(file, BEGUN, replace(BEGUN, **changes))


@pytest.mark.parametrize(
    ("scores", "epochs"),
    [([(1, 0.1), (2, 0.2), (3, 0.4)], 2.5), ([(1, 0.6)], 0.5), ([(1, 0.1), (2, 0.29)], math.inf)],
)
def test_target_is_reached_between_two_evaluations(
    scores: list[tuple[float, float]], epochs: float
) -> None:
    evaluations = tuple(Evaluated(epoch=epoch, score=score) for epoch, score in scores)
    run = ProbeRun(batch_size=8, seed=0, evaluations=evaluations, is_over=True, seconds=1.0)
    assert run.epochs_until(0.3) == pytest.approx(epochs)


def test_epochs_are_interpolated_and_have_the_range_of_the_seeds() -> None:
    model = epochs_of_probes(probes(), config="demo.yaml")
    estimate = model.epochs(8)
    assert (estimate.low, estimate.middle, estimate.high) == pytest.approx((1.0, 1.5, 2.0))
    middle = [model.epochs(size).middle for size in (4, 8, 12, 16, 32, 64)]
    assert middle == pytest.approx([1.5, 1.5, 2.0, 2.5, 4.5, 8.5])
    assert "6 probe runs of demo.yaml (2 seeds each" in model.source
    assert "0.0003 at 8, with the square root" in model.source


def test_error_names_a_target_that_all_runs_reached() -> None:
    run = probed(batch_size=32, seed=1, epochs_to_030=100.0)
    short = replace(probes(), runs=(*probes().runs[:-1], run))
    message = error_message(epochs_of_probes, short, config="demo.yaml")
    for text in ("--probe-target 0.3: 1 of 6", "epoch 10", "mAP 0.030", "--probe-target 0.03"):
        assert text in message
    lower = replace(short, target_map=0.03)
    assert not lower.missing
    assert epochs_of_probes(lower, config="demo.yaml").epochs(32).high == pytest.approx(10.0)


def test_only_missing_runs_are_trained() -> None:
    first, *others = probes().runs
    early = replace(first, is_over=False, evaluations=first.evaluations[:1])
    assert early.best == pytest.approx(0.3)
    all_runs = replace(probes(), runs=(early, *others))
    assert replace(all_runs, target_map=0.2).missing == []
    assert replace(all_runs, target_map=0.4).missing == [(8, 0)]  # it can train further
    assert replace(probes(), seeds=3).missing == [(8, 2), (16, 2), (32, 2)]
    assert replace(probes(), batch_sizes=(8, 64)).missing == [(64, 0), (64, 1)]


def test_learning_rate_scales_with_the_batch() -> None:
    rule = RateRule(rate=3e-4, batch_size=8, is_linear=False)
    assert rule.scaled(8) == pytest.approx(3e-4)
    assert rule.scaled(32) == pytest.approx(6e-4)
    assert replace(rule, is_linear=True).scaled(32) == pytest.approx(12e-4)
    settings = probe_settings(probes(), batch_size=32)
    assert settings == ["training.learning_rate=0.0006", "training.target_map=0.3"]


def test_probes_need_two_batch_sizes() -> None:
    with pytest.raises(ValueError, match="batch_sizes"):
        Probes(target_map=0.3, batch_sizes=(8,), seeds=1, rule=probes().rule)
