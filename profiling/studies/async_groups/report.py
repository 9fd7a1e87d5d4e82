"""What a person reads of probes and whole trainings.

TODO-DOC Losses of all probes, and the mAP of whole trainings, against time.
"""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from profiling.studies.async_groups.search import (
    Loss,
    Probed,
    Setting,
    Trained,
    images_per_second,
    loss_at,
)

CLEARLY = 2.0
"""Standard errors of a difference from which on it is none by chance."""


def common_seconds(probes: Sequence[Probed]) -> float:
    """The time until which all have trained."""
    return min(one.points[-1].seconds if one.points else 0.0 for one in probes)


def losses(probes: Sequence[Probed]) -> dict[Setting, Loss]:
    """Of each probe, at the time until which all have trained."""
    seconds = common_seconds(probes)
    return {one.setting: loss_at(one.points, seconds) for one in probes}


def best(probes: Sequence[Probed]) -> Setting:
    """The one whose loss is the lowest."""
    found = losses(probes)
    return min(found, key=lambda setting: found[setting].mean)


def probes_table(probes: Sequence[Probed]) -> Table:
    """A probe a row, the best first."""
    found = losses(probes)
    table = Table(
        title=f"training loss after {common_seconds(probes):.0f} s of steps, from one cold start",
        title_justify="left",
    )
    for heading in ("groups", "beta1", "learning rate", "loss", "images/s", "mean staleness"):
        table.add_column(heading, justify="right")
    for one in sorted(probes, key=lambda one: found[one.setting].mean):
        loss = found[one.setting]
        table.add_row(
            str(one.setting.groups),
            f"{one.setting.beta1:g}",
            f"× {one.setting.rate:g}",
            f"{loss.mean:.4f} ± {loss.error:.4f}",
            f"{images_per_second(one.points):.1f}",
            f"{one.staleness:.2f}",
        )
    return table


def choice_words(probes: Sequence[Probed]) -> str:
    """Which one to take, and how it does against plain training, or that against groups."""
    found = losses(probes)
    chosen = best(probes)
    is_plain = chosen.groups == 1
    others = [one for one in probes if (one.setting.groups == 1) != is_plain]
    return f"take {chosen.words}: {held_against(found, chosen, best(others))}"


def held_against(found: dict[Setting, Loss], one: Setting, other: Setting) -> str:
    """How two probes differ, in words."""
    difference = found[other].mean - found[one].mean
    error = (found[one].error ** 2 + found[other].error ** 2) ** 0.5
    sure = "" if difference > CLEARLY * error else ", so that the probes do not tell them apart"
    return f"its loss is lower by {difference:.4f} ± {error:.4f} than that of {other.words}{sure}"


def trained_table(trained: Sequence[Trained]) -> Table:
    """A whole training a row, the soonest first."""
    table = Table(title="whole trainings, to the target or the end", title_justify="left")
    settings = ("groups", "beta1", "learning rate")
    results = ("time", "epochs", "steps", "staleness", "mAP", "mAP50", "target")
    for heading in (*settings, *results):
        table.add_column(heading, justify="right")
    for one in in_order(trained):
        table.add_row(
            str(one.setting.groups),
            f"{one.setting.beta1:g}",
            f"× {one.setting.rate:g}",
            minutes(one.seconds),
            f"{one.epochs:.3g}",
            str(one.steps),
            f"{one.staleness:.2f}",
            f"{one.best.map:.3f}",
            f"{one.best.map_50:.3f}",
            "reached" if one.is_reached else "not reached",
        )
    return table


def in_order(trained: Sequence[Trained]) -> list[Trained]:
    """Those that reached the target first, the soonest before the others."""
    return sorted(trained, key=lambda one: (not one.is_reached, one.seconds))


def sooner_words(trained: Sequence[Trained]) -> list[str]:
    """Which was sooner at the target, by how much, with what beside it."""
    first, *others = in_order(trained)
    if not first.is_reached:
        return ["none reached the target: train longer (training.epochs)"]
    lines = [f"soonest at the target: {first.setting.words}, after {minutes(first.seconds)}"]
    for one in others:
        times = f"{one.seconds / first.seconds:.2f} times as long"
        if one.is_reached:
            times += f", {one.epochs / first.epochs:.2f} times the epochs"
        else:
            times = f"target not reached, best mAP {one.best.map:.3f} in {times}"
        lines.append(f"{one.setting.words}: {times}")
    return lines


def minutes(seconds: float) -> str:
    """`3 min 41 s`, or `41 s`."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest:02} s" if whole else f"{rest} s"


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
