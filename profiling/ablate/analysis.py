"""What measurements say of comparisons, beside what the paper says.

From the bottom up: ratios of paired runs and how sure they are, the outcome of a comparison, the
numbers of a variant, and the study: all ablations with their results, of which reports are made.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, log
from pathlib import Path
from statistics import median
from typing import NamedTuple

from profiling.ablate.definition import Ablation, Ablations, ChartChoice, Comparison, SizeName
from profiling.ablate.result import (
    Result,
    command_of,
    default_folder,
    memory_policy,
    read_result,
    result_file,
)

PADDING = re.compile(r"\b0+(?=\d)")
"""Of numbers in names of details, which is there for their order."""
NAMED = 6
"""Variants of one reason that are named; the others are counted."""
UNSURE = "The rounds scatter too much to tell; more of them would (`--rounds`)."


@dataclass(frozen=True)
class Interval:
    """A range in which the true median lies with some confidence."""

    low: float
    high: float
    confidence: float
    """From 0 to 1; 0 where there is one run alone."""


@dataclass(frozen=True)
class Ratio:
    """A median of ratios, round by round."""

    median: float
    interval: Interval
    rounds: int

    @property
    def is_clear(self) -> bool:
        """Whether it is a difference at all, and not one that chance could make."""
        return abs(self.median - 1) >= NOTHING and not (
            self.interval.low <= 1 <= self.interval.high
        )


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
        """Return such as `frozen against all-layers` or `frozen against all-layers, forward`."""
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
        """Return `more`, `alike`, `less` or `unsure`; empty where there is nothing to compare.

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
        """Return the sentences of the ablation's file that fit what was measured."""
        one = self.comparison
        sentences = {"more": one.more, "alike": one.alike, "less": one.less, "unsure": UNSURE}
        of_paper = sentences.get(self.beside_paper)
        return " ".join(filter(None, (of_paper, one.remark if self.ratio else "")))


def outcomes_of(ablation: Ablation, result: Result, again: Result | None = None) -> list[Outcome]:
    """Return every comparison of an ablation; `again`: a second measurement of it."""
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
    """Return the comparison's ratio; None where a side of it was not measured."""
    change = result.values(one.change, one.of)
    baseline = result.values(one.baseline, one.baseline_of or one.of)
    if not change or not baseline or not all((*change, *baseline)):
        return None
    if one.ratio == "times as fast":
        return ratio_of(baseline, change)
    return ratio_of(change, baseline)


def missing(one: Comparison, result: Result) -> str:
    """Return why a side could not run here."""
    found = (result.left_out.get(name) for name in (one.change, one.baseline))
    return next(filter(None, found), "not measured yet; give --overwrite")


def shown(value: float, ratio: str) -> str:
    """Return a figure in the comparison's terms: `1.30×` or `33 %`."""
    if ratio == "share":
        return f"{value:.0%}" if value >= 0.1 else f"{value:.2%}"
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def shown_interval(ratio: Ratio, kind: str) -> str:
    """Return `1.28×–1.33×`; empty for one round."""
    if ratio.rounds < 2:
        return ""
    return f"{shown(ratio.interval.low, kind)}–{shown(ratio.interval.high, kind)}"


def by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Return variants that could not run, by reason."""
    found: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        found.setdefault(reason, []).append(name)
    return found


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return median, lowest, highest."""
    return median(values), min(values), max(values)


class VariantNumbers(NamedTuple):
    """What a table of variants has of one."""

    allocator: str
    values: list[float]
    """Of the drawn quantity, by round."""
    page_faults: float | None
    """Median of a run; None for jobs, of which neither this nor the memory is known."""
    peak_mb: float | None
    """Largest of all runs. [MB]"""


def numbers_of(result: Result, name: str, *, quantity: str) -> VariantNumbers:
    """Return what was measured of a variant."""
    variant = result.definition["variants"][name]
    peak = max(result.values(name, "peak_rss_mb")) or None
    return VariantNumbers(
        allocator=memory_policy(variant),
        values=result.values(name, quantity),
        page_faults=median(result.values(name, "page_faults")) if peak else None,
        peak_mb=peak,
    )


def drawn_quantity(result: Result, choice: ChartChoice) -> tuple[str, str]:
    """Return what a table of variants shows, and its unit: what the chart draws, if one number."""
    first = next(iter(result.definition["variants"]))
    if choice.of != "seconds" and result.values(first, choice.of):
        return choice.of, choice.of
    return "seconds", "s"


