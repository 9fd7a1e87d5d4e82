"""Losses of all probes against time."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from launch.groups.kept import Probed
from launch.groups.search import SYNCHRONOUS, Setting

COLOURS = ("#3c8ddc", "#2f9e44", "#f08c00", "#9c36b5", "#e6194b", "#8d6e63", "#00897b", "#777777")
WINDOW_SHARE = 0.15
"""Of a probe's steps, over which its loss is averaged."""


def loss_chart(probes: Sequence[Probed], chosen: Setting, *, title: str) -> bytes:
    """A PNG: running means of the training loss, by seconds of steps since the cold start.

    Args:
        probes: All of them.
        chosen: Is drawn thicker.
        title: What was trained, on what.
    """
    figure = Figure(figsize=(9, 5.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    figure.suptitle(title)
    for place, one in enumerate(sorted(probes, key=lambda one: one.setting)):
        window = max(1, round(WINDOW_SHARE * len(one.points)))
        losses = np.convolve(
            [point.loss for point in one.points], np.ones(window) / window, "valid"
        )
        seconds = [point.seconds for point in one.points][window - 1 :]
        is_plain, is_chosen = one.setting == SYNCHRONOUS, one.setting == chosen
        axes.plot(
            seconds,
            losses,
            color="black" if is_plain else COLOURS[place % len(COLOURS)],
            linewidth=3 if is_chosen else 1.5,
            linestyle="--" if is_plain else "-",
            label=f"{one.setting.words}{' (chosen)' if is_chosen else ''}",
        )
    axes.set_xlabel("seconds of steps since the cold start")
    axes.set_ylabel(f"training loss, mean of {WINDOW_SHARE:.0%} of the steps")
    axes.grid(alpha=0.3)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
