"""`python -m launch groups`: probe compute groups, momenta and learning rates, choose, train.

The results follow as tables, sentences and charts. `profiling.studies.async_groups_search` runs
the trainings.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.console import Console

from common.charts import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    Column,
    Table,
    as_png,
    new_figure,
    table_rows,
)
from common.cli import add_command, positive
from common.console import make_console, print_line, progress
from common.errors import FINISHED
from common.files import write_atomically
from common.machine import processor_name
from common.options import flag, included, option, overrides_argument
from launch.hosts import Where
from launch.mpirun import choose_mpirun
from profiling.studies import async_groups_search as study
from profiling.studies.async_groups_search import Job, Probed, Results, Setting, Trained, best
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.config_types import DEFAULT_BETA1


def several(text: str) -> int:
    """Parse an integer above 1."""
    count = positive(text)
    if count == 1:
        raise argparse.ArgumentTypeError("groups need at least 2 ranks")
    return count


@dataclass(frozen=True, kw_only=True)
class GroupsOptions:
    """The options of `python -m launch groups`."""

    ranks: int = option("number of ranks on all hosts", name="--np", parse=several, metavar="N")
    where: Where = included(Where)
    config: str = option("as for train.py", default="demo.yaml", metavar="NAME")
    overrides: list[str] = overrides_argument()
    out: Path = option("folder for all runs, results and charts", metavar="FOLDER")
    seconds: int = option(
        "training time of each probe [s]", default=60, parse=positive, metavar="S"
    )
    cold_start: int = option(
        "synchronous training time before the probes [s]", default=60, parse=positive, metavar="S"
    )
    whole: bool = flag("also train to the target, with and without groups")


def groups_command(options: GroupsOptions) -> int:
    """Select the number of groups and momentum, and print them; return the exit code."""
    config, overrides, ranks = options.config, options.overrides, options.ranks
    settings = load_config(config, overrides)
    # Without an mpirun the command ends here, before any result is written.
    choose_mpirun(options.where.mpirun)
    console = make_console(pipe_width=140)
    hosts, hostfile, mpirun = options.where.hosts, options.where.hostfile, options.where.mpirun
    where = ["--hosts", hosts] if hosts is not None else []
    where += ["--hostfile", str(hostfile)] if hostfile is not None else []
    where += ["--mpirun", str(mpirun)] if mpirun is not None else []
    job = Job(
        ranks=ranks,
        config=config,
        overrides=tuple(overrides),
        learning_rate=settings.training.learning_rate,
        where=tuple(where),
        folder=options.out.resolve(),
    )
    about = {
        "config": config,
        "overrides": overrides,
        "ranks": ranks,
        "seconds": options.seconds,
        "cold start": options.cold_start,
        "processor": processor_name(),
    }
    results = study.read_results(job.folder, about)
    # From now on the folder belongs to these settings.
    study.write_results(job.folder, results)
    run_probes(job, results, options, console=console)
    size, precision = settings.data.image_size, settings.engine.precision
    title = f"{config} on {ranks} ranks, {size}×{size}, {precision}; {processor_name()}"
    print_probes(job, results.probes, title=title, console=console)
    if options.whole:
        train_whole(job, results, settings, console=console)
        print_trained(results.trained, job.folder / "trained.png", title=title, console=console)
    return FINISHED


def run_probes(job: Job, results: Results, options: GroupsOptions, *, console: Console) -> None:
    """Run the probes that are still missing; adds to the results."""
    seconds, cold_seconds = options.seconds, options.cold_start
    with progress(console, "cold start, seconds", total=cold_seconds) as advance:
        after_step = study.cold_start(job, seconds=cold_seconds, advance=advance)
    for setting in study.search(
        job.ranks, choose_best=lambda settings: best(results.select_probes(settings))
    ):
        # An earlier command has run this probe already.
        if results.select_probes([setting]):
            continue
        with progress(console, f"probe of {setting.title}, seconds", total=seconds) as advance:
            records = study.probe(
                job, setting, seconds=seconds, after_step=after_step, advance=advance
            )
        probed = Probed(
            setting=setting,
            points=study.step_points(records),
            staleness=study.mean_staleness(records),
        )
        results.probes.append(probed)
        study.write_results(job.folder, results)


def train_whole(job: Job, results: Results, settings: Config, *, console: Console) -> None:
    """Run the missing trainings to the target: one group, tuned groups, and untuned groups.

    Each with the learning rate after its best probe's, see `for_whole`; untuned is the momentum.
    """
    plain, tuned = (
        study.for_whole(best([each for each in results.probes if each.is_grouped == is_grouped]))
        for is_grouped in (False, True)
    )
    # A dict drops equal settings: the default momentum may be the tuned one.
    for setting in dict.fromkeys((plain, tuned, replace(tuned, beta1=DEFAULT_BETA1))):
        if setting in [trained.setting for trained in results.trained]:
            continue
        title, epochs = f"training with {setting.title}, epochs", settings.training.epochs
        with progress(console, title, total=epochs) as advance:
            records = study.whole(job, setting, advance=advance)
        trained = Trained(
            setting=setting,
            curve=study.map_curve(records),
            steps=sum(record["kind"] == "step" for record in records),
            staleness=study.mean_staleness(records),
            target=settings.training.target_map,
        )
        results.trained.append(trained)
        study.write_results(job.folder, results)


ABOUT = """\
Find the number of compute groups (distributed.groups), the momentum (training.beta1) and the
learning rate that train fastest on these ranks.

