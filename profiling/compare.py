"""`retinanet profile compare`: two logs side by side, matched by the work given to oneDNN.

Work is matched by kind, direction, shape, algorithm and types; implementations and layouts may
differ. Work that only one side does, or does more often, comes first. `--fail-if` is for scripts:
conditions on the ratio of both sides.
"""

import json
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from common import charts
from common.charts import Bar, Cell, Column, Piece, Table, text_column
from common.cli import add_command, positive
from common.console import make_console, print_cautions, print_line, significant
from common.errors import CONDITION_MET, FINISHED, InputError, printable
from common.files import as_csv, write_atomically
from common.options import Outputs, argument, flag, included, option
from common.walk import real_path
from profiling.efficiency import marked_steps
from profiling.onednn_log.log import OneDnnLog, log_files, read_with_progress
from profiling.onednn_log.work import direction_name, modern_shape
from profiling.sums import grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = """\
Compare two oneDNN logs: kinds, problems, calls and times. Calls that only one side makes come
first; this is how the paper found backward convolutions of frozen layers. If both logs have
complete steps (profile.onednn), their means are compared, otherwise whole logs. A folder's logs are
read as one: the ranks of a run, or several runs of a program, which even out noise."""

EPILOG = """\
--fail-if CONDITION: exit with status 4 if the condition holds, after all output. The number is that
of the first log divided by that of the second:
  total > 1.1                        time of all calls
  wall > 1.1                         time of a step by its marks, what is not in oneDNN included
  convolution > 1.1                  time of a kind
  convolution backward data > 1.1    time of a kind and direction
  reorder calls > 1                  calls of a kind; `calls > 1` of all, `calls < 1` if some are
                                     missing, perhaps because torch computes them without oneDNN

files in --out DIR: comparison.csv, comparison.png, comparison.svg

examples:
  retinanet profile compare ours.log reference.log
  retinanet profile compare runs/openimages/onednn runs/coco/onednn --names openimages,coco
  retinanet profile compare new.log old.log --fail-if 'total > 1.1' --fail-if 'calls > 1'
  retinanet profile compare logs/new logs/old --fastest --fail-if 'wall > 1.1'   # several runs"""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of `retinanet profile compare`."""

    first: Path = argument("a log or a folder of logs", metavar="LOG", reads=log_files)
    second: Path = argument(
        "the log or folder of logs to compare with", metavar="REFERENCE", reads=log_files
    )
    names: str | None = option(
        "names of the two sides (default: their file names)", default=None, metavar="A,B"
    )
    ignore_types: bool = flag("match problems of different types")
    fastest: bool = flag(
        "take each problem's calls to be as fast as its fastest one, and a step as the fastest: "
        "less noise than means"
    )
    top: int = option("problems per table", default=15, parse=positive, metavar="N")
    fail_if: list[str] | None = option(
        "see below; repeatable", default=None, action="append", metavar="CONDITION"
    )
    outputs: Outputs = included(
        Outputs, writes=("comparison.csv", *charts.chart_names("comparison"))
    )


def run_compare(options: CompareOptions) -> int:
    """Read both logs, match, print, write; return the exit code.

    Raises:
        InputError: A log cannot be read, a condition or a name is invalid, or a file exists.
    """
    console, outputs = make_console(), options.outputs
    conditions = [parse_condition(text) for text in options.fail_if or ()]
    paths = (options.first, options.second)
    names = choose_names(options.names, *paths)
    logs = [read_with_progress([path], console) for path in paths]
    sides = map(Side, names, logs)
    with_types = not options.ignore_types
    comparison = compare(*sides, with_types=with_types, by_fastest=options.fastest)
    if conditions:
        require_parsed(comparison)
    # Before any output: an unknown kind in a condition is an error of the command line.
    ratios = [compute_ratio(condition, comparison) for condition in conditions]
    print_comparison(console, comparison, top=options.top)
    problems = [pair.record() for pair in (*comparison.only_one, *comparison.both)]
    if outputs.json is not None:
        content = {
            "first": comparison.first.name,
            "second": comparison.second.name,
            "by_step": comparison.is_by_step,
            "by_fastest": comparison.is_by_fastest,
            "wall_ms": comparison.wall_ms,
            "kinds": [
                {name: kind.record()[name] for name in KIND_FIELDS}
                for kind in sum_by_kind(comparison.pairs)
            ],
            "problems": problems,
        }
        write_atomically(outputs.json, json.dumps(content, indent=1))
    if outputs.out is not None:
        rows = (problem.values() for problem in problems)
        write_atomically(outputs.out / "comparison.csv", as_csv(problems[0], rows))
        chart = charts.chart_files(outputs.out, "comparison")
        charts.save_chart(draw_comparison(comparison), *chart)
        print_line(console, f"table and chart: {outputs.out}")
    are_met = []
    for condition, ratio in zip(conditions, ratios, strict=True):
        are_met.append(OPERATORS[condition.operator](ratio, condition.bound))
        result = "FAILED" if are_met[-1] else "passed"
        print_line(console, f"{result}: {condition.text}: ratio {ratio:.3f}")
    return CONDITION_MET if any(are_met) else FINISHED


def choose_names(names: str | None, first: Path, second: Path) -> tuple[str, str]:
    """Return names of both sides: `--names`, else the shortest ends of their paths that differ.

    Raises:
        InputError: There are not two names.
    """
    if names is not None:
        left, comma, right = names.partition(",")
        if not comma or not left or not right or "," in right:
            raise InputError(f"--names {names!r}: expected two names separated by a comma")
        return left, right
    # Logs of two runs often have the same file name: folders are added until the ends differ.
    whole = [real_path(path) for path in (first, second)]
    parts = [(path if path.is_dir() else path.with_suffix("")).parts for path in whole]
    for count in range(1, max(map(len, parts)) + 1):
        left, right = ("/".join(part[-count:]) for part in parts)
        if left != right:
            return left, right
    return "first", "second"


@dataclass(frozen=True, slots=True)
class WorkKey:
    """The work of a call, independent of its implementation; training equals inference."""

    kind: str
    direction: str  # `forward`, `backward data`, …; empty where a kind has none
    shape: str
    types: str  # Empty where types do not matter
    algorithm: str


@dataclass(slots=True)
class SideCalls:
    """The calls of one side that do the same work."""

    calls: float = 0.0  # A step, where steps are compared
    ms: float = 0.0
    implementations: dict[str, None] = field(default_factory=dict)
    """In order of appearance, as are the layouts."""
    layouts: dict[str, None] = field(default_factory=dict)

    def add(self, other: "SideCalls") -> None:
        """Add other calls of the side."""
        self.calls += other.calls
        self.ms += other.ms


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work on both sides: of one key, or of all of a kind and direction."""

    key: WorkKey
    first: SideCalls = field(default_factory=SideCalls)
    second: SideCalls = field(default_factory=SideCalls)

    @property
    def name(self) -> str:
        """`convolution backward data`."""
        return f"{self.key.kind} {self.key.direction}".strip()

    @property
    def ratio(self) -> float | None:
        """The first side's time over the second's; None if the second has no time."""
        return self.first.ms / self.second.ms if self.second.ms else None

    @property
    def extra_calls(self) -> float:
        """Calls that the first makes and the second does not; below zero the other way round."""
        return self.first.calls - self.second.calls

    @property
    def extra_ms(self) -> float:
        """The time of the extra calls, on the side that makes them."""
        side = self.first if self.extra_calls > 0 else self.second
        return abs(self.extra_calls) * (side.ms / side.calls if side.calls else 0.0)

    @property
    def cost_ms(self) -> float:
        """The time of the slower side."""
        return max(self.first.ms, self.second.ms)

    def record(self) -> dict[str, object]:
        """Return the pair for CSV and JSON."""
        return {
            **asdict(self.key),
            "first_calls": self.first.calls,
            "second_calls": self.second.calls,
            "first_ms": self.first.ms,
            "second_ms": self.second.ms,
            "ratio": self.ratio,
            "extra_calls": self.extra_calls,
            "extra_ms": self.extra_ms,
            "first_implementations": " ".join(self.first.implementations),
            "second_implementations": " ".join(self.second.implementations),
        }


