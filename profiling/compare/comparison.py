"""Two logs, matched by what was asked of oneDNN.

TODO-DOC One of the two logs that are compared.

TODO-DOC A comparison as a person reads it on a terminal.

TODO-DOC The chart of a comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.charts import new_figure
from common.console import say, significant
from common.errors import InputError, printable
from profiling.onednn_log.log import Calls, OneDnnLog
from profiling.onednn_log.work import Problem, direction_name, product_sizes


@dataclass(slots=True)
class Answers:
    """What one side did of one question."""

    calls: float = 0.0
    """A step, where steps are compared."""
    ms: float = 0.0
    implementations: list[str] = field(default_factory=list)
    layouts: list[str] = field(default_factory=list)

    @property
    def mean_ms(self) -> float:
        """Milliseconds a call; 0 without calls."""
        return self.ms / self.calls if self.calls else 0.0

    def add(self, calls: Calls, *, divisor: int, implementation: str, layouts: str) -> None:
        """Take in one way in which the question was answered."""
        self.calls += calls.count / divisor
        self.ms += calls.total_ms / divisor
        if implementation not in self.implementations:
            self.implementations.append(implementation)
        if layouts not in self.layouts:
            self.layouts.append(layouts)


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of oneDNN; not how it was done, and not for training or inference."""

    kind: str
    direction: str
    """`forward`, `backward data`, …; empty where a kind has none."""
    shape: str
    types: str
    """Empty where types do not matter."""
    algorithm: str


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, and what both sides did of it."""

    question: Question
    first: Answers
    second: Answers

    @property
    def difference_ms(self) -> float:
        """By how much the first is slower."""
        return self.first.ms - self.second.ms

    @property
    def ratio(self) -> float | None:
        """The first's time over the second's; None where the second has none."""
        return self.first.ms / self.second.ms if self.second.ms else None

    @property
    def extra_calls(self) -> float:
        """Calls that the first makes and the second does not; below zero the other way round."""
        return self.first.calls - self.second.calls

    @property
    def extra_ms(self) -> float:
        """What those calls cost whoever makes them."""
        side = self.first if self.extra_calls > 0 else self.second
        return abs(self.extra_calls) * side.mean_ms

    @property
    def cost_ms(self) -> float:
        """The time of whoever is slower."""
        return max(self.first.ms, self.second.ms)


@dataclass(frozen=True)
class Side:
    """A log, or the logs of a run's ranks."""

    name: str
    log: OneDnnLog
    calls: Mapping[Problem, Calls]
    divisor: int
    """Calls and times are divided by it: steps that the log has, over all ranks; else 1."""


@dataclass(frozen=True)
class Comparison:
    """Everything that was matched."""

    first: Side
    second: Side
    pairs: Sequence[Pair]
    is_by_step: bool
    """Whether calls and times are those of a step."""

    @property
    def only_one(self) -> list[Pair]:
        """Questions of which one side makes more calls, the costliest extra calls first."""
        found = [pair for pair in self.pairs if abs(pair.extra_calls) > 1e-9]
        return sorted(found, key=lambda pair: -pair.extra_ms)

    @property
    def both(self) -> list[Pair]:
        """Questions that both sides ask equally often, the costliest first."""
        found = [pair for pair in self.pairs if abs(pair.extra_calls) <= 1e-9]
        return sorted(found, key=lambda pair: -pair.cost_ms)


def compare(first: Side, second: Side, *, with_types: bool, is_by_step: bool) -> Comparison:
    """Match two sides, question by question."""
    found: dict[Question, tuple[Answers, Answers]] = {}
    for place, side in enumerate((first, second)):
        for problem, calls in side.calls.items():
            question = question_of(problem, with_types=with_types)
            answers = found.setdefault(question, (Answers(), Answers()))[place]
            answers.add(
                calls,
                divisor=side.divisor,
                implementation=problem.implementation,
                layouts=problem.layouts,
            )
    pairs = [Pair(question, *answers) for question, answers in found.items()]
    return Comparison(first, second, pairs, is_by_step=is_by_step)


