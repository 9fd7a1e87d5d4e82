"""`retinanet launch groups`: probe compute groups, momenta and learning rates, choose, train.

As in Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 4.2, algorithm 1), the search begins
with the largest number of groups and a grid of momentum and learning rate. If zero momentum is the
best of the grid, the staleness is too high: half as many groups are tried, and so on. Every
training has a process and a folder of the study; progress and results are read from its
`metrics.jsonl`. Results are stored after each training, so that a repeated command continues.
"""

import argparse
import math
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from rich.console import Console

from common.charts import PALETTE, Column, Table, as_png, new_figure, table_rows
from common.cli import add_command, positive
from common.console import Advance, make_console, print_line, progress
from common.errors import FINISHED, InputError
from common.files import (
    new_folder_beside,
    read_json_lines,
    write_atomically,
    write_json,
)
from common.machine import processor_name
from common.options import flag, included, option, overrides_argument
from common.outputs import format_names, other_entries
from common.program import command_words, module_command
from common.stored import first_difference, read_stored
from common.walk import real_path
from common.wording import counted
from data.annotations import shown_size
from launch.hosts import Where
from launch.mpirun import choose_mpirun
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.config_types import DEFAULT_BETA1, explicit_momentum
from retinanet.training_job import train_until

BETAS = (0.0, 0.6, DEFAULT_BETA1)
"""Momenta that are probed beside that of the rule (`retinanet.config_types`)."""
RATES = (1.0, 0.3, 0.1, 0.03)
"""Shares of the configuration's learning rate: with late gradients a smaller one is stable."""
LAST_SHARE = 0.25  # Share of the time over which losses are averaged, since single steps scatter
FOR_PROBES = (
    "training.schedule=constant",
    "training.target_map=null",
    "training.epochs=100000",
    "training.max_steps=null",
    "evaluation.every=100000",
    "evaluation.pictures=0",
    "checkpoint.keep=1",
)
"""Probes are stopped after their time, long before a learning rate that decays would have."""
RESULTS_FILE = "probes.json"
COLD_START = "cold-start"  # The run that all others continue


@dataclass(frozen=True, order=True)
class Setting:
    """The groups, momentum and learning rate of a probe."""

    groups: int
    beta1: float
    rate: float = 1.0  # Share of the configuration's learning rate

    @property
    def name(self) -> str:
        """`groups2-beta0.3-rate0.1`, for files."""
        return f"groups{self.groups}-beta{self.beta1:g}-rate{self.rate:g}"

    @property
    def groups_title(self) -> str:
        """The number of groups, such as `2 groups`."""
        return counted(self.groups, "group")

    @property
    def title(self) -> str:
        """The title, such as `2 groups, beta1 0.3, learning rate × 0.1`."""
        rate = "" if self.rate == 1 else f", learning rate × {self.rate:g}"
        return f"{self.groups_title}, beta1 {self.beta1:g}{rate}"

    def overrides(self, config: Config) -> tuple[str, ...]:
        """Return the fields for `retinanet train` as `section.field=value`."""
        return (
            f"distributed.groups={self.groups}",
            f"training.beta1={self.beta1:g}",
            f"training.learning_rate={config.training.learning_rate * self.rate:g}",
        )


def for_whole(setting: Setting) -> Setting:
    """Return the setting of the training after the best probe: the next larger learning rate.

    A short probe favours small ones, whose loss falls at once; larger ones pay off when they have
    fallen (Wu et al. 2018, "Understanding Short-Horizon Bias", arXiv 1803.02021).
    """
    larger = [rate for rate in RATES if rate > setting.rate]
    return replace(setting, rate=min(larger, default=setting.rate))


def settings_grid(groups: int) -> list[Setting]:
    """Return the grid of settings for a number of groups. One group is plain training."""
    # Plain training has no staleness to compensate, so only the default momentum is probed.
    betas = {*BETAS, explicit_momentum(groups)} if groups > 1 else {DEFAULT_BETA1}
    return [Setting(groups, beta1, rate) for beta1 in sorted(betas) for rate in RATES]


def search(ranks: int, *, choose_best: Callable[[Sequence[Setting]], Setting]) -> Iterator[Setting]:
    """Yield the settings to probe; `choose_best` is called with the settings of a grid."""
    yield from settings_grid(1)
    # As many groups as there can be: one for each rank.
    groups = ranks
    while groups > 1:
        settings = settings_grid(groups)
        yield from settings
        # Zero as the best momentum means too much staleness, which fewer groups reduce.
        if choose_best(settings).beta1 > 0:
            return
        # At most half as many, and a divisor, so that all groups have as many ranks.
        groups = max(
            fewer for fewer in range(1, groups) if ranks % fewer == 0 and fewer <= groups / 2
        )


