"""The study of compute groups: the settings to probe, the trainings, and their results.

As in Omnivore (Hadjis et al. 2016, arXiv 1606.04487, section 4.2, algorithm 1), the search begins
with the largest number of groups and a grid of momentum and learning rate. If zero momentum is the
best of the grid, the staleness is too high: half as many groups are tried, and so on. Every
training is a run of `train.py` in a folder of the study; progress and results are read from its
`metrics.jsonl`. Results are stored after each training, so that a repeated command continues.
"""

import math
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pydantic import TypeAdapter

from common.console import Advance
from common.errors import FINISHED, STOPPED_BY_SIGNAL, InputError
from common.files import create_anew, new_folder_beside, read_json_lines, write_json
from common.outputs import format_names, other_entries
from common.processes import running, wait_for
from common.program import command_words, module_command, train_command, train_words
from common.stored import first_difference, read_stored
from retinanet.config_types import DEFAULT_BETA1, explicit_momentum

BETAS = (0.0, 0.6, DEFAULT_BETA1)
"""Momenta that are probed beside that of the rule (`retinanet.config_types`)."""
RATES = (1.0, 0.3, 0.1, 0.03)
"""Shares of the configuration's learning rate: with late gradients a smaller one is stable."""
LAST_SHARE = 0.25  # Share of the time over which losses are averaged, since single steps scatter
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_FOR_A_CHECKPOINT = 600.0
"""After so long a training that was asked to stop is killed: it ends its step first."""
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
        return "1 group" if self.groups == 1 else f"{self.groups} groups"

    @property
    def title(self) -> str:
        """The title, such as `2 groups, beta1 0.3, learning rate × 0.1`."""
        rate = "" if self.rate == 1 else f", learning rate × {self.rate:g}"
        return f"{self.groups_title}, beta1 {self.beta1:g}{rate}"

    def overrides(self, learning_rate: float) -> tuple[str, ...]:
        """Return the fields for `train.py`, given the configuration's learning rate."""
        return (
            f"distributed.groups={self.groups}",
            f"training.beta1={self.beta1:g}",
            f"training.learning_rate={learning_rate * self.rate:g}",
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


@dataclass(frozen=True, kw_only=True)
class Job:
    """The commands and folders of the trainings."""

    ranks: int
    config: str
    overrides: tuple[str, ...]
    learning_rate: float  # The configuration's
    where: tuple[str, ...]  # Options of `python -m launch run` that name the hosts and the mpirun
    folder: Path  # Holds all runs

    def command(self, *overrides: str) -> list[str]:
        """Return the command that trains, from any working directory."""
        return self._command(module_command("launch"), train_command(), overrides)

    def typed_command(self, *overrides: str) -> list[str]:
        """Return the same command as a user types it."""
        return self._command(command_words("launch"), train_words(), overrides)

    def _command(
        self, launch: Sequence[str], train: Sequence[str], overrides: Sequence[str]
    ) -> list[str]:
        launcher = [*launch, "run", "--np", str(self.ranks), *self.where]
        return [*launcher, "--", *train, "--config", self.config, *self.overrides, *overrides]


def cold_start(job: Job, *, seconds: float, advance: Advance) -> int:
    """Train synchronously for a number of seconds, or resume; return the number of steps.

    Raises:
        InputError: The training failed.
    """
    options = (*FOR_PROBES, "distributed.groups=1", "--auto-resume")
    run = job.folder / COLD_START
    steps = train_for(job, run, options, seconds=seconds, after_step=0, advance=advance)
    return max(record["step"] for record in steps)


def probe(
    job: Job, setting: Setting, *, seconds: float, after_step: int, advance: Advance
) -> list[dict[str, Any]]:
    """Continue the cold start for some seconds of steps; returns the records of these steps.

    Raises:
        InputError: The training failed.
    """
    run = job.folder / setting.name
    # An interrupted probe starts again: it must train for its whole time in one go.
    shutil.rmtree(run, ignore_errors=True)
    copy_cold_start(job, run)
    options = (*FOR_PROBES, *setting.overrides(job.learning_rate), "--resume")
    try:
        return train_for(job, run, options, seconds=seconds, after_step=after_step, advance=advance)
    finally:
        # A checkpoint takes half a gigabyte, and no training continues a probe.
        shutil.rmtree(run / "checkpoints", ignore_errors=True)


def whole(job: Job, setting: Setting, *, advance: Advance) -> list[dict[str, Any]]:
    """Train to the end of the configuration, or resume; return the run's records.

    Groups begin where the cold start has ended, whose steps are theirs too: it is the first part
    of such a training. A finished training is not run again.

    Raises:
        InputError: The training failed.
    """
    run = job.folder / f"whole-{setting.name}"
    if setting.groups > 1 and not run.exists():
        copy_cold_start(job, run)

    def show_progress(process: "subprocess.Popen[str]") -> None:
        del process
        records = read_records(run)
        # A metric that does not exist is null in the file.
        maps = [record["map"] or 0 for record in records if record["kind"] == "evaluation"]
        note = f"mAP {max(maps):.3f}" if maps else ""
        advance(int(records[-1]["epoch"]) if records else 0, note)

    overrides = setting.overrides(job.learning_rate)
    options = (*overrides, "evaluation.pictures=0", "checkpoint.keep=1", "--auto-resume")
    train(job, run, options, look=show_progress, expected=FINISHED)
    return read_records(run)


def copy_cold_start(job: Job, run: Path) -> None:
    """Copy the cold start, atomically, to a run of another name that continues it."""
    # Copying can be interrupted and renaming cannot: a run of this name is complete.
    with new_folder_beside(run) as folder:
        begun = shutil.copytree(job.folder / COLD_START, folder / run.name, symlinks=True)
        begun.rename(run)


def train_for(
    job: Job,
    run: Path,
    options: Sequence[str],
    *,
    seconds: float,
    after_step: int,
    advance: Advance,
) -> list[dict[str, Any]]:
    """Start or resume a run, and stop it after a number of seconds of steps; return the seconds."""

    def seconds_done() -> float:
        points = step_points(read_records(run), after_step=after_step)
        return points[-1].seconds if points else 0.0

    before = 0.0

    def stop_in_time(process: "subprocess.Popen[str]") -> None:
        nonlocal before
        done = seconds_done()
        advance(round(min(done, seconds)), "")
        # Only when the time is first passed: later looks must not signal again.
        if done >= seconds > before:
            process.send_signal(signal.SIGTERM)
        before = done

    # A run that an earlier command has stopped in time has nothing left to train.
    if not run.exists() or seconds_done() < seconds:
        train(job, run, options, look=stop_in_time, expected=STOPPED_BY_SIGNAL)
    return steps_after(read_records(run), after_step)


def train(
    job: Job,
    run: Path,
    options: Sequence[str],
    *,
    look: Callable[["subprocess.Popen[str]"], None],
    expected: int,
) -> None:
    """Train a run and call `look` periodically; the output goes to a file beside its folder.

    Ctrl-C and SIGTERM let it write a checkpoint first. Another exit code than the expected one is
    an InputError with the run's own last line.
    """
    # In the user's folder: the configuration's path and those in overrides may be relative.
    command = job.command(f"run.root={run.parent}", f"run.name={run.name}", *options)
    with (
        create_anew(log_file(run)) as log,
        running(
            command,
            patience_s=SECONDS_FOR_A_CHECKPOINT,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        code = wait_for(process, lambda: look(process), every_s=SECONDS_BETWEEN_LOOKS)
    if code != expected:
        lines = log_file(run).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        # `train.py` prints one such line for what a user can mend.
        errors = [line for line in lines if line.startswith("error: ")] or lines[-1:]
        raise InputError(
            f"{run}: ended with status {code}: {errors[0] if errors else 'no message'}"
        )


def log_file(run: Path) -> Path:
    """Return the file with the output of a run."""
    return run.with_name(f"{run.name}.log")


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


def steps_after(records: Sequence[dict[str, Any]], after_step: int) -> list[dict[str, Any]]:
    """Return the steps after another, of the lines of `metrics.jsonl`."""
    return [
        record for record in records if record["kind"] == "step" and record["step"] > after_step
    ]


def step_points(records: Sequence[dict[str, Any]], *, after_step: int = 0) -> list[Point]:
    """Return the steps after another in order of time.

    Groups work in parallel since the last step of all ranks.
    """
    together = 0.0
    apart: dict[int, float] = {}
    points = []
    for record in steps_after(records, after_step):
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
        points = step_points(records[:place])
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


SCHEMA = TypeAdapter(Results)


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
        file, SCHEMA, wrong="was not written by this command", advice="give another --out"
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