NOTHING = 0.05
"""A ratio nearer to 1 than this is called no difference."""
ALIKE = 1.15
"""Two ratios within this factor are called about the same."""
HOLDS = 1.25
"""A second measurement within this factor of the first has the same rough size."""
WANTED_CONFIDENCE = 0.9


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Compare round by round, so that a disturbance of the machine affects both sides."""
    ratios = [one / other for one, other in zip(numerators, denominators, strict=True)]
    return Ratio(median(ratios), interval_of_median(ratios), len(ratios))


def interval_of_median(values: Sequence[float]) -> Interval:
    """Return the narrowest range between two values that holds the median with 90 % confidence.

    From the sign test, which assumes nothing of how values scatter: among n values the median lies
    between the k-th smallest and the k-th largest unless k - 1 or fewer lie on one side of it. With
    so few values that no range is that sure (4 or fewer), it is the smallest and the largest.
    """
    ordered = sorted(values)
    count = len(ordered)
    best = Interval(ordered[0], ordered[-1], confidence(count, 1))
    for place in range(2, (count + 1) // 2 + 1):
        if confidence(count, place) < WANTED_CONFIDENCE:
            break
        best = Interval(ordered[place - 1], ordered[count - place], confidence(count, place))
    return best


def confidence(count: int, place: int) -> float:
    """Return the confidence of the range from the place-th smallest to the place-th largest."""
    outside = sum(comb(count, below) for below in range(place))
    return max(0.0, 1 - 2 * outside / 2**count)


def are_alike(one: float, other: float, *, factor: float = ALIKE) -> bool:
    """Whether two ratios are within a factor of each other."""
    return abs(log(one / other)) <= log(factor)


def still_holds(first: Ratio, second: Ratio) -> bool:
    """Whether a second measurement has the sign of the first, and its rough size.

    Where neither finds a difference there is no sign that could be another.
    """
    neither = not first.is_clear and not second.is_clear
    same_sign = neither or (first.median > 1) == (second.median > 1)
    return same_sign and are_alike(first.median, second.median, factor=HOLDS)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ablation of a study."""

    name: str
    ablation: Ablation
    result: Result | None
    """None: was not measured yet."""
    outcomes: Sequence[Outcome]
    command: str
    """That measures it."""
    has_other_again: bool = False
    """Whether there is a second run of another definition, which says nothing of this one."""

    @property
    def is_measured(self) -> bool:
        """Whether there is something to draw."""
        return self.result is not None and bool(self.result.rounds)

    def allocators_of(self, one: Outcome) -> str:
        """Return the memory policies of a comparison's sides: one where both have the same."""
        variants = self.result.definition["variants"] if self.result else {}
        sides = (one.comparison.change, one.comparison.baseline)
        found = [memory_policy(variants[name]) for name in sides if name in variants]
        return "; ".join(dict.fromkeys(found))

    @property
    def state(self) -> str:
        """Return why numbers are missing; empty where none are."""
        if self.result is None:
            return "not measured yet"
        if not self.result.is_complete:
            return f"{len(self.result.rounds)} of {self.result.rounds_wanted} rounds so far"
        return ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """All ablations, in order."""

    rows: Sequence[Row]

    @property
    def results(self) -> list[Result]:
        """Return the results that there are."""
        return [row.result for row in self.rows if row.result is not None]

    @property
    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of all rows."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    @property
    def left_out(self) -> dict[str, list[str]]:
        """Return what could not run, as `ablation: variant`, by reason."""
        return by_reason(
            {
                f"{row.name}: {variant}": reason
                for row in self.rows
                for variant, reason in (row.result.left_out if row.result else {}).items()
            }
        )


def read_study(ablations: Ablations, folder: Path, again: Path | None, *, size: SizeName) -> Study:
    """Read what there is in a folder of results, and in that of a second run.

    Raises:
        InputError: A file is not a result.
    """
    out = None if folder == default_folder(size) else folder
    return Study(
        rows=[
            row_of(
                name,
                ablation,
                result_if_there(folder, measured),
                result_if_there(again, measured) if again else None,
                command=command_of(measured, size, out=out, photos=None),
            )
            for name, ablation in ablations.items()
            for measured in [ablation.runs_of or name]
        ]
    )


def row_of(
    name: str,
    ablation: Ablation,
    result: Result | None,
    again: Result | None,
    *,
    command: str,
) -> Row:
    """Return an ablation with its measurements; a second run counts only if it is of the same."""
    result, again = of_variants(result, ablation), of_variants(again, ablation)
    is_other = again is not None and result is not None and again.definition != result.definition
    again = None if is_other else again
    outcomes: Sequence[Outcome] = (
        outcomes_of(ablation, result, again)
        if result
        else [
            Outcome(comparison=one, ratio=None, missing="not measured yet")
            for one in ablation.comparisons
        ]
    )
    return Row(
        name=name,
        ablation=ablation,
        result=result,
        outcomes=outcomes,
        command=command,
        has_other_again=is_other,
    )


def of_variants(result: Result | None, ablation: Ablation) -> Result | None:
    """Return the part of a result that is of an ablation's own variants."""
    if result is None:
        return None
    own = ablation.variants
    variants = {name: one for name, one in result.definition["variants"].items() if name in own}
    return replace(
        result,
        definition={**result.definition, "variants": variants},
        left_out={name: why for name, why in result.left_out.items() if name in own},
        rounds=tuple(
            {name: run for name, run in of_round.items() if name in own}
            for of_round in result.rounds
        ),
    )


def result_if_there(folder: Path, name: str) -> Result | None:
    """Read an ablation's result, if it was measured."""
    file = result_file(folder, name)
    return read_result(file) if file.exists() else None


def machine_of(results: Sequence[Result]) -> Mapping[str, str]:
    """Return what the results were measured on and with; where they differ, all of it."""
    found: dict[str, list[str]] = {}
    for result in results:
        for name, value in result.environment.items():
            values = found.setdefault(name, [])
            if str(value) not in values:
                values.append(str(value))
    return {name: "; ".join(values) for name, values in found.items()}