def several(text: str) -> int:
    """Parse an integer above 1."""
    count = positive(text)
    if count == 1:
        raise argparse.ArgumentTypeError("groups need at least 2 ranks")
    return count


@dataclass(frozen=True, kw_only=True)
class GroupsOptions:
    """The options of `retinanet launch groups`."""

    ranks: int = option("number of ranks on all hosts", name="--np", parse=several, metavar="N")
    where: Where = included(Where)
    config: str = option("as for train", default="demo.yaml", metavar="NAME")
    overrides: list[str] = overrides_argument()
    out: Path = option("folder for all runs, results and charts", metavar="FOLDER")
    seconds: int = option(
        "training time of each probe [s]", default=60, parse=positive, metavar="S"
    )
    cold_start: int = option(
        "synchronous training time before the probes [s]", default=60, parse=positive, metavar="S"
    )
    whole: bool = flag("also train to the target, with and without groups")


class Study(NamedTuple):
    """The options of a study, and the configuration that they name."""

    options: GroupsOptions
    config: Config

    @property
    def folder(self) -> Path:
        """The folder of all runs."""
        return real_path(self.options.out)

    @property
    def arguments(self) -> list[str]:
        """The arguments of each training."""
        return ["--config", self.options.config, *self.options.overrides]

    def launcher(self, launch: Sequence[str]) -> list[str]:
        """Return the command that starts the ranks, with `launch` as the program."""
        options, where = self.options, asdict(self.options.where)
        named = [
            text
            for name, value in where.items()
            if value is not None
            for text in (f"--{name}", str(value))
        ]
        return [*launch, "run", "--np", str(options.ranks), *named, "--"]


def groups_command(options: GroupsOptions) -> int:
    """Select the number of groups and momentum, and print them; return the exit code."""
    settings = load_config(options.config, options.overrides)
    # Without an mpirun the command ends here, before any result is written.
    choose_mpirun(options.where.mpirun)
    console, study = make_console(pipe_width=140), Study(options, settings)
    about = {
        "config": options.config,
        "overrides": options.overrides,
        "ranks": options.ranks,
        "seconds": options.seconds,
        "cold start": options.cold_start,
        "processor": processor_name(),
    }
    results = read_results(study.folder, about)
    # From now on the folder belongs to these settings.
    write_results(study.folder, results)
    run_probes(study, results, console=console)
    size, precision = shown_size(settings.data.image_size), settings.engine.precision
    title = f"{options.config} on {options.ranks} ranks, {size}, {precision}; {processor_name()}"
    print_probes(study, results.probes, title=title, console=console)
    if options.whole:
        train_whole(study, results, console=console)
        file = study.folder / "trained.png"
        print_trained(results.trained, file, title=title, console=console)
    return FINISHED


def run_probes(study: Study, results: "Results", *, console: Console) -> None:
    """Run the probes that are still missing; adds to the results."""
    seconds, cold_seconds = study.options.seconds, study.options.cold_start
    with progress(console, "cold start, seconds", total=cold_seconds) as advance:
        after_step = cold_start(study, seconds=cold_seconds, advance=advance)
    for setting in search(
        study.options.ranks, choose_best=lambda settings: best(results.select_probes(settings))
    ):
        # An earlier command has run this probe already.
        if results.select_probes([setting]):
            continue
        with progress(console, f"probe of {setting.title}, seconds", total=seconds) as advance:
            steps = probe(study, setting, seconds=seconds, after_step=after_step, advance=advance)
        points, staleness = step_points(steps), mean_staleness(steps)
        results.probes.append(Probed(setting=setting, points=points, staleness=staleness))
        write_results(study.folder, results)