@dataclass(frozen=True, slots=True)
class KindPair:
    """All questions of a kind and direction."""

    kind: str
    direction: str
    first_calls: float
    second_calls: float
    first_ms: float
    second_ms: float

    @property
    def name(self) -> str:
        """`convolution backward data`."""
        return f"{self.kind} {self.direction}".strip()


def kinds_of(pairs: Sequence[Pair]) -> list[KindPair]:
    """Sums by kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.question.kind, pair.question.direction), []).append(pair)
    found = [
        KindPair(
            kind,
            direction,
            first_calls=sum(pair.first.calls for pair in some),
            second_calls=sum(pair.second.calls for pair in some),
            first_ms=sum(pair.first.ms for pair in some),
            second_ms=sum(pair.second.ms for pair in some),
        )
        for (kind, direction), some in groups.items()
    ]
    return sorted(found, key=lambda one: -max(one.first_ms, one.second_ms))


def files_of(path: Path) -> list[Path]:
    """A log, or all logs of a folder, such as `runs/coco/onednn`.

    Raises:
        InputError: The folder has none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith((".log", ".log.gz")))
    if not files:
        raise InputError(f"{path}: holds no *.log and no *.log.gz; give a log, or a folder of logs")
    return files


def side_of(name: str, log: OneDnnLog, *, by_step: bool) -> Side:
    """One side: all of a log, or its steps, on average."""
    return Side(
        name,
        log,
        calls=log.calls(lambda where: where.step is not None or not by_step),
        divisor=marked_steps(log) if by_step else 1,
    )


def marked_steps(log: OneDnnLog) -> int:
    """Steps that the log tells apart, each rank's counted."""
    return len({(where.rank, where.step) for where in log.executions if where.step is not None})


def question_of(problem: Problem, *, with_types: bool) -> Question:
    """The question that a problem answers."""
    return Question(
        kind=problem.kind,
        direction=direction_name(problem.direction),
        shape=shape_of(problem),
        types=problem.types if with_types else "",
        algorithm=problem.algorithm,
    )


def shape_of(problem: Problem) -> str:
    """The shape in the spelling of 3.x: earlier versions name a matrix product's result too."""
    if problem.kind != "matmul":
        return problem.shape
    try:
        batch, rows, columns, inner = product_sizes(problem.shape)
    except (ValueError, KeyError, IndexError):
        return problem.shape
    if problem.shape[:1].isdigit():
        return ":".join(problem.shape.split(":")[:2])
    lead = f"{batch}x" if batch > 1 else ""
    return f"{lead}{rows}x{inner}:{lead}{inner}x{columns}"


NONE = "–"
"""A time that was not measured, as there were no calls: 0.00 would say that they were fast."""
LONGEST_HEADING = 14
MOSTLY_DIFFERENT = 0.5
"""Share of the time in questions that one side alone asks, from which a hint is given."""


def print_comparison(console: Console, comparison: Comparison, *, top: int) -> None:
    """What is compared, kinds, calls of one side, then calls of both."""
    for place, side in (("first", comparison.first), ("second", comparison.second)):
        say(console, f"{place + ':':<8}{side.name}; {library_of(side.log)}")
    say(console, "calls and milliseconds are those of a step" if comparison.is_by_step
        else "calls and milliseconds are those of whole logs")  # fmt: skip
    print_kinds(console, comparison)
    only_one, both = comparison.only_one, comparison.both
    if only_one:
        title = f"calls that only one side makes, {shown(only_one, top)}; cost: of those calls"
        console.print(pair_table(only_one[:top], comparison, title=title, with_extra=True))
    if both:
        title = f"calls that both make equally often, {shown(both, top)}"
        console.print(pair_table(both[:top], comparison, title=title, with_extra=False))
    if hint := hint_on_types(comparison):
        say(console, hint)