Groups that do not wait for one another take more steps per second, but their gradients are stale.
Staleness acts as momentum (about 1 - 1/g with g groups), so the optimizer needs less of its own,
and a smaller learning rate to be stable. How much less, and whether groups pay off, depends on
model, data and hosts. As in Omnivore, this command trains synchronously for a while (the cold
start), then continues from there for some seconds with each of several momenta and learning rates.
It begins with as many groups as ranks, and halves the number while zero momentum is the best. The
setting with the lowest training loss at equal time wins.

--whole then trains to the configuration's target: with one group, with the best setting of several
groups (from the cold start on), and with the same groups and the default momentum. Each uses the
next larger learning rate than its best probe, because short probes favour small ones. All results
are written to a folder; repeat the command to continue there."""

EXAMPLES = """\
examples:
  python -m launch groups --np 2 --out runs/groups --whole                          # synthetic data
  python -m launch groups --np 16 --hostfile hosts --out runs/groups --seconds 600 \\
      --config openimages.yaml training.warmup_epochs=0.001"""


def add_groups(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `groups` to the commands of a command line."""
    add_command(
        commands,
        "groups",
        about=ABOUT,
        examples=EXAMPLES,
        options=GroupsOptions,
        run=groups_command,
    )


CLEARLY = 2.0  # Standard errors of a difference from which on it is not by chance
COLOURS = (BLUE, GREEN, ORANGE, RED, PURPLE, "#8d6e63")
WINDOW_SHARE = 0.15  # Share of a probe's steps over whose losses each drawn median is taken
SETTING_COLUMNS = (
    Column("groups", name="setting.groups"),
    Column("beta1", "g", name="setting.beta1"),
    Column("learning rate", lambda rate: f"× {rate:g}", name="setting.rate"),
)


def print_probes(job: Job, probes: Sequence[Probed], *, title: str, console: Console) -> None:
    """Print the probes and the choice, and draw them into the study's folder."""
    chosen, of_probes, file = best(probes), study.losses(probes), job.folder / "probes.png"
    write_atomically(file, loss_chart(probes, chosen, title=title))

    def format_loss(setting: Setting) -> str:
        return f"{of_probes[setting].mean:.4f} ± {of_probes[setting].error:.4f}"

    columns = (
        *SETTING_COLUMNS,
        Column("loss", format_loss, name="setting"),
        Column("images/s", lambda points: f"{study.images_per_second(points):.1f}", name="points"),
        Column("mean staleness", ".2f", name="staleness"),
    )
    ordered = sorted(probes, key=lambda probed: of_probes[probed.setting].mean)
    rows = table_rows(columns, ordered)
    seconds = study.common_seconds(probes)
    heading = f"training loss after {seconds:.0f} s of training from the same cold start"
    console.print(Table(heading, columns, rows).for_console())
    print_line(console, format_choice(probes))
    taken = study.for_whole(chosen)
    larger = f", with learning rate × {taken.rate:g}, because short probes favour small ones"
    note = larger if taken != chosen else ""
    command = shlex.join(job.typed_command(*taken.overrides(job.learning_rate)))
    print_line(console, f"command{note}: {command}")
    print_line(console, f"chart: {file}")


def format_choice(probes: Sequence[Probed]) -> str:
    """Format the selected setting, and its comparison with plain training (or with groups)."""
    of_probes, chosen = study.losses(probes), best(probes)
    is_plain = chosen.groups == 1
    other = best([probed for probed in probes if probed.is_grouped == is_plain])
    loss, other_loss = of_probes[chosen], of_probes[other]
    difference = other_loss.mean - loss.mean
    # Errors of independent means add as squares.
    error = (loss.error**2 + other_loss.error**2) ** 0.5
    significance = "" if difference > CLEARLY * error else ", which is not significant"
    return (
        f"best: {chosen.title}; its loss is lower by {difference:.4f} ± {error:.4f} than that of "
        f"{other.title}{significance}"
    )


