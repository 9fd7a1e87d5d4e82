"""Comparisons as measured, beside the paper's figures.

From the bottom up: ratios of paired runs and how sure they are, the outcome of a comparison, the
numbers of a variant, and the study: all ablations with their results, of which reports are made.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, log
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from common.charts import Cell
from profiling.ablate.definition import Ablation, Ablations, ChartChoice, Comparison, SizeName
from profiling.ablate.result import (
    Result,
    default_folder,
    measure_command,
    memory_policy,
    read_result,
    result_file,
)

PADDING = re.compile(r"\b0+(?=\d)")
"""Zeros before numbers in names of details, which are there for their order."""
QUANTITY_LABELS = {
    "seconds": "total time",
    "images a second": "images per second",
    "exact": "exact value",
}
"""Quantities whose label in reports is not their name in result files."""
NAMED = 6  # Variants of one reason that are named; the others are counted
T = TypeVar("T")
UNSURE = "The rounds vary too much for a conclusion; measure more of them (`--rounds`)."


NOTHING = 0.05  # A ratio nearer to 1 than this is called no difference
ALIKE = 1.15  # Two ratios within this factor are called about the same
HOLDS = 1.25  # A second measurement within this factor of the first has the same rough size
WANTED_CONFIDENCE = 0.9


@dataclass(frozen=True)
class Interval:
    """A range in which the true median lies with a confidence from 0 (one run alone) to 1."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Ratio:
    """A median of ratios, round by round."""

    median: float
    interval: Interval
    rounds: int

    @property
    def may_be_none(self) -> bool:
        """Whether the interval holds 1."""
        return self.interval.low <= 1 <= self.interval.high

    @property
    def is_clear(self) -> bool:
        """Whether the difference exceeds rounding and its interval excludes 1."""
        return abs(self.median - 1) >= NOTHING and not self.may_be_none


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Compare round by round, so that a disturbance of the machine affects both sides."""
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    return Ratio(median(ratios), interval_of_median(ratios), len(ratios))


def interval_of_median(values: Sequence[float]) -> Interval:
    """Return the narrowest range between two values that holds the median with 90 % confidence.

    It follows from the sign test, without assumptions on the distribution: the median is between
    the k-th smallest and the k-th largest value unless k - 1 or fewer are on one side of it. For
    4 or fewer values, which are too few for 90 %, it is the range of all values.
    """
    ordered = sorted(values)
    count = len(ordered)
    best = Interval(ordered[0], ordered[-1], confidence(count, 1))
    for place in range(2, (count + 1) // 2 + 1):
        # Confidence falls with the place: the first range that is too narrow ends the search.
        if confidence(count, place) < WANTED_CONFIDENCE:
            break
        best = Interval(ordered[place - 1], ordered[count - place], confidence(count, place))
    return best


def confidence(count: int, place: int) -> float:
    """Return the confidence of the range from the place-th smallest to the place-th largest."""
    outside = sum(comb(count, below) for below in range(place))
    # In the sign test, a value is as likely above the true median as below.
    return max(0.0, 1 - 2 * outside / 2**count)


def are_alike(ratio: float, other: float, *, factor: float = ALIKE) -> bool:
    """Return whether two ratios are within a factor of each other."""
    # In logarithms, so that twice and half as much are equally far away.
    return abs(log(ratio / other)) <= log(factor)


def still_holds(first: Ratio, second: Ratio) -> bool:
    """Return whether a second measurement has the sign and the approximate size of the first.

    If neither finds a difference, the signs are not compared.
    """
    neither = not first.is_clear and not second.is_clear
    same_sign = neither or (first.median > 1) == (second.median > 1)
    return same_sign and are_alike(first.median, second.median, factor=HOLDS)


def quantity_label(quantity: str) -> str:
    """Return the label of a quantity in reports."""
    label = PADDING.sub("", QUANTITY_LABELS.get(quantity, quantity))
    return label.replace("epochs at ", "epochs at batch size ")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One comparison, measured or not."""

    comparison: Comparison
    ratio: Ratio | None  # None: could not be measured here
    missing: str = ""  # Why it has no ratio
    again: Ratio | None = None  # The ratio of a second measurement, where there is one

    @property
    def what(self) -> str:
        """The title: `frozen against all-layers`, or `frozen against all-layers, forward`."""
        comparison = self.comparison
        change, baseline, quantity = comparison.change, comparison.baseline, comparison.of
        label = quantity_label(quantity)
        if change == baseline:
            between = "as share of" if comparison.ratio == "share" else "over"
            return (
                f"{change}: {label} {between} {quantity_label(comparison.baseline_of or 'seconds')}"
            )
        return f"{change} against {baseline}{'' if quantity == 'seconds' else f', {label}'}"

    @property
    def holds(self) -> bool | None:
        """Whether a second measurement agrees in sign and approximate size; None without one."""
        if self.ratio is None or self.again is None:
            return None
        return still_holds(self.ratio, self.again)

    @property
    def beside_paper(self) -> str:
        """`more`, `alike`, `less` or `unsure`; empty where there is nothing to compare.

        `unsure`: the interval contains both the paper's figure and no difference at all.
        """
        ratio, paper = self.ratio, self.comparison.paper
        if ratio is None or paper is None:
            return ""
        is_near = are_alike(ratio.median, paper)
        if not is_near and not ratio.interval.low <= paper <= ratio.interval.high:
            return "more" if ratio.median > paper else "less"
        # For a share, 1 is the whole run and not equality.
        could_be_none = self.comparison.ratio != "share" and ratio.may_be_none
        return "unsure" if could_be_none or not is_near else "alike"

    @property
    def why(self) -> str:
        """The explanations in the ablation's file that match the measurement."""
        texts = self.comparison
        sentences = {"more": texts.more, "alike": texts.alike, "less": texts.less, "unsure": UNSURE}
        of_paper = sentences.get(self.beside_paper)
        return " ".join(filter(None, (of_paper, texts.remark if self.ratio else "")))

    def cells(self) -> list[Cell]:
        """Return the cells: comparison, our ratio, its interval, the paper's, and the unit."""
        terms, paper = self.comparison.ratio, self.comparison.paper
        return [
            Cell(self.what),
            ratio_cell(self.ratio, terms, otherwise="–"),
            Cell(format_interval(self.ratio, terms) if self.ratio else ""),
            Cell(format_figure(paper, terms), paper) if paper else Cell(""),
            Cell(terms if self.ratio else "not measured"),
        ]


