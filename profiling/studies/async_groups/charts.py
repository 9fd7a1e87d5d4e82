"""Losses of all probes, and the mAP of whole trainings, against time."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from profiling.studies.async_groups.search import Probed, Setting, Trained

COLOURS = ("#3c8ddc", "#2f9e44", "#f08c00", "#e6194b", "#9c36b5", "#8d6e63")
WINDOW_SHARE = 0.15
"""Of a probe's steps, of whose losses the median is drawn."""


def loss_chart(probes: Sequence[Probed], chosen: Setting, *, title: str) -> bytes:
    """A PNG: running medians of the training loss, by seconds of steps since the cold start.

    Args:
        probes: All of them; those of a learning rate are side by side.
        chosen: Is drawn thicker.
        title: What was trained, on what.
    """
    rates = sorted({one.setting.rate for one in probes}, reverse=True)
    figure = Figure(figsize=(1.5 + 4 * len(rates), 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    figure.suptitle(title)
    for axes, rate in zip(panels, rates, strict=True):
        some = sorted((one for one in probes if one.setting.rate == rate), key=lambda a: a.setting)
        draw(axes, some, chosen)
        axes.set_title(f"learning rate × {rate:g}")
    panels[0].set_ylabel("training loss, running median")
    return png_of(figure)


def map_chart(trainings: Sequence[Trained], *, title: str) -> bytes:
    """A PNG: mAP and mAP50 of the validation split, by minutes of steps and evaluations.

    Args:
        trainings: All of them; the target is theirs in common.
        title: What was trained, on what.
    """
    figure = Figure(figsize=(11, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True)
    figure.suptitle(title)
    colours = iter(COLOURS * len(trainings))
    for one in sorted(trainings, key=lambda one: one.setting):
        colour = "black" if one.setting.groups == 1 else next(colours)
        minutes = [evaluated.seconds / 60 for evaluated in one.curve]
        for axes, values in (
            (left, [evaluated.map for evaluated in one.curve]),
            (right, [evaluated.map_50 for evaluated in one.curve]),
        ):
            axes.plot(minutes, values, "o-", color=colour, label=one.setting.words)
    if trainings and trainings[0].target is not None:
        left.axhline(trainings[0].target, color="grey", linestyle=":", label="target")
    for axes, name in ((left, "mAP"), (right, "mAP50")):
        axes.set(xlabel="minutes of steps and evaluations", ylabel=name, xlim=0, ylim=(0, 1))
        axes.grid(alpha=0.3)
    left.legend(fontsize=9, loc="upper left")
    return png_of(figure)


def png_of(figure: Figure) -> bytes:
    """Its picture."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def draw(axes: Axes, probes: Sequence[Probed], chosen: Setting) -> None:
    """The probes of one learning rate; plain training is black."""
    colours = iter(COLOURS * len(probes))
    for one in probes:
        setting = one.setting
        is_plain, is_chosen = setting.groups == 1, setting == chosen
        seconds, losses = running_median(one)
        groups = "1 group" if is_plain else f"{setting.groups} groups"
        axes.plot(
            seconds,
            losses,
            color="black" if is_plain else next(colours),
            linewidth=3.5 if is_chosen else 1.5,
            linestyle="--" if is_plain else "-",
            label=f"{groups}, beta1 {setting.beta1:g}{' (chosen)' if is_chosen else ''}",
        )
    axes.set_xlabel("seconds of steps since the cold start")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def running_median(one: Probed) -> tuple[list[float], list[float]]:
    """Seconds and losses: where steps run away now and then, a mean would show nothing else."""
    window = max(1, round(WINDOW_SHARE * len(one.points)))
    ends = range(window, len(one.points) + 1)
    losses = [
        float(np.median([point.loss for point in one.points[end - window : end]])) for end in ends
    ]
    return [one.points[end - 1].seconds for end in ends], losses
