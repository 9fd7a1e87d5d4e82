"""Numbers as a person reads them."""

import pytest

from profiling.report.page import count, listed, sentence, three, times


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0004, "< 0.001"),
        (0.0123, "0.012"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234567.8, "1,234,568"),
        (-12.34, "-12.3"),
    ],
)
def test_about_three_figures_and_never_an_exponent(value: float, text: str) -> None:
    assert three(value) == text


def test_calls_are_whole_numbers_or_means() -> None:
    assert (count(3.0), count(2.5)) == ("3", "2.50")


def test_words_around_numbers() -> None:
    assert [times(1), times(2.5)] == ["1 call", "2.5 calls"]
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert [sentence("reorders"), sentence("oneDNN")] == ["Reorders.", "oneDNN."]
