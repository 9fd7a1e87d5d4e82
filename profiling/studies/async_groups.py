"""`python -m launch groups`: probe compute groups, momenta and learning rates, choose, train.

The results follow as tables, sentences and charts. `profiling.studies.async_groups_search` runs
the trainings.
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from common.charts import as_png, new_figure
from common.cli import add_command, add_overrides, positive
from common.console import make_console, progress
from common.errors import FINISHED
from common.files import write_whole
from common.machine import processor_name
from launch.hosts import add_where
from launch.mpirun import choose_mpirun
from profiling.studies.async_groups_search import (
    Job,
    Loss,
    Probed,
    Results,
    Setting,
    Trained,
    best,
    cold_start,
    common_seconds,
    for_whole,
    images_per_second,
    losses,
    map_curve,
    mean_staleness,
    points_of,
    probe,
    read_results,
    search,
    whole,
    write_results,
)
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.config_types import DEFAULT_BETA1


def groups_command(
    *,
    ranks: int,
    hosts: str | None,
    hostfile: Path | None,
    mpirun: Path | None,
    config: str,
    overrides: list[str],
    out: Path,
    seconds: int,
    cold_start: int,  # the option's name
    whole: bool,
) -> int:
    """Find which groups and momentum to take, and print them; returns the exit code.

    Raises:
        InputError: A training cannot be started or did not end well, or the folder has other ones.
    """
    settings = load_config(config, overrides)
    choose_mpirun(mpirun)  # refuses at once where there is none
    console = make_console(pipe_width=140)
    where = ["--hosts", hosts] if hosts is not None else []
    where += ["--hostfile", str(hostfile.resolve())] if hostfile is not None else []
    where += ["--mpirun", str(mpirun.resolve())] if mpirun is not None else []
    job = Job(
        ranks=ranks,
        config=config,
        overrides=tuple(overrides),
        learning_rate=settings.training.learning_rate,
        where=tuple(where),
        folder=out.resolve(),
    )
    about = {
        "config": config,
        "overrides": overrides,
        "ranks": ranks,
        "seconds": seconds,
        "cold start": cold_start,
        "processor": processor_name(),
    }
    results = read_results(job.folder, about)
    write_results(job.folder, results)  # from now on the folder belongs to these settings
    run_probes(job, results, seconds=seconds, cold_seconds=cold_start, console=console)
    # Here, because matplotlib is slow to load.
    pass  # DROPPED

    title = title_of(job, settings)
    taken = for_whole(best(results.probes))
    command = shlex.join(job.command("python", *taken.overrides(job.learning_rate)))
    print_probes(results.probes, command=command, title=title, folder=job.folder, console=console)
    if whole:
        train_whole(job, results, settings, console=console)
        print_trained(results.trained, title=title, folder=job.folder, console=console)
    return FINISHED


def run_probes(
    job: Job, results: Results, *, seconds: int, cold_seconds: int, console: Console
) -> None:
    """Probe what the search asks for and has not been probed; adds to the results."""
    with progress(console, "cold start, seconds", total=cold_seconds) as advance:
        after_step = cold_start(job, seconds=cold_seconds, advance=advance)
    for setting in search(job.ranks, best_of=lambda some: best(results.probes_of(some))):
        if results.probes_of([setting]):
            continue
        with progress(console, f"probe of {setting.words}, seconds", total=seconds) as advance:
            records = probe(job, setting, seconds=seconds, after_step=after_step, advance=advance)
        probed = Probed(
            setting=setting, points=points_of(records), staleness=mean_staleness(records)
        )
        results.probes.append(probed)
        write_results(job.folder, results)


def train_whole(job: Job, results: Results, settings: Config, *, console: Console) -> None:
    """Train to the target what has not been: one group, tuned groups, and these untuned.

    Each with the learning rate after its best probe's, see `for_whole`; untuned is the momentum.
    """
    plain, tuned = (
        for_whole(best([one for one in results.probes if (one.setting.groups > 1) == is_grouped]))
        for is_grouped in (False, True)
    )
    for setting in dict.fromkeys((plain, tuned, replace(tuned, beta1=DEFAULT_BETA1))):
        if setting in [trained.setting for trained in results.trained]:
            continue
        title, epochs = f"whole training of {setting.words}, epochs", settings.training.epochs
        with progress(console, title, total=epochs) as advance:
            records = whole(job, setting, advance=advance)
        trained = Trained(
            setting=setting,
            curve=map_curve(records),
            steps=sum(record["kind"] == "step" for record in records),
            staleness=mean_staleness(records),
            target=settings.training.target_map,
        )
        results.trained.append(trained)
        write_results(job.folder, results)


def title_of(job: Job, settings: Config) -> str:
    """Return what was trained, on what."""
    size, precision = settings.data.image_size, settings.engine.precision
    what = f"{job.config} on {job.ranks} ranks, {size}×{size}, {precision}"
    return f"{what}; {processor_name()}"


ABOUT = """\
Find how many compute groups (distributed.groups), how much momentum (training.beta1) and which
learning rate train soonest on these ranks.

Groups that do not wait for one another take more steps a second. But their gradients are late: that
acts as momentum, about 1 - 1/g of it with g groups, so that the optimizer's own has to be lowered,
and it needs a smaller learning rate to be stable. How far, and whether it pays at all, depends on
model, data and hosts. As Omnivore does, this command trains synchronously for a while (the cold
start), then from there for some seconds with each of several momenta and learning rates, beginning
with as many groups as there are ranks, and with half as many as long as no momentum at all is the
best. The lowest training loss at equal time is taken.

--whole then trains to the configuration's target: one group, the best groups that were found, these
from the cold start on, and the same with the optimizer's own momentum. Each takes the next larger
learning rate than its best probe's, as a short probe favours small ones. Everything goes to a
folder; the same command goes on there."""

EXAMPLES = """\
examples:
  python -m launch groups --np 2 --out runs/groups --whole                          # drawn scenes
  python -m launch groups --np 16 --hostfile hosts --out runs/groups --seconds 600 \\
      --config openimages.yaml training.warmup_epochs=0.001"""


def add_groups(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `groups` to the commands of a command line."""
    parser = add_command(commands, "groups", about=ABOUT, examples=EXAMPLES)
    parser.add_argument(
        "--np", dest="ranks", type=several, required=True, metavar="N", help="ranks on all hosts"
    )
    add_where(parser, hosts_help="hosts, with ranks of each if not even: A:8,B:4")
    parser.add_argument(
        "--config", default="demo.yaml", metavar="NAME", help="as train.py's (default: demo.yaml)"
    )
    add_overrides(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="of all runs, results and chart"
    )
    for name, default, what in (
        ("--seconds", 60, "seconds of steps of each probe"),
        ("--cold-start", 60, "seconds of synchronous steps before"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="S", help=help_text)
    parser.add_argument(
        "--whole", action="store_true", help="also train to the target, with and without"
    )
    parser.set_defaults(run=groups_command)


def several(text: str) -> int:
    """Return a whole number above 1."""
    count = positive(text)
    if count == 1:
        raise argparse.ArgumentTypeError("one rank makes no groups: expected 2 or more")
    return count


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
