"""`python -m profiling compare`: two logs side by side, matched by what oneDNN was asked to do.

A question is a kind, direction, shape, algorithm and types; implementations and layouts are how a
side answers it. Questions that only one side asks, or asks more often, come first. `--fail-if` is
for scripts: conditions on the ratio of both sides.
"""

import argparse
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from common.charts import (
    BLUE,
    ORANGE,
    Bar,
    Cell,
    Column,
    Piece,
    Table,
    chart_files,
    colour_legend,
    horizontal_bars,
    new_figure,
    save_chart,
    shortened,
    text_column,
    write_in_place_of_chart,
)
from common.cli import add_command, add_output_options, positive
from common.console import make_console, say, significant
from common.errors import CONDITION_MET, FINISHED, InputError, printable
from common.files import as_csv, require_free_json, require_free_outputs, write_whole
from profiling.onednn_log.log import Calls, OneDnnLog, log_files, read_with_progress
from profiling.onednn_log.work import Problem, direction_name, modern_shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = """\
Put two oneDNN logs side by side: kinds, problems, calls and times. On top is what only one side
calls; so the paper found backward convolutions of layers that were frozen. Where both logs have
marks of steps (profile.onednn), a step is compared with a step, else a log with a log."""

EPILOG = """\
--fail-if CONDITION ends with status 4 if it holds, after everything is printed. The number is the
first log's over the second's:
  total > 1.1                        time of all calls
  convolution > 1.1                  time of a kind
  convolution backward data > 1.1    time of a kind and direction
  reorder calls > 1                  calls of a kind; `calls > 1` of all

examples:
  python -m profiling compare ours.log reference.log
  python -m profiling compare runs/openimages/onednn runs/coco/onednn --names openimages,coco
  python -m profiling compare new.log old.log --fail-if 'total > 1.1' --fail-if 'calls > 1'"""


