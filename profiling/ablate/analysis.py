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

from common.charts import Cell, Column, Table, text_column
from common.console import significant, three_digits
from common.wording import listed
from profiling.ablate.definition import Ablation, Ablations, Comparison
from profiling.ablate.result import Place, Result, memory_policy, read_result
from profiling.sums import grouped

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


class Ratio(NamedTuple):
    """A median of ratios, round by round, and a range in which the true median lies."""

    median: float
    low: float
    high: float
    confidence: float  # Of the range, from 0 (one run alone) to 1
    rounds: int

    @property
    def may_be_none(self) -> bool:
        """Whether the interval holds 1."""
        return self.low <= 1 <= self.high

    @property
    def is_clear(self) -> bool:
        """Whether the difference exceeds rounding and its interval excludes 1."""
        return abs(self.median - 1) >= NOTHING and not self.may_be_none


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Compare round by round, so that a disturbance of the machine affects both sides.

    The interval is the narrowest range between two ratios that holds the median with 90 %
    confidence. It follows from the sign test, without assumptions on the distribution: the median
    is between the k-th smallest and the k-th largest value unless k - 1 or fewer are on one side of
    it. For 4 or fewer ratios, which are too few for 90 %, it is the range of all.
    """
    ratios = sorted(above / below for above, below in zip(numerators, denominators, strict=True))
    count, place = len(ratios), 1
    # Confidence falls with the place.
    while place < (count + 1) // 2 and confidence(count, place + 1) >= WANTED_CONFIDENCE:
        place += 1
    ends = ratios[place - 1], ratios[count - place]
    return Ratio(median(ratios), *ends, confidence(count, place), count)


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
        if not is_near and not ratio.low <= paper <= ratio.high:
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


OUTCOME_COLUMNS = (
    text_column("comparison"),
    Column("measured", meaning="median of the ratios of all rounds"),
    text_column("interval"),
    Column("paper"),
    text_column("unit", meaning="unit of the measured ratio and the paper's", no_wrap=True),
)
"""The columns of `Outcome.cells`."""


def compare_variants(
    ablation: Ablation, result: Result | None, again: Result | None = None
) -> list[Outcome]:
    """Return the outcome of each comparison; `again`: a second measurement of the ablation."""
    left_out = result.left_out if result else {}
    missing = "not measured yet; use --overwrite" if result else "not measured yet"
    return [
        Outcome(
            comparison=comparison,
            ratio=measured(comparison, result) if result else None,
            missing=left_out.get(comparison.change) or left_out.get(comparison.baseline) or missing,
            again=measured(comparison, again) if again else None,
        )
        for comparison in ablation.comparisons
    ]


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
    return f"{format_figure(ratio.low, terms)}–{format_figure(ratio.high, terms)}"


def ratio_cell(ratio: Ratio | None, terms: str, *, otherwise: str = "") -> Cell:
    """Return a median in its terms."""
    return Cell(format_figure(ratio.median, terms), ratio.median) if ratio else Cell(otherwise)


def left_out_lines(left_out: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variants that could not run, the first by name, and the reason, by reason."""
    names = grouped(left_out, left_out.__getitem__)
    return [(listed(of_reason, NAMED), reason) for reason, of_reason in names.items()]


def variants_table(ablation: Ablation, result: Result, *, for_page: bool) -> Table:
    """Return a row for each variant that ran: the drawn quantity, page faults and memory.

    The quantity is in seconds if what the chart draws is no number. A page also has descriptions.
    """
    variants, choice = result.definition["variants"], ablation.chart
    quantity, unit = "seconds", "s"
    if choice.of != "seconds" and result.values(next(iter(variants)), choice.of):
        quantity, unit = choice.of, quantity_label(choice.of)
    number = three_digits if for_page else significant
    columns = {
        "variant": text_column("variant"),
        "description": text_column("description"),
        "torch": text_column("torch"),
        "allocator": text_column("allocator"),
        "median": Column(f"median {unit}", number),
        **{name: Column(name, number) for name in ("lowest", "highest")},
        "spread": Column("lowest–highest"),
        **{name: Column(name, ",.0f") for name in ("page faults", "peak MB", "rounds")},
    }
    hidden = {"spread"} if for_page else {"description", "lowest", "highest", "rounds"}
    if not result.torch_versions:
        hidden |= {"torch"}
    rows = []
    for name, variant in variants.items():
        values = result.values(name, quantity)
        # Jobs have 0 here: neither their ranks' memory nor their page faults are known.
        peak = max(result.values(name, "peak_rss_mb")) or None
        row = {
            "variant": name,
            "description": ablation.variants[name].about,
            "torch": result.torch_versions.get(name),
            "allocator": memory_policy(variant),
            "median": median(values),
            "lowest": min(values),
            "highest": max(values),
            "spread": f"{significant(min(values))}–{significant(max(values))}",
            "page faults": median(result.values(name, "page_faults")) if peak else None,
            "peak MB": peak,
            "rounds": len(values),
        }
        rows.append([row[key] for key in columns if key not in hidden])
    shown = [column for key, column in columns.items() if key not in hidden]
    notes = [f"Not run: {names}: {reason}." for names, reason in left_out_lines(result.left_out)]
    return Table("Variants" if for_page else "", shown, rows, notes=notes)


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


def read_study(ablations: Ablations, place: Place, again: Path) -> list[Row]:
    """Return a row for each ablation, in order; `again` is the folder of a second run.

    Raises:
        InputError: A file is not a result.
    """
    # Commands in the report name the folder only if it is not the default.
    if place.out == Place(quick=place.quick).folder:
        place = Place(quick=place.quick)
    files = (place.file, Place(quick=place.quick, out=again).file)
    rows = []
    for name, ablation in ablations.items():
        source = ablation.runs_of or name
        first, second = (
            read_result(file(source)) if file(source).exists() else None for file in files
        )
        rows.append(make_row(name, ablation, first, second, command=place.command("run", source)))
    return rows


def make_row(
    name: str, ablation: Ablation, result: Result | None, again: Result | None, *, command: str
) -> Row:
    """Return an ablation with its measurements; a second run counts only if it is of the same."""
    result, again = select_variants(result, ablation), select_variants(again, ablation)
    # A run of another definition may have other options: its ratios cannot confirm these.
    is_other = again is not None and result is not None and again.definition != result.definition
    return Row(
        name=name,
        ablation=ablation,
        result=result,
        outcomes=compare_variants(ablation, result, None if is_other else again),
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
