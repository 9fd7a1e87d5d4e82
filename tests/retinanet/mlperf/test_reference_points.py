import pytest
from mlperf_logging.rcp_checker.rcp_checker import RCP_Checker

from retinanet.mlperf.rules import (
    NEWEST,
    RULES,
    ReferencePoint,
    Rules,
    benchmark_name,
    expectation,
    reference_points,
)


def checker_of(rules: Rules) -> RCP_Checker:
    return RCP_Checker("training", rules, benchmark_name(rules), verbose=False)


@pytest.mark.parametrize("rules", RULES)
def test_points_have_the_official_checkers_statistics(rules: Rules) -> None:
    points = reference_points(rules)
    records = list(checker_of(rules).rcp_data.values())
    assert [one.batch_size for one in points] == [record["BS"] for record in records]
    assert [one.batch_size for one in points] == sorted({one.batch_size for one in points})
    for one, record in zip(points, records, strict=True):
        assert one.mean_epochs == pytest.approx(record["RCP Mean"], rel=0, abs=1e-12)
        assert one.least_epochs == record["Min Epochs"] <= one.mean_epochs
        assert one.learning_rate == record["Hyperparams"]["opt_base_learning_rate"]


@pytest.mark.parametrize("batch_size", [257, 300, 640, 1100, 1700, 4000])
def test_epochs_between_two_points_are_the_official_checkers(batch_size: int) -> None:
    checker, points = checker_of(NEWEST), reference_points(NEWEST)
    low = checker._find_top_min_rcp(batch_size, "full_rcps")
    high = checker._find_bottom_max_rcp(batch_size, "full_rcps")
    _, record = checker._create_interp_rcp(batch_size, low, high)
    one = expectation(points, batch_size)
    assert one.mean_epochs == pytest.approx(record["RCP Mean"], rel=0, abs=1e-12)
    assert one.basis == f"between {low['BS']} and {high['BS']}" and one.is_within


def test_a_point_and_what_lies_outside_of_all() -> None:
    points = reference_points("5.1.0")
    at = expectation(points, 1280)
    assert (at.learning_rate, at.basis, at.is_within) == (0.00013, "measured", True)
    below, above = expectation(points, 16), expectation(points, 8192)
    assert below.mean_epochs == points[0].mean_epochs and not below.is_within
    assert above.mean_epochs == points[-1].mean_epochs and not above.is_within
    assert "less than 256" in below.basis and "more than 4096" in above.basis


def test_steps_are_images_over_batch_size() -> None:
    points = [
        ReferencePoint(
            batch_size=256,
            learning_rate=1e-4,
            warmup_epochs=1,
            warmup_factor=1e-3,
            epochs=(3.0, 4.0, 5.0, 9.0),
            least_epochs=4,
        )
    ]
    assert points[0].mean_epochs == 4.5
    assert expectation(points, 256).steps == round(4.5 * 1_170_301 / 256)
