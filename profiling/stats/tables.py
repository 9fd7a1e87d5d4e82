"""A log as one table: a row for each distinct problem.

TODO-DOC The parameters of each problem as the paper names them (Fu et al. 2023, Table 2).

TODO-DOC The chart of where oneDNN's time goes (paper, Figure 2).

TODO-DOC The roofline chart: what each problem reaches, under what the machine can do at most.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from sys import intern

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from common.charts import new_figure
from common.console import significant
from profiling.onednn_log.log import Calls
from profiling.onednn_log.work import (
    DIRECTION_COLOURS,
    DRIVERS,
    Problem,
    direction_name,
    gbyte,
    gflop,
)
from profiling.peaks.peaks import Peaks


@dataclass(frozen=True, slots=True)
class Row:
    """One problem of a log, which may have very many: what follows from others is not stored."""

    kind: str
    implementation: str
    direction: str
    types: str
    layouts: str
    attributes: str
    algorithm: str
    shape: str
    calls: int
    total_ms: float
    share: float
    """Of the time of all executions, 0 to 1."""
    gflop: float | None
    """Of one call; None where not counted, see `profiling.onednn_log.work`."""
    gbyte: float | None
    """Of one call's tensors, each once."""

    @property
    def mean_ms(self) -> float:
        """Milliseconds a call."""
        return self.total_ms / self.calls

    @property
    def gflop_per_s(self) -> float | None:
        """The rate of a call; None where its arithmetic is not counted."""
        seconds = self.mean_ms / 1000
        return self.gflop / seconds if self.gflop is not None and seconds else None

    @property
    def flop_per_byte(self) -> float | None:
        """The arithmetic intensity; None where arithmetic or bytes are not counted."""
        return self.gflop / self.gbyte if self.gflop is not None and self.gbyte else None


COLUMNS = (
    *("kind", "implementation", "direction", "types", "layouts", "attributes", "algorithm"),
    *("shape", "calls", "total_ms", "mean_ms", "share"),
    *("gflop", "gbyte", "gflop_per_s", "flop_per_byte"),
)
"""Of `primitives.csv`."""


def rows_of(calls: Mapping[Problem, Calls]) -> list[Row]:
    """A row for each problem, the costliest first. Problems that no column tells apart are one."""
    total_ms = sum(one.total_ms for one in calls.values())
    rows = [row_of(problem, one, total_ms=total_ms) for problem, one in told_apart(calls).items()]
    return sorted(rows, key=lambda row: -row.total_ms)


def told_apart(calls: Mapping[Problem, Calls]) -> Mapping[Problem, Calls]:
    """The calls of problems that a column tells apart, each with the first such problem."""
    first: dict[tuple[str, ...], Problem] = {}
    for problem in calls:
        first.setdefault(identity(problem), problem)
    if len(first) == len(calls):
        return calls  # as nearly always: a log of many problems is not kept a second time
    merged = {problem: Calls() for problem in first.values()}  # the log's calls stay as they are
    for problem, one in calls.items():
        merged[first[identity(problem)]].add(one)
    return merged


def identity(problem: Problem) -> tuple[str, ...]:
    """What tells a problem's row apart: the columns before `calls`."""
    return (
        problem.kind,
        problem.implementation,
        problem.direction,
        problem.types,
        problem.layouts,
        problem.attributes,
        algorithm_of(problem),
        problem.shape,
    )


def algorithm_of(problem: Problem) -> str:
    """The algorithm, and whatever else the log says of it, such as `axis:1` or `flags:GR`."""
    return intern(problem.auxiliary.removeprefix("alg:"))