def library_of(log: OneDnnLog) -> str:
    """Who wrote a log."""
    versions = ", ".join(f"oneDNN {version}" for version in log.versions) or "oneDNN"
    threads = f", {' and '.join(map(str, log.threads))} threads" if log.threads else ""
    return f"{versions}{threads}"


def shown(pairs: Sequence[Pair], top: int) -> str:
    """How many of them are in the table."""
    return f"the {top} costliest of {len(pairs):,}" if len(pairs) > top else f"{len(pairs)}"


def print_kinds(console: Console, comparison: Comparison) -> None:
    """Calls and times by kind and direction, and of all."""
    names = headings(comparison)
    table = table_of("kind", names, last=ratio_heading(names), title="by kind and direction")
    kinds = kinds_of(comparison.pairs)
    for kind in kinds:
        calls, times = (kind.first_calls, kind.second_calls), (kind.first_ms, kind.second_ms)
        cells = cells_of(calls, times, decimals=1)
        table.add_row(Text(printable(kind.name)), *cells, ratio_text(times, names))
    calls, times = (
        (sum(getattr(kind, f"first_{of}") for kind in kinds),
         sum(getattr(kind, f"second_{of}") for kind in kinds))
        for of in ("calls", "ms")
    )  # fmt: skip
    table.add_section()
    table.add_row("total", *cells_of(calls, times, decimals=1), ratio_text(times, names))
    console.print(table)


def cells_of(
    calls: tuple[float, float], times: tuple[float, float], *, decimals: int
) -> tuple[str, str, str, str]:
    """Calls and milliseconds of both sides; a side without calls has no time."""
    counts = (significant(count, 6) for count in calls)
    milliseconds = (
        f"{ms:,.{decimals}f}" if count else NONE for count, ms in zip(calls, times, strict=True)
    )
    return (*counts, *milliseconds)  # type: ignore[return-value]  # two and two


def ratio_text(times: tuple[float, float], names: tuple[str, str]) -> str:
    """`1.23`, or who alone has any."""
    first, second = times
    if first and second:
        return f"{first / second:.2f}"
    return f"only {names[0] if first else names[1]}" if first or second else ""


def ratio_heading(names: tuple[str, str]) -> str:
    """What the ratio is of."""
    return f"{names[0]} /\n{names[1]}"


def headings(comparison: Comparison) -> tuple[str, str]:
    """What columns call both sides: their names, or the ends of long ones."""
    first, second = (
        name if len(name) <= LONGEST_HEADING else f"…{name[1 - LONGEST_HEADING :]}"
        for name in map(printable, (comparison.first.name, comparison.second.name))
    )
    return (first, second) if first != second else ("first", "second")


def table_of(
    first: str, names: tuple[str, str], *, last: str, title: str, show_lines: bool = False
) -> Table:
    """Calls and milliseconds of both sides, between a first and a last column."""
    table = Table(title=title, title_justify="left", show_lines=show_lines)
    table.add_column(first, vertical="bottom")
    left, right = names
    for text in (f"calls\n{left}", f"\n{right}", f"ms\n{left}", f"\n{right}", last):
        table.add_column(Text(text), justify="right", vertical="bottom")
    return table


def pair_table(
    pairs: Sequence[Pair], comparison: Comparison, *, title: str, with_extra: bool
) -> Table:
    """A row for each question; the implementations where they differ."""
    names = headings(comparison)
    last = "cost\nms" if with_extra else ratio_heading(names)
    table = table_of("problem", names, last=last, title=title, show_lines=True)
    for pair in pairs:
        calls, times = (pair.first.calls, pair.second.calls), (pair.first.ms, pair.second.ms)
        last = f"{pair.extra_ms:,.2f}" if with_extra else ratio_text(times, names)
        cells = cells_of(calls, times, decimals=2)
        table.add_row(Text(described(pair), overflow="fold"), *cells, last)
    return table


def described(pair: Pair) -> str:
    """What is asked, and how it is done: once where both do it alike."""
    question = pair.question
    lines = [f"{question.kind} {question.direction}".strip(), question.shape, question.types]
    ways = [way_of(answers) for answers in (pair.first, pair.second) if answers.calls]
    lines += dict.fromkeys(ways)
    return "\n".join(printable(line) for line in lines if line)