def compare_variants(
    ablation: Ablation, result: Result, again: Result | None = None
) -> list[Outcome]:
    """Return the outcome of each comparison; `again`: a second measurement of the ablation."""
    outcomes = []
    for comparison in ablation.comparisons:
        reasons = map(result.left_out.get, (comparison.change, comparison.baseline))
        outcomes.append(
            Outcome(
                comparison=comparison,
                ratio=measured(comparison, result),
                missing=next(filter(None, reasons), "not measured yet; use --overwrite"),
                again=measured(comparison, again) if again else None,
            )
        )
    return outcomes


def measured(comparison: Comparison, result: Result) -> Ratio | None:
    """Return the comparison's ratio; None where a side of it was not measured."""
    change = result.values(comparison.change, comparison.of)
    baseline = result.values(comparison.baseline, comparison.baseline_of or comparison.of)
    # A part that took no time, such as a phase that did not run, has no ratio.
    if not change or not baseline or not all((*change, *baseline)):
        return None
    if comparison.ratio == "times as fast":
        return paired_ratio(baseline, change)
    return paired_ratio(change, baseline)


def format_figure(value: float, terms: str) -> str:
    """Return a figure in the comparison's terms: `1.30×` or `33 %`."""
    if terms == "share":
        return f"{value:.0%}" if value >= 0.1 else f"{value:.2%}"
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def format_interval(ratio: Ratio, terms: str) -> str:
    """Return `1.28×–1.33×`; empty for one round."""
    if ratio.rounds < 2:
        return ""
    return f"{format_figure(ratio.interval.low, terms)}–{format_figure(ratio.interval.high, terms)}"


def ratio_cell(ratio: Ratio | None, terms: str, *, otherwise: str = "") -> Cell:
    """Return a median in its terms."""
    return Cell(format_figure(ratio.median, terms), ratio.median) if ratio else Cell(otherwise)