def train_whole(study: Study, results: "Results", *, console: Console) -> None:
    """Run the missing trainings to the target: one group, tuned groups, and untuned groups.

    Each with the learning rate after its best probe's, see `for_whole`; untuned is the momentum.
    """
    plain, tuned = (
        for_whole(best([each for each in results.probes if each.is_grouped == is_grouped]))
        for is_grouped in (False, True)
    )
    settings = study.config.training
    # A dict drops equal settings: the default momentum may be the tuned one.
    for setting in dict.fromkeys((plain, tuned, replace(tuned, beta1=DEFAULT_BETA1))):
        if setting in [trained.setting for trained in results.trained]:
            continue
        title = f"training with {setting.title}, epochs"
        with progress(console, title, total=settings.epochs) as advance:
            records = whole(study, setting, advance=advance)
        trained = Trained(
            setting=setting,
            curve=map_curve(records),
            steps=sum(record["kind"] == "step" for record in records),
            staleness=mean_staleness(records),
            target=settings.target_map,
        )
        results.trained.append(trained)
        write_results(study.folder, results)


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
  retinanet launch groups --np 2 --out runs/groups --whole                          # synthetic data
  retinanet launch groups --np 16 --hostfile hosts --out runs/groups --seconds 600 \\
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


def cold_start(study: Study, *, seconds: float, advance: Advance) -> int:
    """Train synchronously for a number of seconds, or resume; return the number of steps.

    Raises:
        InputError: The training failed.
    """
    options = (*FOR_PROBES, "distributed.groups=1", "--auto-resume")
    run = study.folder / COLD_START
    steps = train_for(study, run, options, seconds=seconds, after_step=0, advance=advance)
    return max(record["step"] for record in steps)


def probe(
    study: Study, setting: Setting, *, seconds: float, after_step: int, advance: Advance
) -> list[dict[str, Any]]:
    """Continue the cold start for some seconds of steps; returns the records of these steps.

    Raises:
        InputError: The training failed.
    """
    run = study.folder / setting.name
    # An interrupted probe starts again: it must train for its whole time in one go.
    shutil.rmtree(run, ignore_errors=True)
    copy_cold_start(study, run)
    options = (*FOR_PROBES, *setting.overrides(study.config), "--resume")
    try:
        return train_for(
            study, run, options, seconds=seconds, after_step=after_step, advance=advance
        )
    finally:
        # A checkpoint takes half a gigabyte, and no training continues a probe.
        shutil.rmtree(run / "checkpoints", ignore_errors=True)


def whole(study: Study, setting: Setting, *, advance: Advance) -> list[dict[str, Any]]:
    """Train to the end of the configuration, or resume; return the run's records.

    Groups begin where the cold start has ended, whose steps are theirs too: it is the first part
    of such a training. A finished training is not run again.

    Raises:
        InputError: The training failed.
    """
    run = study.folder / f"whole-{setting.name}"
    if setting.groups > 1 and not run.exists():
        copy_cold_start(study, run)

    def show_progress(records: Sequence[dict[str, Any]]) -> bool:
        # A metric that does not exist is null in the file.
        maps = [record["map"] or 0 for record in records if record["kind"] == "evaluation"]
        note = f"mAP {max(maps):.3f}" if maps else ""
        advance(int(records[-1]["epoch"]) if records else 0, note)
        return False

    overrides = setting.overrides(study.config)
    options = (*overrides, "evaluation.pictures=0", "checkpoint.keep=1", "--auto-resume")
    train(study, run, options, is_enough=show_progress)
    return read_records(run)


def copy_cold_start(study: Study, run: Path) -> None:
    """Copy the cold start, atomically, to a run of another name that continues it."""
    # Copying can be interrupted and renaming cannot: a run of this name is complete.
    with new_folder_beside(run) as folder:
        begun = shutil.copytree(study.folder / COLD_START, folder / run.name, symlinks=True)
        begun.rename(run)


def train_for(
    study: Study,
    run: Path,
    options: Sequence[str],
    *,
    seconds: float,
    after_step: int,
    advance: Advance,
) -> list[dict[str, Any]]:
    """Start or resume a run, and stop it after a number of seconds of steps; return the steps."""

    def seconds_of(records: Sequence[dict[str, Any]]) -> float:
        points = step_points(steps_after(records, after_step))
        return points[-1].seconds if points else 0.0

    def is_enough(records: Sequence[dict[str, Any]]) -> bool:
        done = seconds_of(records)
        advance(round(min(done, seconds)), "")
        return done >= seconds

    # A run that an earlier command has stopped in time has nothing left to train.
    if seconds_of(read_records(run)) < seconds:
        train(study, run, options, is_enough=is_enough)
    return steps_after(read_records(run), after_step)