def row_of(problem: Problem, calls: Calls, *, total_ms: float) -> Row:
    """The numbers of one problem."""
    kind, implementation, direction, types, layouts, attributes, algorithm, shape = identity(
        problem
    )
    return Row(
        kind=kind,
        implementation=implementation,
        direction=direction,
        types=types,
        layouts=layouts,
        attributes=attributes,
        algorithm=algorithm,
        shape=shape,
        calls=calls.count,
        total_ms=calls.total_ms,
        share=calls.total_ms / total_ms if total_ms else 0.0,
        gflop=gflop(problem),
        gbyte=gbyte(problem),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """All problems of one kind and direction."""

    kind: str
    direction: str
    calls: int
    total_ms: float
    share: float
    gflop: float
    """Of all calls whose arithmetic is counted."""
    gflop_per_s: float | None


def parts_of(rows: Sequence[Row]) -> list[Part]:
    """The distribution by kind and direction, the costliest first."""
    by_part: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_part.setdefault((row.kind, row.direction), []).append(row)
    parts = [part_of(kind, direction, some) for (kind, direction), some in by_part.items()]
    return sorted(parts, key=lambda part: -part.total_ms)


def part_of(kind: str, direction: str, rows: Sequence[Row]) -> Part:
    """The sum of some rows."""
    counted = [row for row in rows if row.gflop is not None]
    gflop_of_all = sum((row.gflop or 0.0) * row.calls for row in counted)
    seconds = sum(row.total_ms for row in counted) / 1000
    return Part(
        kind=kind,
        direction=direction,
        calls=sum(row.calls for row in rows),
        total_ms=sum(row.total_ms for row in rows),
        share=sum(row.share for row in rows),
        gflop=gflop_of_all,
        gflop_per_s=gflop_of_all / seconds if seconds and counted else None,
    )


DIRECTIONS = {
    "forward_training": "FWD_D",
    "forward_inference": "FWD_I",
    "forward": "FWD_D",
    "backward": "BWD_DW",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
    "backward_bias": "BWD_WB",
}
AXES = "dhw"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The names of the fields are the columns of `parameters.csv`; empty where there is none."""

    driver: str
    configuration: str
    """Types of source, weights and destination, run together: `u8s8u8`, `bf16bf16bf16`."""
    directory: str
    """The paper's word for benchdnn's `--dir`: `FWD_D`, `BWD_D`, `BWD_W`, `BWD_WB`."""
    post_ops: str
    algorithm: str
    problem_batchsize: str
    problem_input: str
    problem_output: str
    problem_stride: str
    problem_kernel: str
    problem_padding: str
    problem_channel: str
    calls: int


PARAMETER_COLUMNS = tuple(field.name for field in fields(Parameters))


def parameters_of(calls: Mapping[Problem, Calls]) -> Iterator[Parameters]:
    """Yield a row for each problem, the costliest first; equal rows are one."""
    counted: dict[Parameters, int] = {}
    for problem, one in sorted(calls.items(), key=lambda item: -item[1].total_ms):
        found = parameters_without_calls(problem)
        counted[found] = counted.get(found, 0) + one.count
    return (replace(found, calls=count) for found, count in counted.items())


def parameters_without_calls(problem: Problem) -> Parameters:
    """All fields but the number of calls, which is 0."""
    sizes = named(problem.shape)
    return Parameters(
        driver=DRIVERS.get(problem.kind, problem.kind),
        configuration=configuration(problem),
        directory=direction(problem),
        post_ops=intern(post_ops(problem.attributes)),
        algorithm=intern(problem.algorithm.rpartition("_")[2].upper()),
        problem_batchsize=pick(sizes, ["mb"]),
        # A shape that is a list of sizes has no names; it is the problem's input as it stands.
        problem_input=pick(sizes, ["i" + axis for axis in AXES]) if sizes else problem.shape,
        problem_output=pick(sizes, ["o" + axis for axis in AXES]),
        problem_stride=pick(sizes, ["s" + axis for axis in AXES]),
        problem_kernel=pick(sizes, ["k" + axis for axis in AXES]),
        problem_padding=pick(sizes, ["p" + axis for axis in AXES]),
        problem_channel=pick(sizes, ["g", "ic", "oc"]),
        calls=0,
    )


def named(shape: str) -> dict[str, str]:
    """`mb2_ic64oc64_ih7` as names and sizes, empty for a shape that is a list of sizes."""
    return {} if shape[:1].isdigit() else dict(re.findall(r"([a-z]+)(\d+)", shape))


def pick(sizes: dict[str, str], names: list[str]) -> str:
    """The sizes of those names that are there: `kh3kw3`."""
    return intern("".join(name + sizes[name] for name in names if name in sizes))


def configuration(problem: Problem) -> str:
    """Types in the order source, weights, destination; others as the log has them."""
    roles = [problem.memory(role) for role in ("src", "wei", "dst")]
    found = [one.type for one in roles if one]
    return intern("".join(found or [one.type for one in problem.memories if one.is_there]))


def direction(problem: Problem) -> str:
    """benchdnn's `--dir`; with the gradient of a bias where there is one."""
    name = DIRECTIONS.get(problem.direction, "")
    has_bias = problem.memory("bia") is not None
    if has_bias and name in ("BWD_W", "FWD_D") and problem.is_computing:
        return {"BWD_W": "BWD_WB", "FWD_D": "FWD_B"}[name]
    return name


def post_ops(attributes: str) -> str:
    """`sum+eltwise_relu`, in the spellings of 1.x (`post_ops:'sum;eltwise_relu;';`) and later."""
    found = re.search(r"attr-post-ops:(\S+)", attributes)
    if found:
        return found[1]
    old = re.search(r"post_ops:'([^']*)'", attributes)
    return old[1].strip(";").replace(";", "+") if old else ""


BARS = 12
"""Kinds with a bar of their own; the others share one."""
SMALLEST_LABELLED = 0.06
"""Share from which a piece of a bar has its number in it."""


def draw_distribution(parts: Sequence[Part], *, title: str) -> Figure:
    """A bar for each kind of primitive, in pieces by direction; lengths are milliseconds."""
    by_kind: dict[str, dict[str, Part]] = {}
    for part in parts:
        by_kind.setdefault(part.kind, {})[part.direction] = part
    kinds = sorted(by_kind, key=lambda kind: -sum(p.total_ms for p in by_kind[kind].values()))
    rows: list[tuple[str, list[Part]]] = [
        (kind, list(by_kind[kind].values())) for kind in kinds[:BARS]
    ]
    if kinds[BARS:]:
        rest = [part for kind in kinds[BARS:] for part in by_kind[kind].values()]
        rows.append((f"{len(kinds) - BARS} other kinds", rest))
    figure = new_figure(height=2.0 + 0.5 * len(rows))
    axes = figure.subplots()
    total = sum(part.total_ms for part in parts)
    for place, (_, pieces) in enumerate(rows):
        start = 0.0
        for part in sorted(pieces, key=lambda part: list(DIRECTION_COLOURS).index(name_of(part))):
            colour = DIRECTION_COLOURS[name_of(part)]
            axes.barh(place, part.total_ms, left=start, color=colour, height=0.7)
            if part.total_ms > SMALLEST_LABELLED * total:
                middle = start + part.total_ms / 2
                axes.text(middle, place, f"{part.share:.0%}", ha="center", va="center",
                          color="white", fontsize=9)  # fmt: skip
            start += part.total_ms
        axes.text(
            start,
            place,
            f"  {significant(start, 3)} ms, {start / total:.1%}",
            va="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds in all calls")
    axes.set_xlim(0, 1.18 * max(sum(part.total_ms for part in pieces) for _, pieces in rows))
    axes.spines[["top", "right"]].set_visible(False)
    names = dict.fromkeys(name_of(part) for part in parts)
    for name in sorted(names, key=list(DIRECTION_COLOURS).index):
        axes.bar(0, 0, color=DIRECTION_COLOURS[name], label=name or "no direction")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16 - 0.3 / len(rows)), ncol=5)
    figure.suptitle(title)
    return figure