def by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """Return variants that could not run, by reason."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason, []).append(name)
    return names


class VariantNumbers(NamedTuple):
    """A row of a table of variants."""

    name: str
    torch: str | None  # Its version, where variants differ in it
    allocator: str
    values: list[float]  # The drawn quantity, by round
    page_faults: float | None
    """Median of a run; None for jobs, of which neither this nor the memory is known."""
    peak_mb: float | None  # Largest of all runs. [MB]


def variant_numbers(result: Result, choice: ChartChoice) -> tuple[str, list[VariantNumbers]]:
    """Return the unit of what the chart draws (seconds if that is no number), and all variants."""
    variants = result.definition["variants"]
    quantity, unit = "seconds", "s"
    if choice.of != "seconds" and result.values(next(iter(variants)), choice.of):
        quantity, unit = choice.of, quantity_label(choice.of)
    rows = []
    torch_versions = result.torch_versions
    for name, variant in variants.items():
        # Jobs have 0 here: their ranks' memory is not known.
        peak = max(result.values(name, "peak_rss_mb")) or None
        faults = median(result.values(name, "page_faults")) if peak else None
        values = result.values(name, quantity)
        torch, policy = torch_versions.get(name), memory_policy(variant)
        rows.append(VariantNumbers(name, torch, policy, values, faults, peak))
    return unit, rows


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ablation of a study."""

    name: str
    ablation: Ablation
    result: Result | None  # None: was not measured yet
    outcomes: Sequence[Outcome]
    command: str  # The command that measures it
    has_other_again: bool = False
    """Whether the second run has another definition, and so cannot be compared."""

    @property
    def is_measured(self) -> bool:
        """Whether there is something to draw."""
        return self.result is not None and bool(self.result.rounds)

    def allocators(self, outcome: Outcome) -> str:
        """Return the memory policies of a comparison's sides: one where both have the same."""
        variants = self.result.definition["variants"] if self.result else {}
        sides = (outcome.comparison.change, outcome.comparison.baseline)
        policies = [memory_policy(variants[name]) for name in sides if name in variants]
        return "; ".join(dict.fromkeys(policies))

    @property
    def state(self) -> str:
        """The reason why numbers are missing; empty if none are."""
        if self.result is None:
            return "not measured yet"
        if not self.result.is_complete:
            return f"{len(self.result.rounds)} of {self.result.rounds_wanted} rounds measured"
        return ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """All ablations, in order."""

    rows: Sequence[Row]

    @property
    def results(self) -> list[Result]:
        """The existing results."""
        return [row.result for row in self.rows if row.result is not None]


def read_study(ablations: Ablations, folder: Path, again: Path | None, *, size: SizeName) -> Study:
    """Read the results in a folder, and those of a second run.

    Raises:
        InputError: A file is not a result.
    """
    # Commands in the report name the folder only if it is not the default.
    out = None if folder == default_folder(size) else folder
    rows = []
    for name, ablation in ablations.items():
        source = ablation.runs_of or name
        results = [
            read_result(result_file(place, source))
            if place and result_file(place, source).exists()
            else None
            for place in (folder, again)
        ]
        command = measure_command(source, size, out=out, photos=None)
        rows.append(make_row(name, ablation, *results, command=command))
    return Study(rows=rows)


def make_row(
    name: str, ablation: Ablation, result: Result | None, again: Result | None, *, command: str
) -> Row:
    """Return an ablation with its measurements; a second run counts only if it is of the same."""
    result, again = select_variants(result, ablation), select_variants(again, ablation)
    # A run of another definition may have other options: its ratios cannot confirm these.
    is_other = again is not None and result is not None and again.definition != result.definition
    outcomes = [
        Outcome(comparison=comparison, ratio=None, missing="not measured yet")
        for comparison in ablation.comparisons
    ]
    if result:
        outcomes = compare_variants(ablation, result, None if is_other else again)
    return Row(
        name=name,
        ablation=ablation,
        result=result,
        outcomes=outcomes,
        command=command,
        has_other_again=is_other,
    )


def select_variants(result: Result | None, ablation: Ablation) -> Result | None:
    """Return the part of a result that belongs to the ablation's variants."""
    if result is None:
        return None

    def select(by_name: Mapping[str, T]) -> dict[str, T]:
        return {name: value for name, value in by_name.items() if name in ablation.variants}

    return replace(
        result,
        definition={**result.definition, "variants": select(result.definition["variants"])},
        left_out=select(result.left_out),
        rounds=tuple(map(select, result.rounds)),
    )


def describe_machine(results: Sequence[Result]) -> dict[str, str]:
    """Describe the machine and the packages of the results; all values if they differ."""
    values: dict[str, dict[str, None]] = {}
    for result in results:
        for name, value in result.environment.items():
            values.setdefault(name, {})[str(value)] = None
    return {name: "; ".join(texts) for name, texts in values.items()}
