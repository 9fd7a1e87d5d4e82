"""Ratios with intervals, and the outcome of a comparison."""

from collections.abc import Sequence
from math import comb

import pytest
from scipy.stats import binom  # type: ignore[import-untyped]

from profiling.ablate.analysis import (
    Outcome,
    Ratio,
    compare_variants,
    confidence,
    format_figure,
    left_out_lines,
    paired_ratio,
    still_holds,
)
from profiling.ablate.report import verdict
from tests.profiling.ablate.samples import ablation, result, run

SENTENCES = {"more": "It is more.", "alike": "It is alike.", "less": "It is less."}


def ratio(median: float, low: float, high: float) -> Ratio:
    return Ratio(median, low, high, confidence=0.94, rounds=5)


def of_ratios(values: Sequence[float]) -> Ratio:
    return paired_ratio(values, [1.0] * len(values))


def test_confidence_is_that_of_the_sign_test() -> None:
    for count in range(1, 30):
        for place in range(1, (count + 1) // 2 + 1):
            expected = 1 - 2 * binom.cdf(place - 1, count, 0.5)
            assert confidence(count, place) == pytest.approx(max(0.0, expected))


@pytest.mark.parametrize(
    ("values", "low", "high", "confidence"),
    [
        ([3.0, 1.0, 5.0, 2.0, 4.0], 1, 5, 1 - 2 / 2**5),
        (range(1, 10), 2, 8, 1 - 2 * (1 + comb(9, 1)) / 2**9),
        ([1.3], 1.3, 1.3, 0.0),
        (range(1, 41), 15, 26, 0.9193),
    ],
)
def test_interval_leaves_out_extremes_from_nine_rounds_on(
    values: Sequence[float], low: float, high: float, confidence: float
) -> None:
    assert of_ratios(values)[1:4] == pytest.approx((low, high, confidence), abs=1e-4)


def test_a_ratio_is_taken_round_by_round() -> None:
    # The second round was disturbed, for both alike.
    result = paired_ratio([2.0, 6.0, 2.2], [1.0, 3.0, 1.0])
    assert result.median == 2.0
    assert (result.low, result.high) == (2.0, 2.2)


@pytest.mark.parametrize(
    ("measured", "is_clear"),
    [
        (ratio(1.3, 1.2, 1.4), True),
        (ratio(0.7, 0.6, 0.8), True),
        (ratio(1.3, 0.9, 1.6), False),  # chance could have made it
        (ratio(1.02, 1.01, 1.03), False),  # sure, and next to nothing
    ],
)
def test_clear_difference_is_neither_chance_nor_small(measured: Ratio, is_clear: bool) -> None:
    assert measured.is_clear is is_clear


@pytest.mark.parametrize(
    ("first", "second", "holds"),
    [
        (ratio(1.3, 1.2, 1.4), ratio(1.4, 1.3, 1.5), True),
        (ratio(1.3, 1.2, 1.4), ratio(1.9, 1.8, 2.0), False),  # another size
        (ratio(1.1, 1.06, 1.2), ratio(0.95, 0.9, 1.0), False),  # another sign
        (ratio(1.1, 1.06, 1.2), ratio(1.06, 0.9, 1.2), True),  # the same one, less sure
        (ratio(1.01, 0.99, 1.02), ratio(0.99, 0.97, 1.01), True),  # nothing twice
        (ratio(0.98, 0.96, 1.02), ratio(1.2, 1.1, 1.3), False),  # nothing, then something
        (ratio(1.1, 0.7, 1.3), ratio(0.7, 0.6, 1.2), False),  # neither is sure, and far apart
    ],
)
def test_conclusion_holds_with_equal_sign_and_similar_size(
    first: Ratio, second: Ratio, holds: bool
) -> None:
    assert still_holds(first, second) is holds


def outcome(slow: list[float], quick: list[float], **comparison: object) -> Outcome:
    definition = ablation(comparisons=[{"change": "quick", "baseline": "slow", **comparison}])
    measured = result({"slow": [run(s) for s in slow], "quick": [run(s) for s in quick]})
    return compare_variants(definition, measured)[0]


def test_ratio_depends_on_its_terms() -> None:
    faster = outcome([3.0, 3.3, 3.6], [2.0, 2.2, 2.4])
    assert faster.ratio is not None and faster.ratio.median == pytest.approx(1.5)
    assert faster.what == "quick against slow"
    larger = outcome([3.0, 3.0, 3.0], [6.0, 6.0, 6.3], ratio="times as much")
    assert larger.ratio is not None and larger.ratio.median == 2.0
    share = {"change": "quick", "baseline": "quick", "of": "loss backward", "ratio": "share"}
    definition = ablation(comparisons=[{**share, "baseline_of": "backward"}])
    runs = [run(1.0, loss_backward=0.1, backward=0.4)] * 3
    [part] = compare_variants(definition, result({"slow": runs, "quick": runs}))
    assert verdict(part) == "quick: loss backward as share of backward: 25% (25%–25%)."


@pytest.mark.parametrize(
    ("seconds", "paper", "relation"),
    [
        ([3.0] * 5, 3.0, "alike"),
        ([3.0] * 5, 3.4, "alike"),
        ([3.0] * 5, 2.65, "alike"),
        ([3.0] * 5, 2.4, "more"),
        ([3.0] * 5, 3.6, "less"),
        ([2.8, 2.9, 3.0, 3.1, 3.2], 3.0, "alike"),
        ([0.9, 2.0, 3.1, 3.2, 4.0], 3.0, "unsure"),  # the paper's figure, or none at all
        ([1.5, 1.6, 1.7, 1.8, 4.0], 3.0, "unsure"),  # the interval has it, the median is far off
        ([1.5, 1.6, 1.7, 1.8, 2.0], 3.0, "less"),
    ],
)
def test_sentence_depends_on_the_relation_to_the_paper(
    seconds: list[float], paper: float, relation: str
) -> None:
    measured = outcome(seconds, [1.0] * 5, paper=paper, remark="In any case.", **SENTENCES)
    assert measured.beside_paper == relation
    assert measured.why.endswith(" In any case.")
    assert measured.why.startswith(SENTENCES.get(relation, "The rounds vary too much"))


def test_verdict_has_ratio_interval_and_paper() -> None:
    measured = outcome([3.0, 3.1, 3.2, 3.3, 3.4], [2.0] * 5, paper=1.2, **SENTENCES)
    assert verdict(measured) == (
        "quick against slow: 1.60× as fast (1.50×–1.70×), more than the paper's 1.20×. It is more."
    )
    assert "no difference" in verdict(outcome([2.0, 2.1, 1.9], [2.0, 2.0, 2.0]))


def test_verdict_has_the_reason_of_a_missing_ratio() -> None:
    definition = ablation()
    measured = result({"slow": [run(1.0)] * 2}, left_out={"quick": "takes 8 cores"})
    [missing] = compare_variants(definition, measured)
    assert missing.ratio is None
    assert verdict(missing) == "quick against slow: takes 8 cores."


def test_figures_are_formatted_in_their_terms() -> None:
    assert format_figure(1.298, "times as fast") == "1.30×"
    assert format_figure(12345.6, "times as much") == "12,346×"
    assert [format_figure(part, "share") for part in (0.33, 0.0123)] == ["33%", "1.23%"]


def test_variants_are_grouped_by_reason() -> None:
    reasons = {"a": "few cores", "b": "no IPEX", "c": "few cores"}
    assert left_out_lines(reasons) == [("a, c", "few cores"), ("b", "no IPEX")]