def name_of(part: Part) -> str:
    """A direction that has a colour."""
    name = direction_name(part.direction)
    return name if name in DIRECTION_COLOURS else ""


LARGEST_DOT = 900
"""Area of the dot of a problem that takes all of the time. [points²]"""
SMALLEST_DOT = 9
CEILING = "#495057"
MOVERS = 10
"""Bars for kinds that only move data."""


def draw_roofline(rows: Sequence[Row], peaks: Peaks | None, *, title: str) -> Figure:
    """Left: what computes, GFLOP/s over FLOP a byte. Right: what only moves data, GB/s.

    A dot's area is the problem's share of the time.
    """
    figure = new_figure(width=13, height=5.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_computing(left, [row for row in rows if row.gflop_per_s and row.flop_per_byte], peaks)
    draw_moving(right, [row for row in rows if row.gflop is None and row.gbyte], peaks)
    figure.suptitle(title)
    return figure


def draw_computing(axes: Axes, rows: Sequence[Row], peaks: Peaks | None) -> None:
    """A dot for each problem, ceilings above them."""
    axes.set_title("convolutions and matrix products")
    if not rows:
        axes.text(0.5, 0.5, "none in this log", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for direction in dict.fromkeys(direction_name(row.direction) for row in rows):
        some = [row for row in rows if direction_name(row.direction) == direction]
        axes.scatter(
            [row.flop_per_byte or 0 for row in some],
            [row.gflop_per_s or 0 for row in some],
            [SMALLEST_DOT + LARGEST_DOT * row.share for row in some],
            color=DIRECTION_COLOURS.get(direction, CEILING),
            alpha=0.65,
            linewidth=0,
            label=direction or "no direction",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    if peaks:
        draw_ceilings(axes, rows, peaks)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("FLOP a byte of tensors")
    axes.set_ylabel("GFLOP/s")
    axes.grid(alpha=0.3)
    legend = axes.legend(loc="lower right", title="area: share of the time")
    for handle in legend.legend_handles:
        handle.set_sizes([40])  # type: ignore[union-attr]


def draw_ceilings(axes: Axes, rows: Sequence[Row], peaks: Peaks) -> None:
    """The memory's slope, and a line for each type that the log multiplies in."""
    lowest = min(row.flop_per_byte or 1 for row in rows) / 2
    highest = max(row.flop_per_byte or 1 for row in rows) * 2
    types = {word.rpartition(":")[2] for row in rows for word in row.types.split()}
    shown = {name: peak for name, peak in peaks.matrix_gflop_per_s.items() if name in types}
    top = max([*shown.values(), *(row.gflop_per_s or 0 for row in rows)])
    ridge = min(highest, top / peaks.bandwidth_gb_per_s)
    lowest = min(lowest, ridge / 6)  # so that the slope is seen
    ends = [lowest, ridge]
    axes.plot(ends, [peaks.bandwidth_gb_per_s * x for x in ends], color=CEILING, linewidth=1.2)
    axes.annotate(
        f"memory {peaks.bandwidth_gb_per_s:,.0f} GB/s",
        (lowest, peaks.bandwidth_gb_per_s * lowest),
        xytext=(10, -4),
        textcoords="offset points",
        fontsize=9,
    )
    for name, peak in shown.items():
        axes.plot([peak / peaks.bandwidth_gb_per_s, highest], [peak, peak], color=CEILING,
                  linewidth=1.2)  # fmt: skip
        axes.annotate(f"{name} {peak:,.0f} GFLOP/s", (highest, peak), xytext=(0, 4),
                      textcoords="offset points", ha="right", fontsize=9)  # fmt: skip


def draw_moving(axes: Axes, rows: Sequence[Row], peaks: Peaks | None) -> None:
    """Bytes a second of kinds whose arithmetic does not count, the costliest on top."""
    axes.set_title("what only moves data")
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    kinds = sorted(by_kind, key=lambda kind: -sum(row.total_ms for row in by_kind[kind]))[:MOVERS]
    if not kinds:
        axes.text(0.5, 0.5, "nothing in this log", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, kind in enumerate(kinds):
        some = by_kind[kind]
        milliseconds = sum(row.total_ms for row in some)
        rate = sum((row.gbyte or 0) * row.calls for row in some) / milliseconds * 1000
        axes.barh(place, rate, color=DIRECTION_COLOURS[""], height=0.6)
        share = sum(row.share for row in some)
        text = f"  {significant(rate, 3)} GB/s, {share:.1%} of the time"
        axes.text(rate, place, text, va="center", fontsize=9)
    if peaks:
        bandwidth = peaks.bandwidth_gb_per_s
        axes.axvline(bandwidth, color=CEILING, linestyle="--", linewidth=1.2)
        axes.text(bandwidth, -0.62, f"memory {bandwidth:,.0f} GB/s", ha="center", fontsize=9)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(max(len(kinds), 3) - 0.4, -0.8)
    axes.set_xlabel("GB/s of tensors, each once")
    axes.margins(x=0.6)
    axes.spines[["top", "right"]].set_visible(False)
