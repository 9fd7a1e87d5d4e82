"""An ablation's picture from its result: on the left what was measured, on the right the ratios.

The left half has one of five kinds: medians as bars, parts of a whole, losses by step, throughput
by ranks, epochs by global batch size. The right half has each ratio with its interval, and the
paper's figure. The same thing has the same colour in every picture.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING

from common.charts import PALETTE, Bar, Piece, colour_legend, horizontal_bars, new_figure
from profiling.ablate.analysis import Outcome, Ratio, shown
from profiling.ablate.definition import Ablation
from profiling.ablate.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_bars(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw a bar for each variant, of parts where it has them, and a dot for every round."""
    choice = ablation.chart
    names = [name for name in result.definition["variants"] if result.values(name, choice.of)]
    parts = [part for part in choice.parts if any(result.values(name, part) for name in names)]
    bars = []
    for name in names:
        of_parts = [(part, result.values(name, part)) for part in parts]
        pieces = [Piece(median(values), PHASES[part]) for part, values in of_parts if values]
        whole = [Piece(median(result.values(name, choice.of)), PLAIN)]
        bars.append(Bar(label_of(result, name), pieces or whole))
    horizontal_bars(axes, bars, thickness=0.62, name_size=9)
    for place, name in enumerate(names):
        values = result.values(name, choice.of)
        axes.plot(values, [place] * len(values), ".", color=DOTS, markersize=4, alpha=0.7)
        # At the edge, as beside the farthest dot it would be taken for that one's.
        edge = axes.get_yaxis_transform()
        axes.text(1.01, place, f"{median(values):.3g}", transform=edge, va="center", fontsize=8)
    axes.set_xlim(0, 1.04 * max(max(result.values(name, choice.of)) for name in names))
    axes.set_xlabel(f"{choice.unit}, {choice.per}" if choice.per else choice.unit)
    if parts:
        legend_of(axes, {part: PHASES[part] for part in parts}, "upper left", columns=len(parts))


