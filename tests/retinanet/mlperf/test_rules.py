"""MLPerf's rule sets: the closed division, the reference points, and `mlperf points`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker
from PIL import Image

from retinanet.__main__ import main
from retinanet.config_file import load_config
from retinanet.mlperf.rules import (
    NEWEST,
    RULES,
    Rules,
    benchmark_name,
    expectation,
    reference_points,
)
from tests.support.commands import RunHere, error_message

CLOSED = ("mlperf.division=closed", "data.root=/data")
POINTS = ("mlperf", "points")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("data.image_size=640", "800, not 640"),
        ("data.image_size=[608,800]", "800, not [608, 800]"),
        ("data.images_without_boxes=skip", "train, not skip"),
        ("data.repeat_rare=0.01", "null, not 0.01"),
        ("data.on_bad_image=skip", "stop, not skip"),
        ("model.norm=batch", "frozen, not batch"),
        ("model.trainable_layers=5", "3, not 5"),
        ("model.pretrained_backbone=null", "torchvision, or its file"),
        ("training.optimizer=sgd", "adam, not sgd"),
        ("training.beta1=0.4", "0.9, not 0.4"),
        ("training.weight_decay=0.1", "0, not 0.1"),
        ("training.schedule=cosine", "constant, not cosine"),
        ("training.body_learning_rate_factor=0.1", "1, not 0.1"),
        ("training.ema=0.999", "null, not 0.999"),
        ("training.patience=3", "null, not 3"),
        ("training.class_weights=balanced", "null, not balanced"),
        ("training.clip_gradient_norm=1", "null, not 1.0"),
        ("training.on_nonfinite=skip", "stop, not skip"),
        ("training.max_steps=5", "null, not 5"),
        ("training.target_map=0.3", "0.34, not 0.3"),
        ("evaluation.every=2", "1, not 2"),
        ("distributed.groups=2", "1, not 2"),
    ],
)
def test_closed_division_rejects_a_change_and_names_the_rule(change: str, expected: str) -> None:
    message = error_message(load_config, "openimages.yaml", [*CLOSED, change])
    rule = f"{change.partition('=')[0]} is {expected}"
    assert message.startswith("command line: mlperf: ")
    assert rule in message and ";" not in message.split(rule, maxsplit=1)[0]  # the only one
    assert "mlperf.division=open" in message
    load_config("openimages.yaml", ["mlperf.division=open", change])


def test_closed_division_rejects_a_detector_to_start_from() -> None:
    changes = ["model.pretrained_backbone=null", "model.weights=runs/a"]
    message = error_message(load_config, "openimages.yaml", [*CLOSED, *changes])
    assert "model.weights is null, not runs/a" in message
    load_config("openimages.yaml", changes)


@pytest.mark.parametrize(
    "change",
    [
        "training.batch_size=8",
        "training.gradient_accumulation=4",
        "training.learning_rate=2e-4",
        "training.beta1=0.9",
        "training.warmup_epochs=0",
        "training.warmup_factor=0.1",
        "training.epochs=30",
        "run.seed=7",
        "engine.precision=float32",
    ],
)
def test_closed_division_allows_other_changes(change: str) -> None:
    assert load_config("openimages.yaml", [*CLOSED, change]).mlperf.division == "closed"


def test_all_broken_rules_are_named() -> None:
    assert error_message(load_config, "demo.yaml", ["mlperf.division=closed"]).count(", not ") == 8


def make_checker(rules: Rules) -> RCP_Checker:
    return RCP_Checker("training", rules, benchmark_name(rules), verbose=False)


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("rules", RULES)
def test_points_equal_the_official_checkers(rules: Rules, pruned: bool) -> None:
    points, checker = reference_points(rules, pruned=pruned), make_checker(rules)
    records = list((checker.pruned_rcp_data if pruned else checker.rcp_data).values())
    assert [point.batch_size for point in points] == [record["BS"] for record in records]
    assert [point.batch_size for point in points] == sorted({point.batch_size for point in points})
    for point, record in zip(points, records, strict=True):
        assert point.mean_epochs == pytest.approx(record["RCP Mean"], rel=0, abs=1e-12)
        assert point.least_epochs == record["Min Epochs"] <= point.mean_epochs
        assert point.learning_rate == record["Hyperparams"]["opt_base_learning_rate"]


@pytest.mark.parametrize("batch_size", [257, 300, 640, 1100, 1700, 4000])
def test_interpolated_epochs_equal_the_official_checkers(batch_size: int) -> None:
    checker, points = make_checker(NEWEST), reference_points(NEWEST)
    low = checker._find_top_min_rcp(batch_size, "full_rcps")
    high = checker._find_bottom_max_rcp(batch_size, "full_rcps")
    _, record = checker._create_interp_rcp(batch_size, low, high)
    expected = expectation(points, batch_size)
    assert expected.mean_epochs == pytest.approx(record["RCP Mean"], rel=0, abs=1e-12)
    assert expected.basis == f"between {low['BS']} and {high['BS']}" and expected.is_within


def test_expectation_at_and_outside_the_points() -> None:
    points = reference_points("5.1.0")
    at = expectation(points, 1280)
    assert (at.learning_rate, at.basis, at.is_within) == (0.00013, "measured", True)
    below, above = expectation(points, 16), expectation(points, 8192)
    assert below.mean_epochs == points[0].mean_epochs and not below.is_within
    assert above.mean_epochs == points[-1].mean_epochs and not above.is_within
    assert "256" in below.basis and "4096" in above.basis


def test_steps_are_images_over_batch_size() -> None:
    point = replace(reference_points(NEWEST)[0], batch_size=256, epochs=(3.0, 4, 5, 9))
    assert point.mean_epochs == 4.5
    assert expectation([point], 256).steps == round(4.5 * 1_170_301 / 256)


def test_points_table_chart_json_and_settings_of_batch_sizes(
    run_here: RunHere, tmp_path: Path
) -> None:
    chart, numbers = tmp_path / "points.png", tmp_path / "points.json"
    arguments = ("--batch-size", "448", "5000", "--chart", chart, "--json", numbers)
    done = run_here(main, *POINTS, *arguments)
    assert done.returncode == 0 and done.stderr == ""
    assert "4096 │  15.15 │       3.79" in done.stdout and "1024 │" in done.stdout
    assert "batch size 448 (between 320 and 512): 4.70 epochs" in done.stdout
    assert "batch size 5000 (above the largest point, 4096" in done.stdout
    settings = "training.learning_rate=0.0001 training.warmup_epochs=1 training.warmup_factor=0.001"
    assert done.stdout.count(settings) == 2
    content = json.loads(numbers.read_text())
    assert (content["rules"], content["benchmark"]) == ("5.1.0", "retinanet")
    assert [point["batch_size"] for point in content["asked"]] == [448, 5000]
    with Image.open(chart) as picture:
        assert picture.format == "PNG" and picture.width > 800
    before = chart.read_bytes()
    done = run_here(main, *POINTS, "--chart", chart)  # never replaces a file
    assert (done.returncode, done.stdout, chart.read_bytes()) == (2, "", before)
    assert done.stderr.startswith(f"error: {chart}: ") and done.stderr.count("\n") == 1
    oldest = run_here(main, *POINTS, "--rules", "2.1.0").stdout
    assert "1024 │" not in oldest and "1280 │" in oldest


@pytest.mark.parametrize("arguments", [("--batch-size", "0"), ("--rules", "6.1.0"), ("--chart",)])
def test_wrong_option_is_an_error(arguments: tuple[str, ...], run_here: RunHere) -> None:
    done = run_here(main, *POINTS, *arguments)
    assert done.returncode == 2 and arguments[0] in done.stderr