KIND_FIELDS = ("kind", "direction", "first_calls", "second_calls", "first_ms", "second_ms")
"""The fields of a record that sums by kind have."""


class Side(NamedTuple):
    """A log, or the logs of a run's ranks."""

    name: str
    log: OneDnnLog


@dataclass(frozen=True)
class Comparison:
    """Two sides and their matched work."""

    first: Side
    second: Side
    pairs: Sequence[Pair]
    is_by_step: bool  # Whether calls and times are those of a step
    is_by_fastest: bool  # Whether times are those of the fastest calls, times their number

    @property
    def wall_ms(self) -> list[float] | None:
        """The mean or fastest step of both sides by its marks; None where one has no marks."""
        times = [side.log.step_ms.values() for side in (self.first, self.second)]
        return list(map(min if self.is_by_fastest else fmean, times)) if all(times) else None

    # Calls per step are fractions, so equality needs a tolerance.
    @property
    def only_one(self) -> list[Pair]:
        """Pairs with more calls on one side, the costliest extra calls first."""
        pairs = [pair for pair in self.pairs if abs(pair.extra_calls) > 1e-9]
        return sorted(pairs, key=lambda pair: -pair.extra_ms)

    @property
    def both(self) -> list[Pair]:
        """Pairs with equal numbers of calls on both sides, the costliest first."""
        pairs = [pair for pair in self.pairs if abs(pair.extra_calls) <= 1e-9]
        return sorted(pairs, key=lambda pair: -pair.cost_ms)


