"""The results of probes and whole trainings of compute groups: tables, sentences, charts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from common.charts import as_png, new_figure
from common.files import write_whole
from profiling.studies.async_groups.study import (
    Loss,
    Probed,
    Setting,
    Trained,
    best,
    common_seconds,
    for_whole,
    images_per_second,
    losses,
)

PROBES_CHART, TRAINED_CHART = "probes.png", "trained.png"
CLEARLY = 2.0
"""Standard errors of a difference from which on it is not by chance."""
COLOURS = ("#3c8ddc", "#2f9e44", "#f08c00", "#e6194b", "#9c36b5", "#8d6e63")
WINDOW_SHARE = 0.15
"""Share of a probe's steps over whose losses each drawn median is taken."""


def print_probes(
    probes: Sequence[Probed], *, command: str, title: str, folder: Path, console: Console
) -> None:
    """Print the probes and the choice, and draw them into the study's folder.

    Args:
        probes: All of them.
        command: Trains with the choice.
        title: What was trained, on what.
        folder: The study's.
        console: Where to.
    """
    chosen = best(probes)
    write_whole(folder / PROBES_CHART, loss_chart(probes, chosen, title=title))
    console.print(probes_table(probes))
    console.print(choice_words(probes), soft_wrap=True)
    taken = for_whole(chosen)
    larger = f", with learning rate × {taken.rate:g}, as a short probe favours small ones"
    note = larger if taken != chosen else ""
    console.print(f"command{note}: {command}", soft_wrap=True, markup=False)
    console.print(f"chart: {folder / PROBES_CHART}", soft_wrap=True)


def print_trained(
    trained: Sequence[Trained], *, title: str, folder: Path, console: Console
) -> None:
    """Print the whole trainings, and draw them into the study's folder."""
    write_whole(folder / TRAINED_CHART, map_chart(trained, title=title))
    console.print(trained_table(trained))
    for line in sooner_words(trained):
        console.print(line, soft_wrap=True)
    console.print(f"chart: {folder / TRAINED_CHART}", soft_wrap=True)


def probes_table(probes: Sequence[Probed]) -> Table:
    """Return a table with a probe a row, the best first."""
    of_probes = losses(probes)
    table = Table(
        title=f"training loss after {common_seconds(probes):.0f} s of steps, from one cold start",
        title_justify="left",
    )
    for heading in ("groups", "beta1", "learning rate", "loss", "images/s", "mean staleness"):
        table.add_column(heading, justify="right")
    for probed in sorted(probes, key=lambda probed: of_probes[probed.setting].mean):
        loss = of_probes[probed.setting]
        table.add_row(
            *setting_cells(probed.setting),
            f"{loss.mean:.4f} ± {loss.error:.4f}",
            f"{images_per_second(probed.points):.1f}",
            f"{probed.staleness:.2f}",
        )
    return table


def setting_cells(setting: Setting) -> tuple[str, str, str]:
    """Return groups, momentum and learning rate as cells of a table."""
    return str(setting.groups), f"{setting.beta1:g}", f"× {setting.rate:g}"


def choice_words(probes: Sequence[Probed]) -> str:
    """Return which setting to take, and how it compares with plain training (or with groups)."""
    of_probes = losses(probes)
    chosen = best(probes)
    is_plain = chosen.groups == 1
    others = [probed for probed in probes if (probed.setting.groups == 1) != is_plain]
    return f"take {chosen.words}: {compared_losses(of_probes, chosen, best(others))}"


def compared_losses(of_probes: dict[Setting, Loss], setting: Setting, other: Setting) -> str:
    """Return how the losses of two probes differ, in words."""
    loss, other_loss = of_probes[setting], of_probes[other]
    difference = other_loss.mean - loss.mean
    error = (loss.error**2 + other_loss.error**2) ** 0.5
    sure = "" if difference > CLEARLY * error else ", so that the probes do not tell them apart"
    return f"its loss is lower by {difference:.4f} ± {error:.4f} than that of {other.words}{sure}"


def trained_table(trained: Sequence[Trained]) -> Table:
    """Return a table with a whole training a row, the soonest first."""
    table = Table(title="whole trainings, to the target or the end", title_justify="left")
    settings = ("groups", "beta1", "learning rate")
    results = ("time", "epochs", "steps", "staleness", "mAP", "mAP50", "target")
    for heading in (*settings, *results):
        table.add_column(heading, justify="right")
    for result in in_order(trained):
        table.add_row(
            *setting_cells(result.setting),
            minutes(result.seconds),
            f"{result.epochs:.3g}",
            str(result.steps),
            f"{result.staleness:.2f}",
            f"{result.best.map:.3f}",
            f"{result.best.map_50:.3f}",
            "reached" if result.is_reached else "not reached",
        )
    return table