def add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `compare` to the commands of a command line."""
    parser = add_command(commands, "compare", about=ABOUT, examples=EPILOG)
    parser.add_argument("first", type=Path, metavar="LOG", help="a log, or a folder of logs")
    parser.add_argument("second", type=Path, metavar="REFERENCE", help="what it is held against")
    parser.add_argument("--names", metavar="A,B", help="what to call them (default: their files)")
    parser.add_argument(
        "--ignore-types", action="store_true", help="float32 and BF16 are the same problem"
    )
    parser.add_argument(
        "--top", type=positive, default=15, metavar="N", help="problems a table (default: 15)"
    )
    parser.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION", help="see below; repeatable"
    )
    what = "write comparison.csv, .png and .svg here"
    add_output_options(parser, what, overwrite="replace files in DIR")
    parser.set_defaults(run=compare_command)


def compare_command(
    first: Path,
    second: Path,
    *,
    names: str | None,
    ignore_types: bool,
    top: int,
    fail_if: list[str],
    out: Path | None,
    overwrite: bool,
    json_file: Path | None,
) -> int:
    """Read both, match, print, write; return the exit code.

    Raises:
        InputError: A log cannot be read, a condition or a name is none, or a file is in the way.
    """
    console = make_console()
    conditions = [parse_condition(text) for text in fail_if]
    require_free_json(json_file)
    if out is not None:
        files = [out / "comparison.csv", *chart_files(out, "comparison")]
        require_free_outputs(files, overwrite=overwrite)
    called = names_of(names, first, second)
    logs = [read_with_progress(log_files(path), console) for path in (first, second)]
    by_step = all(marked_steps(log) for log in logs)
    sides = [side_of(*pair, by_step=by_step) for pair in zip(called, logs, strict=True)]
    comparison = compare(*sides, with_types=not ignore_types, is_by_step=by_step)
    ratios = [ratio_of(condition, comparison) for condition in conditions]
    print_comparison(console, comparison, top=top)
    problems = [to_record(pair) for pair in (*comparison.only_one, *comparison.both)]
    if json_file is not None:
        content = {
            "first": comparison.first.name,
            "second": comparison.second.name,
            "by_step": comparison.is_by_step,
            "kinds": [asdict(kind) for kind in kinds_of(comparison.pairs)],
            "problems": problems,
        }
        write_whole(json_file, json.dumps(content, indent=1))
    if out is not None:
        rows = (problem.values() for problem in problems)
        write_whole(out / "comparison.csv", as_csv(problems[0], rows))
        save_chart(draw_comparison(comparison), *chart_files(out, "comparison"))
        say(console, f"table and chart: {out}")
    failed = False
    for condition, ratio in zip(conditions, ratios, strict=True):
        met = OPERATORS[condition.operator](ratio, condition.bound)
        failed = failed or met
        say(console, f"{'FAILED' if met else 'passed'}: {condition.text}: it is {ratio:.3f}")
    return CONDITION_MET if failed else FINISHED


def names_of(names: str | None, first: Path, second: Path) -> tuple[str, str]:
    """Return names of both sides: `--names`, else the shortest ends of their paths that differ.

    Raises:
        InputError: There are not two names.
    """
    if names is not None:
        left, comma, right = names.partition(",")
        if not comma or not left or not right or "," in right:
            raise InputError(f"--names {names!r}: expected two names with a comma between them")
        return left, right
    parts = [path.resolve().with_suffix("").parts for path in (first, second)]
    for count in range(1, max(map(len, parts)) + 1):
        left, right = ("/".join(of_path[-count:]) for of_path in parts)
        if left != right:
            return left, right
    return "first", "second"


@dataclass(slots=True)
class Answers:
    """What one side did of one question."""

    calls: float = 0.0
    """A step, where steps are compared."""
    ms: float = 0.0
    implementations: dict[str, None] = field(default_factory=dict)
    """In order of appearance, as are the layouts."""
    layouts: dict[str, None] = field(default_factory=dict)

    @property
    def mean_ms(self) -> float:
        """Milliseconds a call; 0 without calls."""
        return self.ms / self.calls if self.calls else 0.0


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
        """Pairs in which one side makes more calls, the costliest extra calls first."""
        pairs = [pair for pair in self.pairs if abs(pair.extra_calls) > 1e-9]
        return sorted(pairs, key=lambda pair: -pair.extra_ms)

    @property
    def both(self) -> list[Pair]:
        """Pairs in which both sides make as many calls, the costliest first."""
        pairs = [pair for pair in self.pairs if abs(pair.extra_calls) <= 1e-9]
        return sorted(pairs, key=lambda pair: -pair.cost_ms)


def compare(first: Side, second: Side, *, with_types: bool, is_by_step: bool) -> Comparison:
    """Match two sides, question by question."""
    found: dict[Question, tuple[Answers, Answers]] = {}
    for place, side in enumerate((first, second)):
        for problem, calls in side.calls.items():
            question = question_of(problem, with_types=with_types)
            answers = found.setdefault(question, (Answers(), Answers()))[place]
            answers.calls += calls.count / side.divisor
            answers.ms += calls.total_ms / side.divisor
            answers.implementations[problem.implementation] = None
            answers.layouts[problem.layouts] = None
    pairs = [Pair(question, *of_both) for question, of_both in found.items()]
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
    """Return sums by kind and direction, the costliest first."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.question.kind, pair.question.direction), []).append(pair)
    kinds = [
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
    return sorted(kinds, key=lambda kind: -max(kind.first_ms, kind.second_ms))


def sum_of(kinds: Sequence[KindPair], name: str) -> KindPair:
    """Return the sum of some kinds under a name."""
    names = ("first_calls", "second_calls", "first_ms", "second_ms")
    return KindPair(name, "", *(sum(getattr(kind, n) for kind in kinds) for n in names))


def side_of(name: str, log: OneDnnLog, *, by_step: bool) -> Side:
    """Return one side: all of a log, or its mean step."""
    return Side(
        name,
        log,
        calls=log.calls(lambda where: where.step is not None or not by_step),
        divisor=marked_steps(log) if by_step else 1,
    )


def marked_steps(log: OneDnnLog) -> int:
    """Return the number of marked steps, each rank's counted."""
    return len({(where.rank, where.step) for where in log.executions if where.step is not None})


def question_of(problem: Problem, *, with_types: bool) -> Question:
    """Return the question that a problem answers."""
    return Question(
        kind=problem.kind,
        direction=direction_name(problem.direction),
        shape=modern_shape(problem),
        types=problem.types if with_types else "",
        algorithm=problem.algorithm,
    )


def to_record(pair: Pair) -> dict[str, Any]:
    """Return one problem of both sides for CSV and JSON."""
    return {
        **asdict(pair.question),
        "first_calls": pair.first.calls,
        "second_calls": pair.second.calls,
        "first_ms": pair.first.ms,
        "second_ms": pair.second.ms,
        "ratio": pair.ratio,
        "extra_calls": pair.extra_calls,
        "extra_ms": pair.extra_ms,
        "first_implementations": " ".join(pair.first.implementations),
        "second_implementations": " ".join(pair.second.implementations),
    }


NOT_CALLED = "–"
"""A time that was not measured, as there were no calls: 0.00 would say that they were fast."""
LONGEST_HEADING = 14
MOSTLY_DIFFERENT = 0.5
"""Share of the time in questions that one side alone asks, from which a hint is given."""


def print_comparison(console: Console, comparison: Comparison, *, top: int) -> None:
    """Print what is compared, kinds, calls of one side, then calls of both."""
    for place, side in (("first", comparison.first), ("second", comparison.second)):
        say(console, f"{place + ':':<8}{side.name}; {library_of(side.log)}")
    say(console, "calls and milliseconds are those of a step" if comparison.is_by_step
        else "calls and milliseconds are those of whole logs")  # fmt: skip
    names = headings(comparison)
    ratio = f"{names[0]} /\n{names[1]}"
    *rows, total = kind_rows(comparison, names, total="total", not_called=NOT_CALLED)
    columns = both_columns("kind", names, ",.1f", last=Column(ratio))
    table = Table("by kind and direction", columns, rows, totals=[total])
    console.print(table.for_console(vertical="bottom"))
    for pairs, title, with_extra, last in (
        (comparison.only_one, "calls that only one side makes, {}; cost: of those calls", True,
         Column("cost\nms", ",.2f")),
        (comparison.both, "calls that both make equally often, {}", False, Column(ratio)),
    ):  # fmt: skip
        if pairs:
            some = f"the {top} costliest of {len(pairs):,}" if len(pairs) > top else f"{len(pairs)}"
            rows = pair_rows(pairs[:top], names, with_extra=with_extra, not_called=NOT_CALLED)
            columns = both_columns("problem", names, ",.2f", last=last)
            table = Table(title.format(some), columns, rows)
            console.print(table.for_console(show_lines=True, vertical="bottom"))
    if hint := hint_on_types(comparison):
        say(console, hint)


def library_of(log: OneDnnLog) -> str:
    """Return which library wrote a log, with how many threads."""
    versions = ", ".join(f"oneDNN {version}" for version in log.versions) or "oneDNN"
    threads = f", {' and '.join(map(str, log.threads))} threads" if log.threads else ""
    return f"{versions}{threads}"


def headings(comparison: Comparison) -> tuple[str, str]:
    """Return what columns call both sides: their names, or the ends of long ones."""
    first, second = (
        name if len(name) <= LONGEST_HEADING else f"…{name[1 - LONGEST_HEADING :]}"
        for name in map(printable, (comparison.first.name, comparison.second.name))
    )
    return (first, second) if first != second else ("first", "second")


def both_columns(first: str, names: tuple[str, str], ms: str, *, last: Column) -> list[Column]:
    """Return columns of the console: calls and times of both sides between a first and a last."""
    left, right = names

    def calls(heading: str) -> Column:
        return Column(heading, lambda count: significant(count, 6))

    return [text_column(first), calls(f"calls\n{left}"), calls(f"\n{right}"),
            Column(f"ms\n{left}", ms), Column(f"\n{right}", ms), last]  # fmt: skip


def kind_rows(
    comparison: Comparison, names: tuple[str, str], *, total: str, not_called: str | None
) -> list[list[object]]:
    """Return calls and times of both sides and their ratio by kind and direction, last of all.

    Args:
        comparison: Both sides.
        names: What the ratio's column calls them where only one has calls.
        total: Name of the last row.
        not_called: The time of a side without calls.
    """
    kinds = kinds_of(comparison.pairs)
    return [
        both_sides(kind.name, (kind.first_calls, kind.second_calls),
                   (kind.first_ms, kind.second_ms), names, not_called)
        for kind in (*kinds, sum_of(kinds, total))
    ]  # fmt: skip


def pair_rows(
    pairs: Sequence[Pair], names: tuple[str, str], *, with_extra: bool, not_called: str | None
) -> list[list[object]]:
    """Return the same for each question; the cost of extra calls for the ratio if `with_extra`."""
    rows = []
    for pair in pairs:
        calls, times = (pair.first.calls, pair.second.calls), (pair.first.ms, pair.second.ms)
        row = both_sides(described(pair), calls, times, names, not_called)
        rows.append([*row[:-1], pair.extra_ms] if with_extra else row)
    return rows


def both_sides(
    name: str,
    calls: tuple[float, float],
    times: tuple[float, float],
    names: tuple[str, str],
    not_called: str | None,
) -> list[object]:
    """Return name, calls, times, and their ratio, or which side alone has any time."""
    first, second = times
    ratio = Cell(f"only {names[0] if first else names[1]}" if first or second else "")
    if first and second:
        ratio = Cell(f"{first / second:.2f}", first / second)
    shown = (ms if count else not_called for count, ms in zip(calls, times, strict=True))
    return [name, *calls, *shown, ratio]


def described(pair: Pair) -> str:
    """Return what is asked, and how it is done: once where both sides do it alike."""
    question = pair.question
    lines = [f"{question.kind} {question.direction}".strip(), question.shape, question.types]
    ways = [
        f"{', '.join(answers.implementations)}; {', '.join(answers.layouts)}"
        for answers in (pair.first, pair.second)
        if answers.calls
    ]
    return "\n".join(line for line in (*lines, *dict.fromkeys(ways)) if line)


def hint_on_types(comparison: Comparison) -> str:
    """Return what to try when little is alike because types of numbers differ; else nothing."""
    alone = [pair for pair in comparison.pairs if not pair.first.calls or not pair.second.calls]
    total = sum(pair.cost_ms for pair in comparison.pairs)
    if not total or sum(pair.cost_ms for pair in alone) < MOSTLY_DIFFERENT * total:
        return ""
    types = [{pair.question.types for pair in alone if getattr(pair, side).calls}
             for side in ("first", "second")]  # fmt: skip
    if types[0] & types[1] or not all(types):
        return ""
    return "the types of numbers differ; --ignore-types compares shapes alone"


FIRST, SECOND = BLUE, ORANGE
BARS = 10
LONGEST_SHAPE = 44


def draw_comparison(comparison: Comparison) -> "Figure":
    """Draw time by kind and direction (left), and the costliest calls of only one side (right)."""
    kinds = kinds_of(comparison.pairs)[:BARS]
    only_one = comparison.only_one[:BARS]
    rows = max(len(kinds), len(only_one), 3)
    figure = new_figure(width=15, height=1.8 + 0.55 * rows)
    left, right = figure.subplots(1, 2)
    names = (comparison.first.name, comparison.second.name)
    draw_kinds(left, kinds, names=names, rows=rows)
    draw_only_one(right, only_one, names=names, rows=rows)
    of = "a step" if comparison.is_by_step else "whole logs"
    figure.suptitle(f"{names[0]} against {names[1]}: oneDNN in {of}")
    return figure


def draw_kinds(
    axes: "Axes", kinds: Sequence[KindPair], *, names: tuple[str, str], rows: int
) -> None:
    """Draw two bars for each kind and direction."""
    bars = [
        Bar(kind.name, [Piece(ms, colour)], significant(ms, 3))
        for kind in kinds
        for ms, colour in ((kind.first_ms, FIRST), (kind.second_ms, SECOND))
    ]
    horizontal_bars(axes, bars, bars_a_row=2, rows=rows, thickness=0.76, fontsize=8, room=1.15)
    axes.set_xlabel("milliseconds")
    axes.set_title("by kind and direction")
    colour_legend(axes, dict(zip(names, (FIRST, SECOND), strict=True)), loc="lower right")


def draw_only_one(
    axes: "Axes", pairs: Sequence[Pair], *, names: tuple[str, str], rows: int
) -> None:
    """Draw what extra calls cost the side that makes them, and how many there are."""
    axes.set_title("calls that only one side makes")
    if not pairs:
        write_in_place_of_chart(axes, "none")
        return
    bars = []
    for pair in pairs:
        side = 0 if pair.extra_calls > 0 else 1
        question = pair.question
        kind = f"{question.kind} {question.direction}".strip()
        bars.append(
            Bar(
                f"{kind}\n{shortened(question.shape, LONGEST_SHAPE)}",
                [Piece(pair.extra_ms, (FIRST, SECOND)[side])],
                f"{significant(abs(pair.extra_calls))} × {names[side]}",
            )
        )
    horizontal_bars(axes, bars, rows=rows, fontsize=8, name_size=8, room=1.25)
    axes.set_xlabel("milliseconds in those calls")


OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
FORM = re.compile(r"\s*([a-z_ .]+?)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?)\s*")
ADVICE = "expected such as 'total > 1.1', 'convolution backward data > 1.2', 'reorder calls > 1'"


@dataclass(frozen=True)
class Condition:
    """The first log's number over the second's, against a bound."""

    text: str
    name: str
    """`total`, or a kind with or without its direction."""
    is_of_calls: bool
    """Numbers of calls; else times."""
    operator: str
    bound: float


def parse_condition(text: str) -> Condition:
    """Read `total > 1.1`, `reorder calls > 1`, `convolution backward_data >= 2`.

    Raises:
        InputError: It is no condition.
    """
    match = FORM.fullmatch(text)
    if not match:
        raise InputError(f"--fail-if {text!r}: {ADVICE}")
    words = re.split(r"[ .]+", match[1])
    is_of_calls = words[-1] == "calls"
    name = " ".join(words[:-1] if is_of_calls else words) or "total"
    return Condition(text.strip(), name, is_of_calls, match[2], float(match[3]))


def ratio_of(condition: Condition, comparison: Comparison) -> float:
    """Return the number that a condition is about; infinite if only the first has such calls.

    Raises:
        InputError: Neither log has such a kind.
    """
    kinds = kinds_of(comparison.pairs)
    name = condition.name.replace("_", " ")
    chosen = [
        kind
        for kind in kinds
        if name in ("total", kind.name.replace("_", " "), kind.kind.replace("_", " "))
    ]
    if not chosen:
        known = ", ".join(["total", *dict.fromkeys(kind.name for kind in kinds)])
        raise InputError(
            f"--fail-if {condition.text!r}: neither log has {condition.name!r}; they have {known}"
        )
    total = sum_of(chosen, "")
    first, second = total.first_ms, total.second_ms
    if condition.is_of_calls:
        first, second = total.first_calls, total.second_calls
    if not second:
        return float("inf") if first else 1.0
    return first / second