def compare(
    first: Side,
    second: Side,
    *,
    with_types: bool = True,
    by_step: bool | None = None,
    by_fastest: bool = False,
) -> Comparison:
    """Match the work of two sides; `with_types`: only with the same types of numbers.

    `by_step`: the mean step of a side is compared with the other's, else a whole log with the
    other. None: where both logs have complete steps. `by_fastest`: a problem's time is that of its
    fastest call, times its calls.
    """
    steps = [marked_steps(side.log) for side in (first, second)]
    is_by_step = by_step
    if is_by_step is None:  # by steps that have calls, or nothing would be compared
        sides = zip(steps, (first, second), strict=True)
        is_by_step = all(each.whole and side.log.calls(each.holds) for each, side in sides)
    matched: dict[WorkKey, Pair] = {}
    for place, side in enumerate((first, second)):
        # Steps of all ranks: the result is the mean step of a rank.
        divisor = len(steps[place].whole) if is_by_step else 1
        executions = side.log.calls(steps[place].holds) if is_by_step else side.log.calls()
        for problem, calls in executions.items():
            key = WorkKey(
                problem.kind,
                direction_name(problem.direction),
                modern_shape(problem),
                problem.types if with_types else "",
                problem.algorithm,
            )
            pair = matched.setdefault(key, Pair(key))
            total = (pair.first, pair.second)[place]
            ms = calls.count * calls.least_ms if by_fastest else calls.total_ms
            total.add(SideCalls(calls.count / divisor, ms / divisor))
            total.implementations[problem.implementation] = None
            total.layouts[problem.layouts] = None
    pairs = list(matched.values())
    return Comparison(first, second, pairs, is_by_step=is_by_step, is_by_fastest=by_fastest)


def sum_by_kind(pairs: Sequence[Pair]) -> list[Pair]:
    """Return sums by kind and direction, the costliest first."""
    groups = grouped(pairs, lambda pair: (pair.key.kind, pair.key.direction))
    sums = (sum_pairs(group, *key) for key, group in groups.items())
    return sorted(sums, key=lambda kind: -kind.cost_ms)


def sum_pairs(pairs: Sequence[Pair], kind: str, direction: str = "") -> Pair:
    """Return the sum of several pairs, under the name of a kind and direction."""
    total = Pair(WorkKey(kind, direction, shape="", types="", algorithm=""))
    for pair in pairs:
        total.first.add(pair.first)
        total.second.add(pair.second)
    return total


NOT_CALLED = "–"
"""Shown in place of the time of a side without calls; 0.00 would look like a fast call."""
LONGEST_HEADING = 14
MOSTLY_DIFFERENT = 0.5
"""Share of the time in unmatched work from which a hint is printed."""
NOISE = 1.1
"""How far the ratios of means and of fastest calls differ, from which on a hint is printed."""
MOST_NOT_PARSED = 0.01
"""Share of oneDNN's lines above which no condition is decided; a killed run truncates its last."""


