"""One picture of a data set: sizes, shapes, classes and anchors, of all splits."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.charts import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    PALE,
    RED,
    Bar,
    Piece,
    horizontal_bars,
    new_figure,
    shortened,
)
from data.annotations import as_setting, as_size, shown_size
from data.coco_json import Entries
from data.verify.objects import MARGIN, AnchorRule, Examined, Objects, SizeProposal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES_NAMED = 24  # with bars of their own; of more classes only the ranks are drawn
LONGEST_NAME = 22
COLOURS = {"train": BLUE, "validation": ORANGE}
BINS, BINS_OF_FEW, FEW = 48, 24, 2000
"""Bars of a histogram; of the fewer boxes one has, the more its bars differ by chance."""
SMALL_TEXT = 8


def draw_objects(examined: Examined) -> "Figure":
    """Draw the objects of the splits; the first one is filled, the others are lines."""
    objects, rule, entries = examined.objects, examined.rule, examined.entries
    figure = new_figure(width=13, height=8.4)
    grid = figure.subplot_mosaic([["sizes", "ratios", "shares"], ["names", "ranks", "images"]])
    draw_sizes(grid["sizes"], objects, rule)
    draw_ratios(grid["ratios"], objects, rule)
    draw_shares(grid["shares"], examined.proposal, rule)
    first = next(iter(entries.values()))
    draw_names(grid["names"], first)
    draw_ranks(grid["ranks"], entries)
    draw_boxes_per_image(grid["images"], entries)
    for axes in grid.values():
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(11)
    totals = " · ".join(
        f"{name}: {len(split.image_ids):,} images, {len(split.boxes):,} boxes"
        for name, split in entries.items()
    )
    figure.suptitle(totals, fontsize=11, color=DARK)
    return figure


def bins(objects: Mapping[str, Objects]) -> int:
    """Return the number of bars for the smallest split's boxes."""
    return BINS if min(len(split.sizes) for split in objects.values()) >= FEW else BINS_OF_FEW


def histogram(
    axes: "Axes",
    values: Mapping[str, NDArray[np.float32]],
    edges: NDArray[np.float64],
) -> None:
    """Draw shares of each split's values, on a scale of powers of two."""
    shares = {}
    for name, numbers in values.items():
        counts, _ = np.histogram(np.clip(numbers, edges[0], edges[-1]), edges)
        shares[name] = counts / max(1, len(numbers))
    draw_steps(axes, {name: (heights, edges) for name, heights in shares.items()})
    axes.set_xscale("log", base=2)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.18 * axes.get_ylim()[1])  # room for the texts on top
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def draw_steps(axes: "Axes", steps: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]) -> None:
    """Draw heights of each split between edges: the first split as an area, all as lines."""
    for place, (name, (heights, edges)) in enumerate(steps.items()):
        colour = COLOURS.get(name, GREY)
        if place == 0:
            axes.stairs(heights, edges, fill=True, color=colour, alpha=0.35)
        axes.stairs(heights, edges, color=colour, linewidth=1.4, label=name)


def draw_sizes(axes: "Axes", objects: Mapping[str, Objects], rule: AnchorRule) -> None:
    """Draw the sizes of the boxes, and the range of the anchors' sizes."""
    image_size = next(iter(objects.values())).image_size
    longest = max(as_size(image_size))
    edges = np.geomspace(2, longest, bins(objects) + 1)
    histogram(axes, {name: split.sizes for name, split in objects.items()}, edges)
    axes.axvspan(edges[0], rule.smallest, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    if rule.largest < longest:
        axes.axvspan(rule.largest, edges[-1], color=PALE, alpha=0.45, linewidth=0, zorder=0)
    axes.text(edges[0] * 1.12, 0.97, "smaller than\nany anchor", va="top", fontsize=SMALL_TEXT,
              color=DARK, transform=axes.get_xaxis_transform())  # fmt: skip
    ticks = [2**power for power in range(1, 13) if 2**power <= longest]
    axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=SMALL_TEXT)
    axes.set_xticks([], minor=True)
    axes.set_title(f"size of the boxes at {shown_size(image_size)}")
    axes.set_xlabel("square root of the area [pixels]", fontsize=9)
    axes.legend(frameon=False, fontsize=SMALL_TEXT, loc="upper right")


