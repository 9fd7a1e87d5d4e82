"""An ablation's picture from its result: on the left what was measured, on the right the ratios.

The left half has one of five kinds: medians as bars, parts of a whole, losses by step, throughput
by ranks, epochs by global batch size. The right half has each ratio with its interval, and the
paper's figure. The same thing has the same colour in every picture.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import TYPE_CHECKING, Any

from common.charts import (
    BLUE,
    GREEN,
    OLIVE,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    Bar,
    Piece,
    colour_legend,
    horizontal_bars,
    new_figure,
)
from common.wording import counted
from profiling.ablate.analysis import WANTED_CONFIDENCE, Outcome, format_figure
from profiling.ablate.definition import Ablation
from profiling.ablate.result import Result, memory_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER, SECOND_RUN, DOTS = RED, "#adb5bd", "#343a40"
PHASES = {
    "forward": BLUE,
    "loss": GREEN,
    "loss backward": "#94d82d",
    "network backward": ORANGE,
    "backward": ORANGE,
    "optimizer": PURPLE,
}
PRIMITIVES = {
    "convolution forward": "#1c7ed6",
    "convolution backward data": ORANGE,
    "convolution backward weights": RED,
    "our convolution forward": "#74c0fc",
    "our convolution backward": "#ffa8a8",
    "matmul": GREEN,
    "matrix products of MKL": "#8ce99a",
    "inner product": OLIVE,
    "reorder": "#fcc419",
    "elsewhere": "#adb5bd",
}
"""In the order in which they are drawn; others take what is left of `PALETTE`."""
PRIMITIVE_LABELS = {
    "our convolution forward": "convolution forward (ours)",
    "our convolution backward": "convolution backward (ours)",
    "matrix products of MKL": "matrix products (MKL)",
    "matmul": "matrix products (oneDNN)",
    "others": "other primitives",
    "elsewhere": "torch's own kernels",
}
"""Labels in the legend that are not the names in result files."""
SMALLEST = 0.01  # Parts that are less everywhere are `others`
LABELLED = 0.06
WIDEST_LINEAR = 6.0  # Ratios beyond are drawn on a logarithmic axis
WIDEST_DOUBLING = 200.0
"""Larger spans have an axis line for each factor of 10, smaller ones of 2."""
ROW = 0.42  # Height of a bar. [inches]


def picture(ablation: Ablation, result: Result, outcomes: Sequence[Outcome]) -> "Figure":
    """Return the figure of a result that has at least one round."""
    ratios = [outcome for outcome in outcomes if outcome.ratio is not None]
    bars = len(result.definition["variants"])
    rows = max(len(ratios), bars if ablation.chart.kind in ("bars", "shares") else 0)
    figure = new_figure(width=12.5, height=max(3.2, 1.7 + ROW * rows))
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    draw, _ = KINDS[ablation.chart.kind]
    draw(left, ablation, result)
    draw_ratios(right, ratios)
    return figure


def draw_bars(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw a bar for each variant, of parts where it has them, and a dot for every round."""
    choice, variants = ablation.chart, result.definition["variants"]
    values = {name: result.values(name, choice.of) for name in variants}
    values = {name: of_rounds for name, of_rounds in values.items() if of_rounds}
    parts = [part for part in choice.parts if any(result.values(name, part) for name in values)]
    bars = []
    for name, of_rounds in values.items():
        of_parts = [(part, result.values(name, part)) for part in parts]
        pieces = [Piece(median(of_part), PHASES[part]) for part, of_part in of_parts if of_part]
        # The allocator stands below the name where it is not the usual one.
        extra = memory_policy(variants[name]).removeprefix("tuned").removeprefix(", ")
        label = f"{name}\n({extra})" if extra and extra not in name else name
        bars.append(Bar(label, pieces or [Piece(median(of_rounds), BLUE)]))
    horizontal_bars(axes, bars, thickness=0.62, name_size=9)
    for place, of_rounds in enumerate(values.values()):
        axes.plot(of_rounds, [place] * len(of_rounds), ".", color=DOTS, markersize=4, alpha=0.7)
        # At the edge, as beside the farthest dot it would be taken for that one's.
        edge = axes.get_yaxis_transform()
        label = f"{median(of_rounds):#.3g}".rstrip(".")
        # In x a share of the axes, in y a place in the data.
        axes.text(1.01, place, label, transform=edge, va="center", fontsize=8)
    axes.text(1.01, 1, "median", transform=axes.transAxes, va="bottom", fontsize=8)
    axes.set_xlim(0, 1.04 * max(map(max, values.values())))
    axes.set_xlabel(choice.unit)
    if parts:
        add_legend(axes, {part: PHASES[part] for part in parts}, "upper left", columns=len(parts))