def print_comparison(console: Console, comparison: Comparison, *, top: int) -> None:
    """Print what is compared, kinds, calls of one side, then calls of both."""
    print_cautions(console, differences(comparison))
    for place, side in (("first", comparison.first), ("second", comparison.second)):
        print_line(console, f"{place + ':':<8}{side.name}; {describe_library(side.log)}")
    scope = "per step" if comparison.is_by_step else "of the whole logs"
    fastest = "; times are those of each problem's fastest call" if comparison.is_by_fastest else ""
    print_line(console, f"calls and times are {scope}{fastest}")
    if comparison.wall_ms:
        one, other = comparison.wall_ms
        which = "fastest" if comparison.is_by_fastest else "mean"
        print_line(
            console, f"{which} step by the marks: {one:,.1f} and {other:,.1f} ms, {one / other:.2f}"
        )
    # Names as headings: the ends of long ones.
    left, right = (
        name if len(name) <= LONGEST_HEADING else f"…{name[1 - LONGEST_HEADING :]}"
        for name in map(printable, (comparison.first.name, comparison.second.name))
    )
    # Two long names may have the same end.
    left, right = names = (left, right) if left != right else ("first", "second")

    def columns(first: str, milliseconds: str, last: Column) -> list[Column]:
        calls = (f"calls\n{left}", f"\n{right}")
        columns = [
            text_column(first),
            *(Column(heading, partial(significant, digits=6)) for heading in calls),
        ]
        times = (f"ms\n{left}", f"\n{right}")
        return [*columns, *(Column(heading, milliseconds) for heading in times), last]

    ratio = Column(f"{left} /\n{right}")
    *rows, total = kind_rows(comparison, names, total="total", not_called=NOT_CALLED)
    table = Table("by kind and direction", columns("kind", ",.1f", ratio), rows, totals=[total])
    console.print(table.for_console(vertical="bottom"))
    only_one = "calls that only one side makes, {}; cost: time of these calls"
    for pairs, title, with_extra, last in (
        (comparison.only_one, only_one, True, Column("cost\nms", ",.2f")),
        (comparison.both, "calls that both sides make equally often, {}", False, ratio),
    ):
        if pairs:
            count = (
                f"the {top} costliest of {len(pairs):,}" if len(pairs) > top else f"{len(pairs)}"
            )
            rows = pair_rows(pairs[:top], names, with_extra=with_extra, not_called=NOT_CALLED)
            table = Table(title.format(count), columns("problem", ",.2f", last), rows)
            console.print(table.for_console(show_lines=True, vertical="bottom"))
    for hint in filter(None, (hint_on_types(comparison), hint_on_noise(comparison))):
        print_line(console, hint)


def differences(comparison: Comparison) -> Iterator[str]:
    """Yield why the two sides may not be comparable: conditions, length, lines not understood."""
    logs = (comparison.first.log, comparison.second.log)
    for name, values in (
        ("instruction sets", [log.instruction_sets for log in logs]),
        ("threads", [log.run_threads for log in logs]),
    ):
        if all(values) and values[0] != values[1]:
            one, other = (" and ".join(map(str, value)) for value in values)
            yield f"{name} differ: {one}; {other}"
    costs: defaultdict[float, float] = defaultdict(float)
    for pair in comparison.pairs:
        if pair.first.calls and pair.second.calls:
            costs[round(pair.first.calls / pair.second.calls, 9)] += pair.cost_ms
    ratio, cost = max(costs.items(), key=itemgetter(1), default=(1.0, 0.0))
    if not comparison.is_by_step and ratio != 1 and 2 * cost > sum(costs.values()):
        yield (
            f"most problems have {ratio:.3g} times as many calls in the first log; if it is of "
            "more or fewer passes, log equally many, or mark steps (one that is cut is none)"
        )
    for log in logs:
        if log.not_understood_count:
            yield describe_not_parsed(log)


def describe_not_parsed(log: OneDnnLog) -> str:
    """Return how many of oneDNN's lines are not compared, and why the first is not."""
    count, example = log.not_understood_count, log.not_understood[0]
    return (
        f"{example.file}: {count:,} of {log.onednn_lines:,} oneDNN lines cannot be parsed and are "
        f"not compared; the first is line {example.line}: {example.why}"
    )