def in_order(trained: Sequence[Trained]) -> list[Trained]:
    """Return those that reached the target first, the soonest before the others."""
    return sorted(trained, key=lambda result: (not result.is_reached, result.seconds))


def sooner_words(trained: Sequence[Trained]) -> list[str]:
    """Return which was the soonest at the target, and by how much, in a line for each."""
    first, *others = in_order(trained)
    if not first.is_reached:
        return ["none reached the target: train longer (training.epochs)"]
    lines = [f"soonest at the target: {first.setting.words}, after {minutes(first.seconds)}"]
    for result in others:
        times = f"{result.seconds / first.seconds:.2f} times as long"
        if result.is_reached:
            times += f", {result.epochs / first.epochs:.2f} times the epochs"
        else:
            times = f"target not reached, best mAP {result.best.map:.3f} in {times}"
        lines.append(f"{result.setting.words}: {times}")
    return lines


def minutes(seconds: float) -> str:
    """Return `3 min 41 s`, or `41 s`."""
    whole, remaining = divmod(round(seconds), 60)
    return f"{whole} min {remaining:02} s" if whole else f"{remaining} s"


def loss_chart(probes: Sequence[Probed], chosen: Setting, *, title: str) -> bytes:
    """Return a PNG: running medians of the training loss, by seconds of steps since the cold start.

    Args:
        probes: All of them; those of a learning rate share a panel.
        chosen: Drawn thicker.
        title: What was trained, on what.
    """
    rates = sorted({probed.setting.rate for probed in probes}, reverse=True)
    figure = new_figure(width=1.5 + 4 * len(rates), height=5)
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    figure.suptitle(title)
    for axes, rate in zip(panels, rates, strict=True):
        of_rate = [probed for probed in probes if probed.setting.rate == rate]
        draw_losses(axes, sorted(of_rate, key=lambda probed: probed.setting), chosen)
        axes.set_title(f"learning rate × {rate:g}")
    panels[0].set_ylabel("training loss, running median")
    return as_png(figure)


def draw_losses(axes: Axes, probes: Sequence[Probed], chosen: Setting) -> None:
    """Draw the probes of one learning rate; plain training is black."""
    colours = iter(COLOURS * len(probes))
    for probed in probes:
        setting = probed.setting
        is_plain, is_chosen = setting.groups == 1, setting == chosen
        seconds, medians = running_median(probed)
        groups = "1 group" if is_plain else f"{setting.groups} groups"
        axes.plot(
            seconds,
            medians,
            color="black" if is_plain else next(colours),
            linewidth=3.5 if is_chosen else 1.5,
            linestyle="--" if is_plain else "-",
            label=f"{groups}, beta1 {setting.beta1:g}{' (chosen)' if is_chosen else ''}",
        )
    axes.set_xlabel("seconds of steps since the cold start")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def running_median(probed: Probed) -> tuple[list[float], list[float]]:
    """Return seconds and losses; means would show little but the few steps that diverge."""
    window = max(1, round(WINDOW_SHARE * len(probed.points)))
    ends = range(window, len(probed.points) + 1)
    medians = [
        float(np.median([point.loss for point in probed.points[end - window : end]]))
        for end in ends
    ]
    return [probed.points[end - 1].seconds for end in ends], medians


def map_chart(trainings: Sequence[Trained], *, title: str) -> bytes:
    """Return a PNG: mAP and mAP50 of the validation split, by minutes of steps and evaluations.

    Args:
        trainings: All of them, with a common target.
        title: What was trained, on what.
    """
    figure = new_figure(width=11, height=4.5)
    panels = figure.subplots(1, 2, sharex=True)
    figure.suptitle(title)
    colours = iter(COLOURS * len(trainings))
    for trained in sorted(trainings, key=lambda trained: trained.setting):
        colour = "black" if trained.setting.groups == 1 else next(colours)
        at = [evaluated.seconds / 60 for evaluated in trained.curve]
        for axes, metric in zip(panels, ("map", "map_50"), strict=True):
            values = [getattr(evaluated, metric) for evaluated in trained.curve]
            axes.plot(at, values, "o-", color=colour, label=trained.setting.words)
    if trainings and trainings[0].target is not None:
        panels[0].axhline(trainings[0].target, color="grey", linestyle=":", label="target")
    for axes, name in zip(panels, ("mAP", "mAP50"), strict=True):
        axes.set(xlabel="minutes of steps and evaluations", ylabel=name, xlim=0, ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=9, loc="upper left")
    return as_png(figure)
