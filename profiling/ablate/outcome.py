"""What a measurement says of a comparison, beside what the paper says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from profiling.ablate.ablation import Ablation, ChartChoice, Comparison
from profiling.ablate.result import Result, memory_policy
from profiling.ablate.statistics import Ratio, are_alike, ratio_of, still_holds

PADDING = re.compile(r"\b0+(?=\d)")
"""Of numbers in names of details, which is there for their order."""
NAMED = 6
"""Variants of one reason that are named; the others are counted."""
UNSURE = "The rounds scatter too much to tell; more of them would (`--rounds`)."


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One comparison, measured or not."""

    comparison: Comparison
    ratio: Ratio | None
    """None: could not be measured here."""
    missing: str = ""
    """Why not."""
    again: Ratio | None = None
    """Of a second measurement, where there is one."""

    @property
    def what(self) -> str:
        """Such as `frozen against all-layers` or `frozen against all-layers, forward`."""
        one = self.comparison
        if one.change == one.baseline:
            between = "in" if one.ratio == "share" else "over"
            words = f"{one.change}: {one.of} {between} {one.baseline_of or 'seconds'}"
            return PADDING.sub("", words)
        of = "" if one.of == "seconds" else f", {one.of}"
        return f"{one.change} against {one.baseline}{of}"

    @property
    def holds(self) -> bool | None:
        """Whether a second measurement agrees in sign and rough size; None: there is none."""
        if self.ratio is None or self.again is None:
            return None
        return still_holds(self.ratio, self.again)

    @property
    def beside_paper(self) -> str:
        """`more`, `alike`, `less` or `unsure`; empty where there is nothing to hold it against.

        Unsure is what scatters so much that it could be the paper's figure as well as none at all.
        """
        paper = self.comparison.paper
        if self.ratio is None or paper is None:
            return ""
        interval = self.ratio.interval
        is_near = are_alike(self.ratio.median, paper)
        if not is_near and not interval.low <= paper <= interval.high:
            return "more" if self.ratio.median > paper else "less"
        could_be_none = self.comparison.ratio != "share" and interval.low <= 1 <= interval.high
        return "unsure" if could_be_none or not is_near else "alike"

    @property
    def why(self) -> str:
        """The sentences of the ablation's file that fit what was measured."""
        one = self.comparison
        sentences = {"more": one.more, "alike": one.alike, "less": one.less, "unsure": UNSURE}
        of_paper = sentences.get(self.beside_paper)
        return " ".join(filter(None, (of_paper, one.remark if self.ratio else "")))


def outcomes_of(ablation: Ablation, result: Result, again: Result | None = None) -> list[Outcome]:
    """Every comparison of an ablation; `again`: a second measurement of it."""
    return [
        Outcome(
            comparison=one,
            ratio=measured(one, result),
            missing=missing(one, result),
            again=measured(one, again) if again else None,
        )
        for one in ablation.comparisons
    ]


def measured(one: Comparison, result: Result) -> Ratio | None:
    """The comparison's ratio; None where a side of it was not measured."""
    change = result.values(one.change, one.of)
    baseline = result.values(one.baseline, one.baseline_of or one.of)
    if not change or not baseline or not all((*change, *baseline)):
        return None
    if one.ratio == "times as fast":
        return ratio_of(baseline, change)
    return ratio_of(change, baseline)


def missing(one: Comparison, result: Result) -> str:
    """Why a side could not run here."""
    found = (result.left_out.get(name) for name in (one.change, one.baseline))
    return next(filter(None, found), "not measured yet; give --overwrite")


def shown(value: float, ratio: str) -> str:
    """A figure in the comparison's terms: `1.30×` or `33 %`."""
    if ratio == "share":
        return f"{value:.0%}" if value >= 0.1 else f"{value:.2%}"
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def shown_interval(ratio: Ratio, kind: str) -> str:
    """`1.28×–1.33×`; empty for one round."""
    if ratio.rounds < 2:
        return ""
    return f"{shown(ratio.interval.low, kind)}–{shown(ratio.interval.high, kind)}"


def by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Variants that could not run, by why."""
    found: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        found.setdefault(reason, []).append(name)
    return found


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest, highest."""
    return median(values), min(values), max(values)


class VariantNumbers(NamedTuple):
    """A line of a table of variants."""

    allocator: str
    values: list[float]
    """Of the drawn quantity, by round."""
    page_faults: float | None
    """Median of a run; None for jobs, of which neither this nor the memory is known."""
    peak_mb: float | None
    """Largest of all runs. [MB]"""


def numbers_of(result: Result, name: str, *, quantity: str) -> VariantNumbers:
    """What a variant has shown."""
    variant = result.definition["variants"][name]
    peak = max(result.values(name, "peak_rss_mb")) or None
    return VariantNumbers(
        allocator=memory_policy(variant),
        values=result.values(name, quantity),
        page_faults=median(result.values(name, "page_faults")) if peak else None,
        peak_mb=peak,
    )


def drawn_quantity(result: Result, choice: ChartChoice) -> tuple[str, str]:
    """What a table of variants shows, and its unit: what the chart draws, if that is one number."""
    first = next(iter(result.definition["variants"]))
    if choice.of != "seconds" and result.values(first, choice.of):
        return choice.of, choice.of
    return "seconds", "s"
