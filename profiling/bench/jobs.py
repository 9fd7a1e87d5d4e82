"""Benchmarks of jobs of ranks that train real steps: `sizes`, `waiting` and `batch-split`.

- `sizes`: images per second at several sizes, such as a rectangle and a square.
- `waiting`: how long steps wait for data, on real images and any number of ranks.
- `batch-split`: what uneven batches regain where one of two ranks is slow, beside a busy loop.
"""

import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from common.charts import Column, Table, text_column
from common.cli import positive
from common.console import make_console, print_line, progress
from common.errors import FINISHED, InputError
from common.options import included, json_option, option, overrides_argument
from data.annotations import ImageSize, as_setting, count_pixels, shown_size
from launch.limits import read_allowance
from launch.mpirun import choose_mpirun
from launch.topology import read_topology
from profiling.bench.job import MeasuredJob, RankSteps, measure_ranks, per_step
from profiling.bench.report import put_out
from profiling.bench.results import Finding, background_load
from profiling.bench.variant import Ratio
from profiling.bench.worker_pool import busy_cores
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.config_types import image_size_of
from retinanet.placement import configured_plan

Job = list[RankSteps]  # The steps of all ranks of a job
Name = TypeVar("Name")  # That of a job among those that run in turn
LARGEST_SHARE = 0.01
WAITING_WARM_UP = 3

WAITING_ABOUT = """\
Trains a few steps of a configuration on several ranks with random weights, and reports the share of
a step spent waiting for data. The ranks are started by mpirun and pinned as in a training. The time
that a rank waits for the data of other ranks is included.

  retinanet profile bench waiting --config coco.yaml data.root=/data/coco
  retinanet profile bench waiting data.image_size=800           synthetic data"""


@dataclass(frozen=True, kw_only=True)
class TrainedSteps:
    """The options that name a configuration."""

    config: str = option("as for train", default="demo.yaml", metavar="NAME")
    overrides: list[str] = overrides_argument()

    def job(self, *, ranks: int, warm_up: int, steps: int) -> MeasuredJob:
        """Return the job that trains them, each step with its exchange."""
        return MeasuredJob(
            ranks=ranks,
            config=self.config,
            overrides=tuple(self.overrides),
            warm_up=warm_up,
            steps=steps,
            alternate=False,
            scenes=Path(),
        )