def way_of(answers: Answers) -> str:
    """Implementations, and layouts."""
    return f"{', '.join(answers.implementations)}; {', '.join(answers.layouts)}"


def hint_on_types(comparison: Comparison) -> str:
    """What to try when little is alike because numbers have other types."""
    alone = [pair for pair in comparison.pairs if not pair.first.calls or not pair.second.calls]
    total = sum(pair.cost_ms for pair in comparison.pairs)
    if not total or sum(pair.cost_ms for pair in alone) < MOSTLY_DIFFERENT * total:
        return ""
    types = [{pair.question.types for pair in alone if getattr(pair, side).calls}
             for side in ("first", "second")]  # fmt: skip
    if types[0] & types[1] or not all(types):
        return ""
    return "the types of numbers differ; --ignore-types compares shapes alone"


FIRST, SECOND = "#3c8ddc", "#f08c00"
BARS = 10
BAR = 0.38
LONGEST_SHAPE = 44


def draw_comparison(comparison: Comparison) -> Figure:
    """Left: time by kind and direction. Right: the costliest calls that only one side makes."""
    kinds = kinds_of(comparison.pairs)[:BARS]
    only_one = comparison.only_one[:BARS]
    rows = max(len(kinds), len(only_one), 3)
    figure = new_figure(width=15, height=1.8 + 0.55 * rows)
    left, right = figure.subplots(1, 2)
    draw_kinds(left, kinds, names=(comparison.first.name, comparison.second.name), rows=rows)
    draw_only_one(right, only_one, comparison, rows=rows)
    of = "a step" if comparison.is_by_step else "whole logs"
    figure.suptitle(f"{comparison.first.name} against {comparison.second.name}: oneDNN in {of}")
    return figure


def draw_kinds(axes: Axes, kinds: Sequence[KindPair], *, names: tuple[str, str], rows: int) -> None:
    """Two bars for each kind and direction."""
    for place, kind in enumerate(kinds):
        for offset, value, colour in (
            (-BAR / 2, kind.first_ms, FIRST),
            (BAR / 2, kind.second_ms, SECOND),
        ):
            axes.barh(place + offset, value, height=BAR, color=colour)
            axes.text(value, place + offset, f" {significant(value, 3)}", va="center", fontsize=8)
    for name, colour in zip(names, (FIRST, SECOND), strict=True):
        axes.barh(0, 0, color=colour, label=name)
    axes.set_yticks(range(len(kinds)), [kind.name for kind in kinds])
    axes.set_ylim(rows - 0.5, -0.6)
    axes.set_xlabel("milliseconds")
    axes.margins(x=0.15)
    axes.set_title("by kind and direction")
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)


def draw_only_one(axes: Axes, pairs: Sequence[Pair], comparison: Comparison, *, rows: int) -> None:
    """What extra calls cost whoever makes them, and how many there are."""
    axes.set_title("calls that only one side makes")
    if not pairs:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, pair in enumerate(pairs):
        is_first = pair.extra_calls > 0
        axes.barh(place, pair.extra_ms, height=0.7, color=FIRST if is_first else SECOND)
        who = comparison.first.name if is_first else comparison.second.name
        count = significant(abs(pair.extra_calls))
        axes.text(pair.extra_ms, place, f" {count} × {who}", va="center", fontsize=8)
    axes.set_yticks(range(len(pairs)), [label_of(pair) for pair in pairs], fontsize=8)
    axes.set_ylim(rows - 0.5, -0.6)
    axes.set_xlabel("milliseconds in those calls")
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def label_of(pair: Pair) -> str:
    """Two short lines: the kind, the shape's beginning."""
    question = pair.question
    shape = question.shape
    if len(shape) > LONGEST_SHAPE:
        shape = shape[: LONGEST_SHAPE - 1] + "…"
    return f"{question.kind} {question.direction}".strip() + "\n" + shape
