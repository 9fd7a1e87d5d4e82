"""The chart of where oneDNN's time goes (paper, Figure 2).

TODO-DOC The roofline chart: what each problem reaches, under what the machine can do at most.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from common.charts import new_figure, short
from common.console import significant
from profiling.onednn_log.problem import DIRECTION_COLOURS, direction_name
from profiling.peaks.peaks import Peaks
from profiling.stats.rows import Part, Row

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
    figure = new_figure(10, 2.0 + 0.5 * len(rows))
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
            start, place, f"  {short(start)} ms, {start / total:.1%}", va="center", fontsize=9
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
    figure = new_figure(13, 5.6)
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