def require_parsed(comparison: Comparison) -> None:
    """Raise InputError if so many lines are not understood that no condition can be decided."""
    for log in (comparison.first.log, comparison.second.log):
        if log.not_understood_count > MOST_NOT_PARSED * log.onednn_lines + 1:
            raise InputError(f"--fail-if: {describe_not_parsed(log)}")


def hint_on_noise(comparison: Comparison) -> str:
    """Return a hint if means and fastest calls have different ratios; else an empty text."""
    if comparison.is_by_fastest:
        return ""
    sides, by_step = (comparison.first, comparison.second), comparison.is_by_step
    other = compare(*sides, by_step=by_step, by_fastest=True)
    means, fastest = (sum_pairs(each.pairs, "").ratio or 1 for each in (comparison, other))
    if max(means, fastest) < NOISE * min(means, fastest):
        return ""
    return (
        f"the ratio of all calls is {means:.2f}, that of each problem's fastest call "
        f"{fastest:.2f}: some calls were slow, perhaps the first ones or while the machine was "
        "busy; log again, or use --fastest"
    )


def describe_library(log: OneDnnLog) -> str:
    """Return which library wrote a log, with how many threads."""
    versions = ", ".join(f"oneDNN {version}" for version in log.versions) or "oneDNN"
    threads = f", {' and '.join(map(str, log.threads))} threads" if log.threads else ""
    return f"{versions}{threads}"


def kind_rows(
    comparison: Comparison, names: tuple[str, str], *, total: str, not_called: str | None
) -> list[list[object]]:
    """Return name, calls and times of both sides and their ratio by kind, the sum as last row.

    If only one side has calls, its name from `names` stands in place of the ratio. `total` is
    the name of the last row, and `not_called` the time of a side without calls.
    """
    kinds = sum_by_kind(comparison.pairs)
    rows = (*kinds, sum_pairs(kinds, total))
    return [make_row(kind, kind.name, names=names, not_called=not_called) for kind in rows]


def pair_rows(
    pairs: Sequence[Pair], names: tuple[str, str], *, with_extra: bool, not_called: str | None
) -> list[list[object]]:
    """Return rows as `kind_rows` for pairs; `with_extra`: extra calls' cost replaces the ratio."""
    rows = []
    for pair in pairs:
        # Implementations and layouts stand once where both sides have the same.
        sides = [side for side in (pair.first, pair.second) if side.calls]
        ways = (f"{', '.join(side.implementations)}; {', '.join(side.layouts)}" for side in sides)
        lines = (pair.name, pair.key.shape, pair.key.types, *dict.fromkeys(ways))
        row = make_row(pair, "\n".join(filter(None, lines)), names=names, not_called=not_called)
        rows.append([*row[:-1], pair.extra_ms] if with_extra else row)
    return rows


def make_row(
    pair: Pair, name: str, *, names: tuple[str, str], not_called: str | None
) -> list[object]:
    """Return name, calls, times, and their ratio, or which side alone has any time."""
    first, second = pair.first, pair.second
    ratio = Cell(f"only {names[0] if first.ms else names[1]}" if first.ms or second.ms else "")
    if first.ms and pair.ratio is not None:
        ratio = Cell(f"{pair.ratio:.2f}", pair.ratio)
    times = (side.ms if side.calls else not_called for side in (first, second))
    return [name, first.calls, second.calls, *times, ratio]


def hint_on_types(comparison: Comparison) -> str:
    """Return a hint if little is matched because types of numbers differ; else an empty text."""
    alone = [pair for pair in comparison.pairs if not pair.first.calls or not pair.second.calls]
    total = sum(pair.cost_ms for pair in comparison.pairs)
    if not total or sum(pair.cost_ms for pair in alone) < MOSTLY_DIFFERENT * total:
        return ""
    first = {pair.key.types for pair in alone if pair.first.calls}
    second = {pair.key.types for pair in alone if pair.second.calls}
    # With a common type, types are not the reason.
    if not first or not second or first & second:
        return ""
    return "the number types differ; use --ignore-types to match by shape"


COLOURS = (charts.BLUE, charts.ORANGE)  # The first side's and the second's
BARS = 10
LONGEST_SHAPE = 44