def draw_shares(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw a bar of 100 % for each variant, the first on top."""
    names = list(result.definition["variants"])
    shares = {name: shares_of(result, name, ablation.chart.of) for name in names}
    kinds = sorted(
        {kind for by_kind in shares.values() for kind in by_kind},
        key=lambda kind: (order(kind), -max(one.get(kind, 0) for one in shares.values())),
    )
    colours = colours_of(kinds)
    bars = []
    for name, by_kind in shares.items():
        pieces = []
        for kind in kinds:
            share = by_kind.get(kind, 0.0)
            label = f"{share:.0%}" if share >= LABELLED else ""
            pieces.append(Piece(share, colours[kind], label))
        bars.append(Bar(name, pieces))
    horizontal_bars(axes, bars, room=1.0, thickness=0.66, fontsize=8)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of forward and backward pass")
    legend_of(axes, colours, "lower center", columns=4)


def legend_of(axes: "Axes", colours: Mapping[str, str], place: str, *, columns: int) -> None:
    """Add a legend outside the axes of a figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    loc = f"outside {place}"
    colour_legend(figure, colours, columns=columns, loc=loc, fontsize=8, frameon=False)


def draw_curves(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw a training's losses: thin for each round, thick for their median."""
    prefix = ablation.chart.of
    for name, colour in zip(result.definition["variants"], PALETTE, strict=False):
        first = result.rounds[0][name].details
        keys = sorted(key for key in first if key.startswith(prefix))
        steps = [int(key.removeprefix(prefix)) for key in keys]
        for of_round in result.rounds:
            values = [of_round[name].details[key] for key in keys]
            axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.5)
        medians = [median(result.values(name, key)) for key in keys]
        axes.plot(steps, medians, color=colour, linewidth=2.4, marker="o", label=name)
    axes.set_xlabel("steps")
    axes.set_ylabel(ablation.chart.unit)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def draw_grid(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw throughput by ranks, over that of the smallest combination, as the paper's Table 3."""
    variants = result.definition["variants"]
    places = {
        name: (int(one["options"]["threads"]), int(one["options"]["ranks"]))
        for name, one in variants.items()
    }
    smallest = min(places, key=lambda name: places[name][::-1])
    unit = median(result.values(smallest, ablation.chart.of))
    by_threads: dict[int, list[tuple[int, float]]] = {}
    for name, (threads, ranks) in places.items():
        value = median(result.values(name, ablation.chart.of)) / unit
        by_threads.setdefault(threads, []).append((ranks, value))
    for colour, (threads, points) in zip(PALETTE, sorted(by_threads.items()), strict=False):
        points.sort()
        label = f"{threads} thread{'s' if threads > 1 else ''} of each rank"
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", label=label)
        for ranks, value in points:
            axes.annotate(
                f"{value:.2f}",
                (ranks, value),
                xytext=(6, -10),
                textcoords="offset points",
                fontsize=8,
            )
    most = max(ranks for _, ranks in places.values())
    axes.plot([1, most], [1, most], "--", color=DOTS, linewidth=0.8, label="ideal")
    axes.set_xticks(sorted({ranks for _, ranks in places.values()}))
    axes.set(xlabel="ranks", ylabel=ablation.chart.unit, ylim=(0, None))
    axes.margins(x=0.12)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def draw_points(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw epochs by batch size, over those of the smallest, as the paper's Figure 7."""
    prefix = ablation.chart.of
    [name] = result.definition["variants"]
    keys = sorted(key for key in result.rounds[0][name].details if key.startswith(prefix))
    sizes = [int(key.removeprefix(prefix)) for key in keys]

    def drawn(before: str) -> list[float]:
        return [median(result.values(name, before + key)) / unit for key in keys]

    unit = median(result.values(name, keys[0]))
    low, high = drawn("least "), drawn("most ")
    axes.fill_between(sizes, low, high, color=PLAIN, alpha=0.2, label="best to worst run")
    axes.plot(sizes, drawn(""), color=PLAIN, marker="o", label="mean of the runs")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45, fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="global batch size, images", ylim=(0, None))
    axes.set_ylabel(ablation.chart.unit)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left")


KINDS: Mapping[str, Callable[["Axes", Ablation, Result], None]] = {
    "bars": draw_bars,
    "shares": draw_shares,
    "curves": draw_curves,
    "grid": draw_grid,
    "points": draw_points,
}
ROW = 0.42
"""Height of a bar. [inches]"""


def picture(ablation: Ablation, result: Result, outcomes: Sequence[Outcome]) -> "Figure":
    """Return the figure of a result that has at least one round."""
    ratios = [outcome for outcome in outcomes if outcome.ratio is not None]
    bars = len(result.definition["variants"])
    rows = max(len(ratios), bars if ablation.chart.kind in ("bars", "shares") else 0)
    figure = new_figure(width=12.5, height=max(3.2, 1.7 + ROW * rows))
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    KINDS[ablation.chart.kind](left, ablation, result)
    draw_ratios(right, ratios)
    return figure


def label_of(result: Result, name: str) -> str:
    """Return the variant, and its allocator where that is not the usual one."""
    variant = result.definition["variants"][name]
    extra = "" if variant["allocator"] == "tuned" else variant["allocator"]
    if variant["huge_pages"]:
        extra = f"{extra}, huge pages".lstrip(", ")
    return f"{name}\n({extra})" if extra and extra not in name else name


WIDEST_LINEAR = 6.0
"""Ratios beyond are drawn on a logarithmic axis."""
WIDEST_DOUBLING = 200.0
"""Where they span more, the axis has a line for every factor of 10, else of 2."""


def draw_ratios(axes: "Axes", outcomes: Sequence[Outcome]) -> None:
    """Draw a line for each outcome, the first on top."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    values = [value for one in outcomes for value in values_of(one)]
    is_wide = bool(values) and max(values) > WIDEST_LINEAR
    if is_wide:
        axes.set_xscale("log", base=2)
    for place, one in enumerate(outcomes):
        assert one.ratio is not None
        draw_ratio(axes, place, one.ratio, colour=PLAIN)
        if one.again is not None:
            draw_ratio(axes, place + 0.22, one.again, colour="#adb5bd")
        paper = one.comparison.paper
        if paper is not None:
            axes.plot(paper, place, marker="D", color=PAPER, markersize=6, zorder=3)
        axes.annotate(
            shown(one.ratio.median, one.comparison.ratio),
            (one.ratio.median, place),
            xytext=(0, 6),
            textcoords="offset points",
            ha="left" if one.ratio.median < 0.1 * max(values) else "center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # over the line at 1
        )
    if any(one.comparison.ratio != "share" for one in outcomes):
        axes.axvline(1, color=DOTS, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(outcomes)), [labelled(one) for one in outcomes], fontsize=8)
    axes.set_ylim(len(outcomes) - 0.4, -0.6)
    axes.margins(x=0.15)
    if not is_wide:
        axes.set_xlim(0, None)
    if is_wide and max(values) / min(values) > WIDEST_DOUBLING:
        axes.xaxis.set_major_locator(LogLocator(base=10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    legend(axes, outcomes)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_ratio(axes: "Axes", place: float, ratio: Ratio, *, colour: str) -> None:
    """Draw a median on its interval."""
    axes.plot(
        [ratio.interval.low, ratio.interval.high], [place] * 2, color=colour, linewidth=3, alpha=0.5
    )
    axes.plot(ratio.median, place, "o", color=colour, markersize=6)


def legend(axes: "Axes", outcomes: Sequence[Outcome]) -> None:
    """Add the meaning of the marks, above the axes."""
    words = [("o", PLAIN, "here, with its interval")]
    if any(one.again for one in outcomes):
        words.append(("o", "#adb5bd", "a second run"))
    if any(one.comparison.paper for one in outcomes):
        words.append(("D", PAPER, "the paper"))
    for marker, colour, label in words:
        axes.plot([], [], marker, color=colour, label=label)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=len(words), fontsize=8, frameon=False
    )


def values_of(one: Outcome) -> list[float]:
    """Return all values that are drawn of an outcome."""
    assert one.ratio is not None
    ratios = [one.ratio, *([one.again] if one.again else [])]
    paper = [one.comparison.paper] if one.comparison.paper else []
    return [*paper, *(value for r in ratios for value in (r.median, r.interval.high))]


def labelled(one: Outcome) -> str:
    """Return what is compared, and in which terms, on two lines."""
    terms = "share of it" if one.comparison.ratio == "share" else one.comparison.ratio
    return f"{one.what}\n{terms}"


SMALLEST = 0.01
"""Parts that are less everywhere are `others`."""
LABELLED = 0.06


def shares_of(result: Result, name: str, prefix: str) -> dict[str, float]:
    """Return medians of a variant's parts, over their sum; small ones together."""
    keys = {key for of_round in result.rounds for key in of_round[name].details}
    parts = {
        key.removeprefix(prefix): median(result.values(name, key))
        for key in sorted(keys)
        if key.startswith(prefix)
    }
    whole = sum(parts.values())
    found: dict[str, float] = {}
    for kind, seconds in parts.items():
        called = kind if seconds / whole >= SMALLEST or kind in PRIMITIVES else "others"
        found[called] = found.get(called, 0.0) + seconds / whole
    return {kind: share for kind, share in found.items() if share}


def order(kind: str) -> int:
    """Return a place: convolutions, products, the rest, and last what happens elsewhere."""
    known = list(PRIMITIVES)
    if kind == "elsewhere":
        return len(known) + 1
    return known.index(kind) if kind in known else len(known)


def colours_of(kinds: list[str]) -> dict[str, str]:
    """Return a colour for each kind."""
    others = cycle(colour for colour in reversed(PALETTE) if colour not in PRIMITIVES.values())
    return {kind: PRIMITIVES.get(kind) or next(others) for kind in kinds}


PHASES = {
    "forward": "#3c8ddc",
    "loss": "#2f9e44",
    "loss backward": "#94d82d",
    "network backward": "#f08c00",
    "backward": "#f08c00",
    "optimizer": "#9c36b5",
}
PLAIN = "#3c8ddc"
PAPER = "#e6194b"
DOTS = "#343a40"
PRIMITIVES = {
    "convolution forward": "#1c7ed6",
    "convolution backward data": "#f08c00",
    "convolution backward weights": "#e6194b",
    "our convolution forward": "#74c0fc",
    "our convolution backward": "#ffa8a8",
    "matmul": "#2f9e44",
    "matrix products of MKL": "#8ce99a",
    "inner product": "#5c940d",
    "reorder": "#fcc419",
    "elsewhere": "#adb5bd",
}
"""Others take what is left of `PALETTE`."""