def train(
    study: Study,
    run: Path,
    options: Sequence[str],
    *,
    is_enough: Callable[[Sequence[dict[str, Any]]], bool],
) -> None:
    """Train a run until its end, or until `is_enough` is true of its records; see `train_until`."""
    # In the user's folder: the configuration's path and those in overrides may be relative.
    train_until(
        lambda _: is_enough(read_records(run)),
        run,
        [*study.arguments, *options],
        launcher=study.launcher(module_command("launch")),
    )


def read_records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run, as far as they are written; none before the first."""
    return read_json_lines(run / "metrics.jsonl")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A training step of a group, with its time since the beginning of the first counted step."""

    seconds: float
    loss: float
    images: int


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """An evaluation, and the time of all steps before it and of evaluations including it."""

    epoch: float
    seconds: float
    map: float
    map_50: float


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The mean loss over the steps before a given time, and its standard error."""

    mean: float
    error: float


def steps_after(records: Sequence[dict[str, Any]], after_step: int = 0) -> list[dict[str, Any]]:
    """Return the steps after another, of the lines of `metrics.jsonl`."""
    return [
        record for record in records if record["kind"] == "step" and record["step"] > after_step
    ]


def step_points(steps: Sequence[dict[str, Any]]) -> list[Point]:
    """Return steps in order of time.

    Groups work in parallel since the last step of all ranks.
    """
    together = 0.0
    apart: dict[int, float] = {}
    points = []
    for record in steps:
        # A loss that is not finite is null in the file, as JSON has no NaN.
        if record["loss"] is None:
            continue
        if "group" in record:
            # Groups do not wait for one another: each has a clock of its own.
            at = apart.get(record["group"], together) + record["seconds"]
            apart[record["group"]] = at
        else:
            # A step of all ranks begins when the slowest group is there.
            at = together = max([together, *apart.values()]) + record["seconds"]
            apart = {}
        points.append(Point(seconds=at, loss=record["loss"], images=record["images"]))
    return sorted(points, key=lambda point: point.seconds)


def map_curve(records: Sequence[dict[str, Any]]) -> list[Evaluated]:
    """Return the evaluations of a run, in order; a missing metric is 0."""
    curve, evaluating = [], 0.0
    for place, record in enumerate(records):
        if record["kind"] != "evaluation":
            continue
        # The time of a step does not include the evaluation after it.
        evaluating += record["seconds"]
        points = step_points(steps_after(records[:place]))
        curve.append(
            Evaluated(
                epoch=record["epoch"],
                seconds=(points[-1].seconds if points else 0.0) + evaluating,
                map=record["map"] or 0.0,
                map_50=record["map_50"] or 0.0,
            )
        )
    return curve


def mean_staleness(records: Sequence[dict[str, Any]]) -> float:
    """Return the mean staleness of groups' steps; 0 if all ranks have taken each step together."""
    values = [record["staleness"] for record in records if "staleness" in record]
    return fmean(values) if values else 0.0


def loss_at(points: Sequence[Point], seconds: float) -> Loss:
    """Return the mean loss over the last quarter of the time until then; infinite without steps."""
    late = [point.loss for point in points if (1 - LAST_SHARE) * seconds < point.seconds <= seconds]
    if not late:
        return Loss(mean=math.inf, error=math.inf)
    # A standard deviation needs two values.
    return Loss(mean=fmean(late), error=stdev(late) / len(late) ** 0.5 if late[1:] else math.inf)


def images_per_second(points: Sequence[Point]) -> float:
    """Return the total throughput of all groups."""
    return sum(point.images for point in points) / points[-1].seconds if points else 0.0


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The result of a probe, with the mean staleness of its steps."""

    setting: Setting
    points: list[Point]
    staleness: float

    @property
    def is_grouped(self) -> bool:
        """Whether the probe has several groups."""
        return self.setting.groups > 1


def common_seconds(probes: Sequence[Probed]) -> float:
    """Return the longest time that all probes have trained. [s]"""
    return min(probed.points[-1].seconds if probed.points else 0.0 for probed in probes)


def losses(probes: Sequence[Probed]) -> dict[Setting, Loss]:
    """Return the loss of each probe at the time until which all have trained."""
    # Loss falls with time, so probes are compared at the same time only.
    seconds = common_seconds(probes)
    return {probed.setting: loss_at(probed.points, seconds) for probed in probes}


def best(probes: Sequence[Probed]) -> Setting:
    """Return the setting whose loss is the lowest."""
    of_probes = losses(probes)
    return min(of_probes, key=lambda setting: of_probes[setting].mean)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a complete training, until the target or the end."""

    setting: Setting
    curve: list[Evaluated]  # At least one
    steps: int
    staleness: float
    target: float | None  # mAP, of the configuration

    @property
    def seconds(self) -> float:
        """The time of steps and evaluations."""
        return self.curve[-1].seconds

    @property
    def epochs(self) -> float:
        """The number of epochs."""
        return self.curve[-1].epoch

    @property
    def best(self) -> Evaluated:
        """The evaluation with the highest mAP."""
        return max(self.curve, key=lambda evaluated: evaluated.map)

    @property
    def is_reached(self) -> bool:
        """Whether the best mAP is the target."""
        return self.target is not None and self.best.map >= self.target