def run_jobs(
    job: MeasuredJob,
    settings: Mapping[Name, str],
    *,
    rounds: int = 1,
    beside: Callable[[Name], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> tuple[list[dict[Name, Job]], float]:
    """Run a job with each of the settings in turn, `beside` what is to disturb it.

    Returns the ranks' steps by round and name, and the cores that other work kept busy. All jobs
    share a folder: synthetic images are drawn by the first one only.

    Raises:
        JobFailedError: A job failed; its ranks have printed the reason.
    """
    console, mpirun = make_console(), choose_mpirun(None)
    are_distinct = len(set(settings.values())) == len(settings)
    measured: list[dict[Name, Job]] = []
    with (
        background_load() as others,
        tempfile.TemporaryDirectory(prefix="jobs-benchmark-") as folder,
    ):
        for number in range(1, rounds + 1):
            measured.append({})
            for name, setting in settings.items():
                overrides = (*job.overrides, setting)
                its_job = replace(job, overrides=overrides, scenes=Path(folder, "scenes"))
                shown = setting if are_distinct else f"{name}, {setting}"
                title = f"round {number} of {rounds}, {shown}; steps"
                with beside(name), progress(console, title, total=job.all_steps) as advance:
                    measured[-1][name] = measure_ranks(
                        its_job,
                        mpirun=mpirun,
                        advance=lambda step: advance(step, ""),
                        print_line=partial(print_line, console),
                    )
    return measured, others.cores


def over_rounds(what: str, values: list[float], *, at_least: float | None = None) -> Finding:
    """Return the median of values of all rounds, with their range."""
    ratio = Ratio.of(values)
    return Finding(what, ratio.median, ratio.shown(), at_least=at_least)


def steps_option(*, warm_up: int, default: int) -> Any:
    """Return the field of `--steps`."""
    about = f"measured steps, after {warm_up} warm-up steps"
    return option(about, default=default, parse=positive, metavar="N")


SIZES_WARM_UP = 2
WANTED_SPEED_UP = 1.3
SIZES_ABOUT = """\
Trains a few steps of a configuration at each image size with random weights, in turn, and compares
the images per second with those at the first size. The data's shapes count: a rectangle turns with
an image, and a batch with both orientations is computed in two parts. Boxes need a training to
compare.

  retinanet profile bench sizes --sizes 640,480x640 --config my-photos.yaml data.resize=letterbox"""


def image_sizes(text: str) -> tuple[ImageSize, ...]:
    """Parse different image sizes, such as `640,480x640`."""
    return tuple(dict.fromkeys(map(image_size_of, text.split(","))))


@dataclass(frozen=True, kw_only=True)
class SizesOptions:
    """The options of `retinanet profile bench sizes`."""

    trained: TrainedSteps = included(TrainedSteps)
    sizes: tuple[ImageSize, ...] = option(
        "sides of squares, and rectangles as height x width [pixels]",
        default="640,480x640",
        parse=image_sizes,
        metavar="N,HxW",
    )
    rounds: int = option("runs at each size", default=3, parse=positive, metavar="N")
    steps: int = steps_option(warm_up=SIZES_WARM_UP, default=5)
    json: Path | None = json_option()


def sizes_command(options: SizesOptions) -> int:
    """Run the benchmark; return the exit code."""
    config, overrides = options.trained.config, options.trained.overrides
    settings = {size: f"data.image_size={as_setting(size)}" for size in options.sizes}
    for setting in settings.values():
        load_config(config, [*overrides, setting])
    job = options.trained.job(ranks=1, warm_up=SIZES_WARM_UP, steps=options.steps)
    rounds, load = run_jobs(job, settings, rounds=options.rounds)
    rates = {size: [one_rank_throughput(jobs[size]) for jobs in rounds] for size in settings}
    columns = (text_column("size"), Column("pixels", ",.0f"), Column("images/s (median)", ".3f"))
    rows = [(shown_size(size), count_pixels(size), median(rates[size])) for size in rates]
    make_console().print(Table("", columns, rows).for_console())
    first, *rest = options.sizes
    findings = [
        over_rounds(
            f"{shown_size(size)} against {shown_size(first)}, images/s",
            [rate / base for rate, base in zip(rates[size], rates[first], strict=True)],
            at_least=WANTED_SPEED_UP,
        )
        for size in rest
    ]
    workload = {
        "sizes": [as_setting(size) for size in options.sizes],
        "steps": options.steps,
        "images_per_second": {as_setting(size): rates[size] for size in options.sizes},
        "cores_busy_otherwise": load,
    }
    # The target is for rectangles with three quarters of the pixels, as most photos have.
    standard = options.sizes == (640, (480, 640))
    put_out(findings, "sizes", workload, with_targets=standard, json_file=options.json)
    return FINISHED


def one_rank_throughput(job: Job) -> float:
    """Return the throughput over all steps of a job of one rank. [images/s]"""
    [rank] = job
    return rank.images * len(rank.seconds) / sum(rank.seconds)


@dataclass(frozen=True, kw_only=True)
class WaitingOptions:
    """The options of `retinanet profile bench waiting`."""

    trained: TrainedSteps = included(TrainedSteps)
    ranks: int = option("number of ranks", default=2, parse=positive, metavar="N")
    steps: int = steps_option(warm_up=WAITING_WARM_UP, default=5)
    workers: str = option(
        "data-loading workers per rank; one run for each number", default="0,1", metavar="A,B"
    )
    json: Path | None = json_option()


def waiting_command(options: WaitingOptions) -> int:
    """Run the benchmark; return the exit code."""
    config, overrides = options.trained.config, options.trained.overrides
    ranks, steps = options.ranks, options.steps
    settings = load_config(config, overrides)
    counts = options.workers.split(",")
    for text in counts:
        if not text.isdigit():
            raise InputError(f"--workers: expected numbers such as 0,1, found {text!r}")
    if (cores := len(os.sched_getaffinity(0))) < ranks:
        raise InputError(
            f"--ranks: {ranks} ranks need {ranks} cores, {cores} are available; give fewer"
        )
    job = options.trained.job(ranks=ranks, warm_up=WAITING_WARM_UP, steps=steps)
    [runs], _ = run_jobs(job, {count: f"data.workers={count}" for count in map(int, counts)})
    make_console().print(waiting_table(runs).for_console())
    findings = []
    for count, measured in runs.items():
        # The target holds for every rank, so the longest wait counts.
        share = max(map(waiting_share, measured))
        what = f"waiting for data, share of a step, {count} data-loading workers per rank"
        findings.append(Finding(what, share, f"{share:.4f}", at_most=LARGEST_SHARE))
    image_size = settings.data.image_size
    workload = {
        "image_size": image_size,
        "batch_size": settings.training.batch_size,
        "ranks": ranks,
        "steps": steps,
        "runs": {str(count): list(map(asdict, measured)) for count, measured in runs.items()},
    }
    standard = image_size == 800 and ranks == 2
    put_out(findings, "waiting", workload, with_targets=standard, json_file=options.json)
    return FINISHED


def waiting_share(rank: RankSteps) -> float:
    """Return the share of the total time of all steps spent waiting for data."""
    return sum(rank.data_seconds) / sum(rank.seconds)


def waiting_table(runs: dict[int, Job]) -> Table:
    """Return a row for each rank of each run."""
    columns = (
        *(Column("workers per rank"), Column("rank"), Column("step (median)", ".2f", unit=" s")),
        *(Column("waiting (median)", ".1f", unit=" ms"), Column("share", ".2%")),
    )
    rows = [
        (
            count,
            rank.rank,
            median(rank.seconds),
            1000 * median(rank.data_seconds),
            waiting_share(rank),
        )
        for count, job in runs.items()
        for rank in job
    ]
    return Table("", columns, rows)


RANKS = 2
BATCH_SPLIT_WARM_UP = 2
DEFAULTS = ("data.image_size=256", "training.batch_size=8", "launch.threads=1")
STANDARD = (256, 8)  # Image size and mean batch of a rank for which the target is given
LEAST_SHARE = 0.8
JOBS = {"undisturbed": "even", "even": "even", "speed": "speed"}
"""Jobs of a round by name: `distributed.batch_split`. But for the first, rank 1 is disturbed."""

Round = dict[str, Job]  # The jobs of `JOBS`

BATCH_SPLIT_ABOUT = """\
Trains a few steps of a configuration on two ranks with random weights: undisturbed, then with a
busy loop on the core of rank 1 and even batches, then the same with batches split by speed. The
ranks are started by mpirun and pinned as in a training. Every other step exchanges no gradients and
shows the throughput of each rank alone; the sum over both disturbed ranks is the ideal."""


@dataclass(frozen=True, kw_only=True)
class BatchSplitOptions:
    """The options of `retinanet profile bench batch-split`."""

    trained: TrainedSteps = included(TrainedSteps)
    rounds: int = option("runs of each of the three jobs", default=2, parse=positive, metavar="N")
    steps: int = steps_option(warm_up=BATCH_SPLIT_WARM_UP, default=4)
    json: Path | None = json_option()


def batch_split_command(options: BatchSplitOptions) -> int:
    """Run the benchmark; return the exit code."""
    config, given, steps = options.trained.config, options.trained.overrides, options.steps
    if any(field.partition("=")[0] == "distributed.batch_split" for field in given):
        raise InputError("distributed.batch_split: set by the benchmark; remove it")
    # Of two values for a field the last one counts, so the user's come last.
    overrides = (*DEFAULTS, *given)
    settings = load_config(config, overrides)
    cpus = cpus_of_last_rank(settings)
    job = options.trained.job(ranks=RANKS, warm_up=BATCH_SPLIT_WARM_UP, steps=steps)
    measured, load = run_jobs(
        replace(job, overrides=overrides, alternate=True),
        {name: f"distributed.batch_split={split}" for name, split in JOBS.items()},
        rounds=options.rounds,
        beside=lambda name: nullcontext() if name == "undisturbed" else busy_cores(cpus),
    )
    make_console().print(batch_split_table(measured).for_console())
    image_size, batch_size = settings.data.image_size, settings.training.batch_size
    rounds_json = [
        {name: list(map(asdict, job)) for name, job in jobs.items()} for jobs in measured
    ]
    workload = {
        "image_size": image_size,
        "batch_size": batch_size,
        "steps": steps,
        "busy_cpus": list(cpus),
        "cores_busy_otherwise": load,
        "rounds": rounds_json,
    }
    standard, findings = (image_size, batch_size) == STANDARD, batch_split_findings(measured)
    put_out(findings, "batch-split", workload, with_targets=standard, json_file=options.json)
    return FINISHED


def cpus_of_last_rank(settings: Config) -> tuple[int, ...]:
    """Return the CPUs on which rank 1 will compute.

    Raises:
        InputError: There are too few cores for two ranks.
    """
    host, allowance = read_topology(), read_allowance()
    # The same plan as the job's: the busy loop must meet the core of rank 1.
    plan = configured_plan(
        settings,
        host,
        allowed=host.restricted(allowance.cpus),
        quota=allowance.quota,
        hosts=((socket.gethostname(), RANKS),),
    )
    return plan.hosts[0].ranks[-1].share.cpus


def throughput(job: Job) -> float:
    """Return the total throughput of all ranks, including waiting time. [images/s]"""
    return sum(rank.images for rank in job) / median(per_step(job, "seconds"))


def throughput_alone(rank: RankSteps) -> float:
    """Return a rank's throughput while all compute without exchange. [images/s]"""
    return rank.images / median(rank.held_back_seconds)


def batch_split_findings(rounds: Sequence[Round]) -> list[Finding]:
    """Return the slowdown of rank 1, and the shares of the ideal throughput, even and by speed.

    Ideal is the throughput of the disturbed ranks if none waited for another.
    """
    slow, even, by_speed, gains = [], [], [], []
    for jobs in rounds:
        # From steps without exchange, in which no rank waits for another.
        ideal = sum(map(throughput_alone, jobs["even"]))
        slow.append(throughput_alone(jobs["even"][1]) / throughput_alone(jobs["undisturbed"][1]))
        even.append(throughput(jobs["even"]) / ideal)
        by_speed.append(throughput(jobs["speed"]) / ideal)
        gains.append(throughput(jobs["speed"]) / throughput(jobs["even"]))
    share = "share of the ideal throughput"
    return [
        over_rounds("speed of rank 1 beside a busy loop, share of its undisturbed speed", slow),
        over_rounds(f"even batches, {share}", even),
        over_rounds(f"batches split by speed, {share}", by_speed, at_least=LEAST_SHARE),
        over_rounds("batches split by speed against even batches, times as fast", gains),
    ]


def batch_split_table(rounds: Sequence[Round]) -> Table:
    """Return a row for each rank of each job; what holds for all ranks is in the first row."""
    columns = (
        *(Column("round"), text_column("job"), Column("rank"), Column("images")),
        *(Column("alone (median)", ".2f", unit=" s"), Column("step (median)", ".2f", unit=" s")),
        Column("images/s", ".2f"),
    )
    rows = [
        (
            number if rank.rank == 0 and name == "undisturbed" else None,
            name if rank.rank == 0 else None,
            rank.rank,
            rank.images,
            median(rank.held_back_seconds),
            median(rank.seconds),
            throughput(job) if rank.rank == 0 else None,
        )
        for number, jobs in enumerate(rounds, start=1)
        for name, job in jobs.items()
        for rank in job
    ]
    return Table("", columns, rows)


JOB_BENCHMARKS: tuple[tuple[str, str, str, type[Any], Callable[[Any], int]], ...] = (
    ("sizes", "training steps at several image sizes", SIZES_ABOUT, SizesOptions, sizes_command),
    (
        "waiting",
        "how long training steps wait for data",
        WAITING_ABOUT,
        WaitingOptions,
        waiting_command,
    ),
    (
        "batch-split",
        "training with one slow rank, with even and uneven batches",
        BATCH_SPLIT_ABOUT,
        BatchSplitOptions,
        batch_split_command,
    ),
)
"""Name, subject, text of the help, options and function of each."""
