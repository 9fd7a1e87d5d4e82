import pytest

from retinanet.config_types import Interval, interval_of, is_interval


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
def test_times_steps_and_epochs(text: str, expected: Interval) -> None:
    assert is_interval(text) and interval_of(text) == expected


@pytest.mark.parametrize(
    "text", ["", "steps", "min", "0 steps", "-1h", "1.5h", "30", "30 m", "epoch 2", "9" * 20 + "s"]
)
def test_anything_else_is_refused(text: str) -> None:
    assert not is_interval(text)