def draw_ratios(axes: "Axes", objects: Mapping[str, Objects], rule: AnchorRule) -> None:
    """Draw width by height, and the limits beyond which no anchor matches."""
    edges = np.geomspace(1 / 16, 16, bins(objects) + 1)
    histogram(axes, {name: split.ratios for name, split in objects.items()}, edges)
    limit = rule.most_elongated
    for low, high in ((edges[0], 1 / limit), (limit, edges[-1])):
        axes.axvspan(low, high, color=PALE, alpha=0.45, linewidth=0, zorder=0)
    for ratio in (1 / rule.ratio, 1.0, rule.ratio):
        axes.axvline(ratio, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.text(edges[0] * 1.12, 0.97, "too elongated\nfor any anchor", va="top", fontsize=SMALL_TEXT,
              color=DARK, transform=axes.get_xaxis_transform())  # fmt: skip
    powers = range(-4, 5)
    names = [f"1:{2**-power}" if power < 0 else f"{2**power}:1" for power in powers]
    axes.set_xticks([2.0**power for power in powers], names, fontsize=SMALL_TEXT)
    axes.set_xticks([], minor=True)
    axes.set_title("shape of the boxes")
    axes.set_xlabel("width : height; dotted: the anchors", fontsize=9)


def draw_shares(axes: "Axes", proposal: SizeProposal, rule: AnchorRule) -> None:
    """Draw the share of boxes without an anchor by image size."""
    sides = [max(as_size(size)) for size in proposal.sizes]
    shares = [100 * proposal.shares[size] for size in proposal.sizes]
    least = 100 * proposal.shares[proposal.best]
    axes.axhspan(least, least + 100 * MARGIN, color=PALE, alpha=0.45, linewidth=0)
    axes.plot(sides, shares, color=BLUE, linewidth=1.6)
    marks = {"now": (proposal.current, DARK), "proposed": (proposal.image_size, RED)}
    if proposal.current == proposal.image_size:
        del marks["now"]
    for name, (size, colour) in marks.items():
        share = 100 * proposal.shares[size]
        # Apart, as both sizes may be near each other.
        place = (5, -26) if name == "proposed" else (5, 8)
        side = max(as_size(size))
        axes.plot([side], [share], "o", color=colour, markersize=5)
        axes.annotate(f"{name}: {as_setting(size)}\n{share:.1f} %", (side, share), xytext=place,
                      textcoords="offset points", fontsize=SMALL_TEXT, color=colour)  # fmt: skip
    axes.set_ylim(0, 1.1 * max([*shares, 1]))
    axes.set_xlim(min(sides), max(sides))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.tick_params(labelsize=SMALL_TEXT)
    axes.set_title(f"boxes without an anchor (IoU below {rule.iou:g})")
    axes.set_xlabel("longer side of the image size [pixels]", fontsize=9)


def draw_names(axes: "Axes", entries: Entries) -> None:
    """Draw a bar for each class, or for the most and the least frequent of many classes."""
    boxes = entries.class_counts[0]
    order = np.argsort(-boxes, kind="stable")
    half = CLASSES_NAMED // 2
    is_long = len(order) > CLASSES_NAMED
    shown = [*order[:half], *order[-half:]] if is_long else list(order)
    bars = [
        Bar(
            shortened(entries.category_names[row], LONGEST_NAME),
            [Piece(float(boxes[row]), BLUE)],
            f"{boxes[row]:,}",
        )
        for row in shown
    ]
    horizontal_bars(axes, bars, room=1.25, fontsize=SMALL_TEXT, name_size=SMALL_TEXT)
    if is_long:
        axes.axhline(half - 0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    which = f"the {half} most and least frequent of {len(order)}" if is_long else "boxes"
    axes.set_title(f"classes: {which}")


def draw_ranks(axes: "Axes", entries: Mapping[str, Entries]) -> None:
    """Draw the number of boxes of all classes, each split from its most frequent class on."""
    steps = {}
    for name, split in entries.items():
        counts = np.sort(split.class_counts[0])[::-1]
        steps[name] = counts, np.arange(len(counts) + 1) + 0.5
    draw_steps(axes, steps)
    counts = next(iter(entries.values())).class_counts[0]
    axes.set_yscale("symlog", linthresh=1)
    powers = [0, *(10**power for power in range(9) if 10**power <= 3 * max(1, counts.max()))]
    axes.set_yticks(powers, [f"{power:,}" for power in powers], fontsize=SMALL_TEXT)
    axes.set_yticks([], minor=True)
    axes.set_ylim(0, 2 * max(1, int(counts.max())))
    axes.set_xlim(0.5, len(counts) + 0.5)
    axes.tick_params(axis="x", labelsize=SMALL_TEXT)
    few = [f"{int((counts < most).sum()):,} classes below {most}" for most in (10, 100)]
    axes.text(0.98, 0.97, "\n".join(few), ha="right", va="top", fontsize=SMALL_TEXT, color=DARK,
              transform=axes.transAxes)  # fmt: skip
    axes.set_title("boxes of each class")
    axes.set_xlabel("class, by rank", fontsize=9)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)


def draw_boxes_per_image(axes: "Axes", entries: Mapping[str, Entries]) -> None:
    """Draw the share of images by their number of boxes."""
    numbers = {
        name: np.bincount(
            split.image_of_box[split.image_of_box >= 0], minlength=len(split.image_ids)
        )
        for name, split in entries.items()
    }
    most = int(max(np.quantile(counts, 0.99) for counts in numbers.values()))
    edges = np.arange(max(most, 1) + 2) - 0.5
    steps = {}
    for name, counts in numbers.items():
        images = np.bincount(np.minimum(counts, most), minlength=len(edges) - 1)
        steps[name] = 100 * images[: len(edges) - 1] / len(counts), edges
    draw_steps(axes, steps)
    axes.set_ylim(bottom=0)
    axes.set_xlim(edges[0], edges[-1])
    axes.tick_params(labelsize=SMALL_TEXT)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    axes.set_title("boxes of each image")
    axes.set_xlabel(f"boxes ({most}: or more)", fontsize=9)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