def draw_comparison(comparison: Comparison) -> "Figure":
    """Draw time by kind and direction (left), and the costliest calls of only one side (right)."""
    kinds = sum_by_kind(comparison.pairs)[:BARS]
    only_one = comparison.only_one[:BARS]
    names = (comparison.first.name, comparison.second.name)
    rows = max(len(kinds), len(only_one), 3)
    figure = charts.new_figure(width=15, height=1.8 + 0.55 * rows)
    left, right = figure.subplots(1, 2)
    bars = [
        Bar(kind.name, [Piece(ms, colour)], significant(ms, 3))
        for kind in kinds
        for ms, colour in zip((kind.first.ms, kind.second.ms), COLOURS, strict=True)
    ]
    charts.horizontal_bars(
        left, bars, bars_a_row=2, rows=rows, thickness=0.76, fontsize=8, room=1.15
    )
    left.set_xlabel("time [ms]")
    left.set_title("by kind and direction")
    charts.colour_legend(left, dict(zip(names, COLOURS, strict=True)), loc="lower right")
    right.set_title("calls that only one side makes")
    bars = []
    for pair in only_one:
        # The side that makes the extra calls.
        side = 0 if pair.extra_calls > 0 else 1
        name = f"{pair.name}\n{charts.shortened(pair.key.shape, LONGEST_SHAPE)}"
        note = f"{significant(abs(pair.extra_calls))} × {names[side]}"
        bars.append(Bar(name, [Piece(pair.extra_ms, COLOURS[side])], note))
    if bars:
        charts.horizontal_bars(right, bars, rows=rows, fontsize=8, name_size=8, room=1.25)
        right.set_xlabel("time of these calls [ms]")
    else:
        charts.write_in_place_of_chart(right, "none")
    scope = "per step" if comparison.is_by_step else "in whole logs"
    figure.suptitle(f"{names[0]} compared with {names[1]}: oneDNN's time {scope}")
    return figure


OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
FORM = re.compile(r"\s*([a-z_ .]+?)\s*(>=|<=|>|<)\s*(\d+(?:\.\d*)?)\s*")
ADVICE = (
    "expected for example 'total > 1.1', 'convolution backward data > 1.2', 'reorder calls > 1'"
)


NO_MARKS = (
    "it needs steps in both logs, marked by `profilednn_mark,MILLISECONDS,begin,1` and `…,end,1`"
)


@dataclass(frozen=True)
class Condition:
    """The first log's number over the second's, against a bound."""

    text: str
    name: str  # `total`, `wall`, or a kind with or without its direction
    is_of_calls: bool  # Numbers of calls; else times
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
    terms = re.split(r"[ .]+", match[1])
    is_of_calls = terms[-1] == "calls"
    name = " ".join(terms[:-1] if is_of_calls else terms) or "total"
    return Condition(text.strip(), name, is_of_calls, match[2], float(match[3]))


def compute_ratio(condition: Condition, comparison: Comparison) -> float:
    """Return the number that a condition is about; infinite if only the first has such calls.

    Raises:
        InputError: Neither log has such a kind, or any time.
    """
    if condition.name == "wall":
        if comparison.wall_ms is None or condition.is_of_calls:
            raise InputError(f"--fail-if {condition.text!r}: {NO_MARKS}")
        first, second = comparison.wall_ms
        return divide(first, second, condition)
    kinds = sum_by_kind(comparison.pairs)
    name = condition.name.replace("_", " ")
    chosen = [
        kind
        for kind in kinds
        if name in ("total", kind.name.replace("_", " "), kind.key.kind.replace("_", " "))
    ]
    if not chosen:
        known = ", ".join(["total", *dict.fromkeys(kind.name for kind in kinds)])
        raise InputError(
            f"--fail-if {condition.text!r}: neither log has {condition.name!r}; use one of {known}"
        )
    total = sum_pairs(chosen, "")
    first, second = (
        side.calls if condition.is_of_calls else side.ms for side in (total.first, total.second)
    )
    return divide(first, second, condition)


def divide(first: float, second: float, condition: Condition) -> float:
    """Return the ratio of two numbers, infinite if only the second is 0.

    Raises:
        InputError: Both are 0.
    """
    if first or second:
        return first / second if second else float("inf")
    raise InputError(f"--fail-if {condition.text!r}: neither log has a time above 0 for it")


add_compare = partial(
    add_command,
    name="compare",
    about=ABOUT,
    examples=EPILOG,
    options=CompareOptions,
    run=run_compare,
)