def print_trained(trained: Sequence[Trained], file: Path, *, title: str, console: Console) -> None:
    """Print the complete trainings, the fastest first, and draw them to a file."""
    write_atomically(file, map_chart(trained, title=title))
    columns = (
        *SETTING_COLUMNS,
        Column("time", minutes, name="seconds"),
        Column("epochs", ".3g"),
        Column("steps"),
        Column("staleness", ".2f"),
        Column("mAP", ".3f", name="best.map"),
        Column("mAP50", ".3f", name="best.map_50"),
        Column("target", ("not reached", "reached").__getitem__, name="is_reached"),
    )
    rows = table_rows(columns, in_order(trained))
    console.print(Table("trainings to the target or the last epoch", columns, rows).for_console())
    for line in compare_trained(trained):
        print_line(console, line)
    print_line(console, f"chart: {file}")


def in_order(trained: Sequence[Trained]) -> list[Trained]:
    """Return the trainings that reached the target, the fastest first, then the others."""
    return sorted(trained, key=lambda result: (not result.is_reached, result.seconds))


def compare_trained(trained: Sequence[Trained]) -> Iterator[str]:
    """Yield a line for each training: its time to the target, compared with the fastest."""
    first, *others = in_order(trained)
    if not first.is_reached:
        yield "no training reached the target: increase training.epochs"
        return
    yield f"fastest to the target: {first.setting.title}, {minutes(first.seconds)}"
    for result in others:
        times = f"{result.seconds / first.seconds:.2f} times as long"
        if result.is_reached:
            times += f", {result.epochs / first.epochs:.2f} times the epochs"
        else:
            times = f"target not reached, best mAP {result.best.map:.3f} in {times}"
        yield f"{result.setting.title}: {times}"


def minutes(seconds: float) -> str:
    """Return `3 min 41 s`, or `41 s`."""
    whole, remaining = divmod(round(seconds), 60)
    return f"{whole} min {remaining:02} s" if whole else f"{remaining} s"


def loss_chart(probes: Sequence[Probed], chosen: Setting, *, title: str) -> bytes:
    """Return a PNG: running medians of the training loss, by seconds of steps since the cold start.

    The probes of a learning rate share a panel; plain training is black, the chosen one thicker.
    """
    rates = sorted({probed.setting.rate for probed in probes}, reverse=True)
    figure = new_figure(width=1.5 + 4 * len(rates), height=5)
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    figure.suptitle(title)
    for axes, rate in zip(panels, rates, strict=True):
        colours = iter(COLOURS * len(probes))
        for probed in sorted(probes, key=lambda probed: probed.setting):
            setting, points = probed.setting, probed.points
            if setting.rate != rate:
                continue
            # Means would show little but the few steps that diverge.
            window = max(1, round(WINDOW_SHARE * len(points)))
            ends = range(window, len(points) + 1)
            axes.plot(
                [points[end - 1].seconds for end in ends],
                [median(point.loss for point in points[end - window : end]) for end in ends],
                color=next(colours) if probed.is_grouped else "black",
                linewidth=3.5 if setting == chosen else 1.5,
                linestyle="-" if probed.is_grouped else "--",
                label=f"{setting.groups_title}, beta1 {setting.beta1:g}"
                + (" (chosen)" if setting == chosen else ""),
            )
        axes.set_xlabel("seconds of steps since the cold start")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=9)
        axes.set_title(f"learning rate × {rate:g}")
    panels[0].set_ylabel("training loss, running median")
    return as_png(figure)


def map_chart(trainings: Sequence[Trained], *, title: str) -> bytes:
    """Return a PNG: mAP and mAP50 of the validation split, by minutes of steps and evaluations.

    All trainings have a common target.
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
            axes.plot(at, values, "o-", color=colour, label=trained.setting.title)
    if trainings and trainings[0].target is not None:
        panels[0].axhline(trainings[0].target, color="grey", linestyle=":", label="target")
    for axes, name in zip(panels, ("mAP", "mAP50"), strict=True):
        axes.set(xlabel="minutes of steps and evaluations", ylabel=name, xlim=0, ylim=(0, 1))
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=9, loc="upper left")
    return as_png(figure)
