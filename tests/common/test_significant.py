"""Numbers for people, never as powers of ten unless they are tiny."""

import pytest

from common.console import significant


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (10130.4, 4, "10,130"),
        (9999.7, 4, "10,000"),
        (1_234_567, 6, "1,234,567"),
        (1234.56, 6, "1,234.56"),
        (99.996, 4, "100"),
        (0.25, 4, "0.25"),
        (0.000123456, 4, "0.0001235"),
        (1.2e-7, 4, "1.2e-07"),
        (-10130.4, 4, "-10,130"),
        (0, 4, "0"),
        (float("inf"), 4, "inf"),
        (float("nan"), 4, "nan"),
    ],
)
def test_digits_before_the_point_are_never_dropped(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text