@dataclass(frozen=True, kw_only=True)
class Results:
    """All results so far; only a command with equal options (`about`) can continue from them."""

    about: dict[str, Any]
    probes: list[Probed]
    trained: list[Trained]

    def select_probes(self, settings: Sequence[Setting]) -> list[Probed]:
        """Return the probes of some settings, as far as there are any."""
        return [probed for probed in self.probes if probed.setting in settings]


def read_results(folder: Path, about: Mapping[str, Any]) -> Results:
    """Return the results in a folder; empty for a new one.

    Raises:
        InputError: They were made with other settings, or the file is something else.
    """
    file = folder / RESULTS_FILE
    if not file.exists():
        # Probes are folders that are removed: they must not be somebody else's.
        if others := other_entries(folder, advice="give another --out"):
            names = format_names([entry.name for entry in others])
            raise InputError(f"{folder}: contains {names}, but no {file.name}; give another --out")
        return Results(about=dict(about), probes=[], trained=[])
    results = read_stored(
        file, Results, wrong="was not written by this command", advice="give another --out"
    )
    if difference := first_difference(results.about, about):
        name, before, now = difference
        raise InputError(
            f"{file}: {name} was {before}, is now {now}; give another --out, or the same settings"
        )
    return results


def write_results(folder: Path, results: Results) -> None:
    """Write all results, in place of an earlier state.

    Raises:
        InputError: The folder cannot be written.
    """
    write_json(folder / RESULTS_FILE, asdict(results))


CLEARLY = 2.0  # Standard errors of a difference from which on it is not by chance
WINDOW_SHARE = 0.15  # Share of a probe's steps over whose losses each drawn median is taken
SETTING_COLUMNS = (
    Column("groups", name="setting.groups"),
    Column("beta1", "g", name="setting.beta1"),
    Column("learning rate", lambda rate: f"× {rate:g}", name="setting.rate"),
)


def print_probes(study: Study, probes: Sequence[Probed], *, title: str, console: Console) -> None:
    """Print the probes and the choice, and draw them into the study's folder."""
    chosen, of_probes, file = best(probes), losses(probes), study.folder / "probes.png"
    write_atomically(file, loss_chart(probes, chosen, title=title))

    def format_loss(setting: Setting) -> str:
        return f"{of_probes[setting].mean:.4f} ± {of_probes[setting].error:.4f}"

    columns = (
        *SETTING_COLUMNS,
        Column("loss", format_loss, name="setting"),
        Column("images/s", lambda points: f"{images_per_second(points):.1f}", name="points"),
        Column("mean staleness", ".2f", name="staleness"),
    )
    ordered = sorted(probes, key=lambda probed: of_probes[probed.setting].mean)
    rows = table_rows(columns, ordered)
    seconds = common_seconds(probes)
    heading = f"training loss after {seconds:.0f} s of training from the same cold start"
    console.print(Table(heading, columns, rows).for_console())
    print_line(console, format_choice(probes))
    taken = for_whole(chosen)
    larger = f", with learning rate × {taken.rate:g}, because short probes favour small ones"
    note = larger if taken != chosen else ""
    overrides = taken.overrides(study.config)
    train = [*command_words("train"), *study.arguments, *overrides]
    command = [*study.launcher(command_words("launch")), *train]
    print_line(console, f"command{note}: {shlex.join(command)}")
    print_line(console, f"chart: {file}")


def format_choice(probes: Sequence[Probed]) -> str:
    """Format the selected setting, and its comparison with plain training (or with groups)."""
    of_probes, chosen = losses(probes), best(probes)
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
        colours = iter(PALETTE * len(probes))
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
    colours = iter(PALETTE * len(trainings))
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