def draw_shares(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw a bar of 100 % for each variant, the first on top."""
    shares: dict[str, defaultdict[str, float]] = {}
    for name in result.definition["variants"]:
        # Medians of the parts, over their sum; small ones together.
        details = {key for runs in result.rounds for key in runs[name].details}
        keys = sorted(key for key in details if key.startswith(ablation.chart.of))
        seconds = {key: median(result.values(name, key)) for key in keys}
        whole = sum(seconds.values())
        by_kind = shares[name] = defaultdict(float)
        for key in keys:
            kind, share = key.removeprefix(ablation.chart.of), seconds[key] / whole
            if share:
                by_kind[kind if share >= SMALLEST or kind in PRIMITIVES else "others"] += share
    # Convolutions, products, the others by size, and last what happens elsewhere.
    order = {kind: place for place, kind in enumerate(PRIMITIVES)}
    order["elsewhere"] = len(PRIMITIVES) + 1
    kinds = sorted(
        {kind for by_kind in shares.values() for kind in by_kind},
        key=lambda kind: (
            order.get(kind, len(PRIMITIVES)),
            -max(by_kind.get(kind, 0) for by_kind in shares.values()),
        ),
    )
    others = cycle(colour for colour in reversed(PALETTE) if colour not in PRIMITIVES.values())
    colours = {kind: PRIMITIVES.get(kind) or next(others) for kind in kinds}
    bars = []
    for name, by_kind in shares.items():
        parts = [(kind, by_kind.get(kind, 0.0)) for kind in kinds]
        pieces = [
            Piece(share, colours[kind], f"{share:.0%}" if share >= LABELLED else "")
            for kind, share in parts
        ]
        bars.append(Bar(name, pieces))
    horizontal_bars(axes, bars, room=1.0, thickness=0.66, fontsize=8)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of forward and backward pass")
    labelled = {PRIMITIVE_LABELS.get(kind, kind): colour for kind, colour in colours.items()}
    add_legend(axes, labelled, "lower center", columns=4)


def add_legend(axes: "Axes", colours: Mapping[str, str], place: str, *, columns: int) -> None:
    """Add a legend outside the axes of a figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    loc = f"outside {place}"
    colour_legend(figure, colours, columns=columns, loc=loc, fontsize=8, frameon=False)


def numbered_details(result: Result, name: str, prefix: str) -> tuple[list[str], list[int]]:
    """Return the details that begin with a prefix, in order, and the numbers that follow it."""
    keys = sorted(key for key in result.rounds[0][name].details if key.startswith(prefix))
    return keys, [int(key.removeprefix(prefix)) for key in keys]


def draw_curves(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw a training's losses: thin for each round, thick for their median."""
    for name, colour in zip(result.definition["variants"], PALETTE, strict=False):
        keys, steps = numbered_details(result, name, ablation.chart.of)
        for runs in result.rounds:
            values = [runs[name].details[key] for key in keys]
            axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.5)
        medians = [median(result.values(name, key)) for key in keys]
        axes.plot(steps, medians, color=colour, linewidth=2.4, marker="o", label=name)
        axes.set_xticks(steps)
    finish_lines(axes, ablation, "training steps")


def draw_grid(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw throughput by ranks, over that of the smallest combination, as the paper's Table 3."""
    places = {
        name: (int(variant["options"]["threads"]), int(variant["options"]["ranks"]))
        for name, variant in result.definition["variants"].items()
    }
    throughput = {name: median(result.values(name, ablation.chart.of)) for name in places}
    # The fewest ranks, and among them the fewest threads.
    unit = throughput[min(places, key=lambda name: places[name][::-1])]
    by_threads: dict[int, list[tuple[int, float]]] = {}
    for name, (threads, ranks) in places.items():
        by_threads.setdefault(threads, []).append((ranks, throughput[name] / unit))
    for colour, (threads, points) in zip(PALETTE, sorted(by_threads.items()), strict=False):
        points.sort()
        label = f"{counted(threads, 'thread')} per rank"
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", label=label)
        for point in points:
            axes.annotate(f"{point[1]:.2f}", point, xytext=(6, -10), textcoords="offset points",
                          fontsize=8)  # fmt: skip
    all_ranks = sorted({ranks for _, ranks in places.values()})
    ideal = [1, all_ranks[-1]]
    axes.plot(ideal, ideal, "--", color=DOTS, linewidth=0.8, label="ideal")
    axes.set_xticks(all_ranks)
    axes.set(ylim=(0, None))
    axes.margins(x=0.12)
    finish_lines(axes, ablation, "ranks", fontsize=8)


def draw_points(axes: "Axes", ablation: Ablation, result: Result) -> None:
    """Draw epochs by batch size, over those of the smallest, as the paper's Figure 7."""
    [name] = result.definition["variants"]
    keys, sizes = numbered_details(result, name, ablation.chart.of)
    unit = median(result.values(name, keys[0]))
    low, high, mean = (
        [median(result.values(name, before + key)) / unit for key in keys]
        for before in ("least ", "most ", "")
    )
    axes.fill_between(sizes, low, high, color=BLUE, alpha=0.2, label="best to worst run")
    axes.plot(sizes, mean, color=BLUE, marker="o", label="mean of the runs")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45, fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set(ylim=(0, None))
    finish_lines(axes, ablation, "global batch size (images)", loc="upper left")


def finish_lines(axes: "Axes", ablation: Ablation, label: str, **legend: Any) -> None:
    """Label the axes of a chart of lines, and add grid and legend."""
    axes.set(xlabel=label, ylabel=ablation.chart.unit)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, **legend)


Drawing = Callable[["Axes", Ablation, Result], None]
KINDS: Mapping[str, tuple[Drawing, str]] = {
    "bars": (draw_bars, "medians, one dot per round"),
    "shares": (draw_shares, "medians of the share of each part"),
    "curves": (draw_curves, "medians, one thin line per round"),
    "grid": (draw_grid, "medians by number of ranks"),
    "points": (draw_points, "published runs"),
}
"""What draws the left half of a picture, and what that is in words."""


def draw_ratios(axes: "Axes", outcomes: Sequence[Outcome]) -> None:
    """Draw each outcome's median on its interval, the first on top, and the paper's figure."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    values: list[float] = []
    for outcome in outcomes:
        values += filter(None, [outcome.comparison.paper])
        ratios = filter(None, (outcome.ratio, outcome.again))
        values += (value for ratio in ratios for value in (ratio.median, ratio.high))
    is_wide = bool(values) and max(values) > WIDEST_LINEAR
    if is_wide:
        axes.set_xscale("log", base=2)
    for place, outcome in enumerate(outcomes):
        measured = ((outcome.ratio, place, BLUE), (outcome.again, place + 0.22, SECOND_RUN))
        for ratio, height, colour in measured:
            if ratio is not None:
                ends = [ratio.low, ratio.high]
                axes.plot(ends, [height] * 2, color=colour, linewidth=3, alpha=0.5)
                axes.plot(ratio.median, height, "o", color=colour, markersize=6)
        if outcome.comparison.paper is not None:
            paper = outcome.comparison.paper
            axes.plot(paper, place, marker="D", color=PAPER, markersize=6, zorder=3)
        assert outcome.ratio is not None
        axes.annotate(
            format_figure(outcome.ratio.median, outcome.comparison.ratio),
            (outcome.ratio.median, place),
            xytext=(0, 6),
            textcoords="offset points",
            ha="left" if outcome.ratio.median < 0.1 * max(values) else "center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # over the line at 1
        )
    terms = [outcome.comparison.ratio for outcome in outcomes]
    if any(term != "share" for term in terms):
        axes.axvline(1, color=DOTS, linewidth=0.8, linestyle="--")
    unit = f"ratio ({terms[0]})" if len(set(terms)) == 1 else "ratio or share"
    # Where ratios have several units, each has its own; a share is named in the title already.
    labels = [
        outcome.what if term == "share" or term in unit else f"{outcome.what}\n{term}"
        for outcome, term in zip(outcomes, terms, strict=True)
    ]
    axes.set_yticks(range(len(outcomes)), labels, fontsize=8)
    # The axis points downwards, so that the first comparison is on top.
    axes.set_ylim(len(outcomes) - 0.4, -0.6)
    axes.margins(x=0.15)
    if not is_wide:
        axes.set_xlim(0, None)
    elif max(values) / min(values) > WIDEST_DOUBLING:
        axes.xaxis.set_major_locator(LogLocator(base=10))
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    add_marks_legend(axes, outcomes)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def add_marks_legend(axes: "Axes", outcomes: Sequence[Outcome]) -> None:
    """Add the meaning of the marks, above the axes; that of the interval depends on the rounds."""
    ratios = [outcome.ratio for outcome in outcomes if outcome.ratio is not None]
    kind = "range"
    if all(ratio.confidence >= WANTED_CONFIDENCE for ratio in ratios):
        kind = f"{100 * WANTED_CONFIDENCE:.0f} % interval"
    is_alone = all(ratio.rounds < 2 for ratio in ratios)
    marks = [("o", BLUE, "ratio" if is_alone else f"measured, with {kind}")]
    if any(outcome.again for outcome in outcomes):
        marks.append(("o", SECOND_RUN, "second run"))
    if any(outcome.comparison.paper for outcome in outcomes):
        marks.append(("D", PAPER, "paper"))
    for marker, colour, label in marks:
        # Without points: only an entry of the legend.
        axes.plot([], [], marker, color=colour, label=label)
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=len(marks), fontsize=8, frameon=False
    )
