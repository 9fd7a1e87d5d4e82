import pytest

from profiling.ablate.analysis import Outcome, by_reason, compare_variants, format_figure
from profiling.ablate.report import verdict
from tests.profiling.ablate.made import ablation, result, run

SENTENCES = {"more": "It is more.", "alike": "It is alike.", "less": "It is less."}


def outcome(slow: list[float], quick: list[float], **comparison: object) -> Outcome:
    one = ablation(comparisons=[{"change": "quick", "baseline": "slow", **comparison}])
    found = result({"slow": [run(s) for s in slow], "quick": [run(s) for s in quick]})
    return compare_variants(one, found)[0]


def test_times_as_fast_is_the_baselines_time_over_the_changes() -> None:
    found = outcome([3.0, 3.3, 3.6], [2.0, 2.2, 2.4])
    assert found.ratio is not None
    assert found.ratio.median == pytest.approx(1.5)
    assert found.what == "quick against slow"


def test_times_as_much_is_the_change_over_the_baseline() -> None:
    found = outcome([3.0, 3.0, 3.0], [6.0, 6.0, 6.3], ratio="times as much")
    assert found.ratio is not None and found.ratio.median == 2.0


def test_a_part_of_one_variant_may_be_held_against_its_whole() -> None:
    one = ablation(
        comparisons=[
            {
                "change": "quick",
                "baseline": "quick",
                "of": "loss backward",
                "baseline_of": "backward",
                "ratio": "share",
            }
        ]
    )
    runs = [run(1.0, loss_backward=0.1, backward=0.4)] * 3
    [found] = compare_variants(one, result({"slow": runs, "quick": runs}))
    assert found.ratio is not None and found.ratio.median == pytest.approx(0.25)
    assert found.what == "quick: loss backward in backward"
    assert verdict(found) == "quick: loss backward in backward: 25% (25%–25%)."


@pytest.mark.parametrize(
    ("paper", "word", "why"),
    [(1.5, "alike", "It is alike."), (1.2, "more", "It is more."), (2.0, "less", "It is less.")],
)
def test_the_sentence_is_the_one_for_how_it_came_out(paper: float, word: str, why: str) -> None:
    found = outcome([3.0] * 5, [2.0] * 5, paper=paper, remark="In any case.", **SENTENCES)
    assert found.beside_paper == word
    assert found.why == f"{why} In any case."


@pytest.mark.parametrize(
    ("seconds", "word"),
    [
        ([2.8, 2.9, 3.0, 3.1, 3.2], "alike"),
        ([0.9, 2.0, 3.1, 3.2, 4.0], "unsure"),  # the paper's figure, or none at all
        ([1.5, 1.6, 1.7, 1.8, 4.0], "unsure"),  # the interval has it, the median is far from it
        ([1.5, 1.6, 1.7, 1.8, 2.0], "less"),
    ],
)
def test_what_scatters_too_much_is_not_called_alike(seconds: list[float], word: str) -> None:
    found = outcome(seconds, [1.0] * 5, paper=3.0, **SENTENCES)
    assert found.beside_paper == word
    assert ("vary too much" in found.why) is (word == "unsure")


def test_a_verdict_says_what_was_found_how_sure_and_what_the_paper_has() -> None:
    found = outcome([3.0, 3.1, 3.2, 3.3, 3.4], [2.0] * 5, paper=1.2, **SENTENCES)
    assert verdict(found) == (
        "quick against slow: 1.60× as fast (1.50×–1.70×), more than the paper's 1.20×. It is more."
    )
    assert "no difference" in verdict(outcome([2.0, 2.1, 1.9], [2.0, 2.0, 2.0]))


def test_what_could_not_run_says_why() -> None:
    one = ablation()
    found = result({"slow": [run(1.0)] * 2}, left_out={"quick": "takes 8 cores"})
    [missing] = compare_variants(one, found)
    assert missing.ratio is None
    assert verdict(missing) == "quick against slow: takes 8 cores."


def test_a_second_run_bears_it_out_or_not() -> None:
    one = ablation()
    first = result({"slow": [run(3.0)] * 5, "quick": [run(2.0)] * 5})
    alike = result({"slow": [run(3.1)] * 5, "quick": [run(2.0)] * 5})
    unlike = result({"slow": [run(1.0)] * 5, "quick": [run(2.0)] * 5})
    assert compare_variants(one, first, alike)[0].holds is True
    assert compare_variants(one, first, unlike)[0].holds is False
    assert compare_variants(one, first)[0].holds is None


def test_figures_are_shown_in_their_terms() -> None:
    assert format_figure(1.298, "times as fast") == "1.30×"
    assert format_figure(12345.6, "times as much") == "12,346×"
    assert format_figure(0.33, "share") == "33%"
    assert format_figure(0.0123, "share") == "1.23%"


def test_reasons_are_told_once() -> None:
    assert by_reason({"a": "few cores", "b": "no IPEX", "c": "few cores"}) == {
        "few cores": ["a", "c"],
        "no IPEX": ["b"],
    }
