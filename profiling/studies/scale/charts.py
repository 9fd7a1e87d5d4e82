"""The chart of a scaling study."""

import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter

from common.files import write_whole
from profiling.studies.scale.study import Measured, count_threads

COLOURS = ("#3c8ddc", "#e6194b", "#2f9e44", "#f08c00", "#9c36b5", "#333333")
LARGEST_SHARE_SHOWN = 0.10
"""The axis of shares reaches as far at least, so that small ones look small."""
AIM = 0.05
"""What communication may take of a step, with gradients in BF16."""
ROOM = 1.4
"""The axis beyond the highest bar, for the legend."""
BAR = 0.36
"""Width of a bar, of the distance between two combinations."""


def draw_chart(measured: Sequence[Measured], file: Path, *, title: str, weak: bool) -> None:
    """Write a PNG: throughput by ranks (left), the share of a step in communication (right).

    Args:
        measured: The combinations that have run.
        file: Where to.
        title: What was measured, on what.
        weak: Whether each rank had as many images; else all together had.

    Raises:
        InputError: The file cannot be written.
    """
    figure = Figure(figsize=(12, 4.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(title)
    ranks = sorted({one.combination.ranks for one in measured})
    draw_throughput(left, lines(measured), ranks)
    left.set_title(f"throughput, the same number of images {'a rank' if weak else 'in all'}")
    draw_communication(right, measured)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    write_whole(file, png.getvalue())


def lines(measured: Sequence[Measured]) -> dict[int, list[Measured]]:
    """The combinations of each number of threads, by ranks."""
    found: dict[int, list[Measured]] = {}
    for one in sorted(measured, key=lambda one: (one.combination.threads, one.combination.ranks)):
        found.setdefault(one.combination.threads, []).append(one)
    return found


def draw_throughput(
    axes: Axes, by_threads: dict[int, list[Measured]], ranks: Sequence[int]
) -> None:
    """A line for each number of threads, and dashed what its first point would be if all scaled."""
    for place, (threads, line) in enumerate(by_threads.items()):
        colour = COLOURS[place % len(COLOURS)]
        places = [one.combination.ranks for one in line]
        values = [one.images_per_second for one in line]
        label = f"{count_threads(threads)} a rank"
        axes.plot(places, values, color=colour, marker="o", label=label)
        if len(line) > 1:
            ideal = [values[0] * place / places[0] for place in places]
            axes.plot(places, ideal, color=colour, linestyle="--", linewidth=0.8)
        for x, value in zip(places, values, strict=True):
            axes.annotate(
                f"{value:.3g}", (x, value), xytext=(6, -12), textcoords="offset points", fontsize=8
            )
    axes.plot([], [], color="#777777", linestyle="--", linewidth=0.8, label="ideal")
    axes.set_ylabel("images/s")
    double_axes(axes, ranks)
    axes.legend(loc="lower right")


def draw_communication(axes: Axes, measured: Sequence[Measured]) -> None:
    """Two bars for each combination of several ranks: waiting for gradients, what exchange adds."""
    axes.set_title("communication, share of a step")
    several = [one for one in measured if one.combination.ranks > 1]
    if not several:
        axes.text(0.5, 0.5, "one rank exchanges nothing", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    for place, (label, colour, shares) in enumerate(
        (
            ("ranks wait for gradients", COLOURS[0], [one.exposed_share for one in several]),
            ("the exchange makes it longer by", COLOURS[3], [one.added_share for one in several]),
        )
    ):
        heights = [height or 0.0 for height in shares]
        places = [index + (place - 0.5) * BAR for index in range(len(several))]
        bars = axes.bar(places, heights, width=BAR, color=colour, label=label)
        axes.bar_label(bars, [f"{height:.1%}" for height in heights], fontsize=8, padding=2)
    axes.axhline(AIM, color="#777777", linestyle="--", linewidth=0.8, label=f"aim: below {AIM:.0%}")
    axes.axhline(0, color="black", linewidth=0.8)
    names = [f"{one.combination.ranks} × {one.combination.threads}" for one in several]
    axes.set_xticks(range(len(several)), names)
    axes.set_xlabel("ranks × threads")
    axes.set_xlim(-0.8, max(1, len(several)) - 0.2)
    axes.set_ylim(top=max(LARGEST_SHARE_SHOWN, ROOM * axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper left")


def double_axes(axes: Axes, ranks: Sequence[int]) -> None:
    """Twice as much is the same distance everywhere, so that all ideal lines are parallel."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.margins(x=0.12, y=0.12)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")
    axes.grid(alpha=0.3)
