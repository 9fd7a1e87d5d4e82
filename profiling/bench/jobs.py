"""Benchmarks of jobs of ranks that train real steps: `waiting` and `batch-split`.

- `waiting`: how long steps wait for data, on real images and any number of ranks.
- `batch-split`: what uneven batches regain where one of two ranks is slow, beside a busy loop.
"""

import argparse
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from common.cli import add_json_option, add_overrides
from common.console import make_console, progress
from common.errors import FINISHED, InputError
from common.files import require_free_json
from launch.limits import read_allowance
from launch.mpirun import Mpirun, choose_mpirun
from launch.topology import read_topology
from profiling.bench.job import JobFailedError, MeasuredJob, RankSteps, measure_ranks, slowest
from profiling.bench.report import put_out
from profiling.bench.results import Finding, add_counts, background_load, disturbance
from profiling.bench.worker_pool import busy_cores
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import configured_plan

Job = list[RankSteps]
"""The steps of all ranks of a job."""
LARGEST_SHARE = 0.01
WAITING_WARM_UP = 3
DEFAULT_SIZE = 800

WAITING_ABOUT = """\
Trains a few steps of a configuration on several ranks, started by mpirun and pinned as those of
train.py, with weights from random numbers, and says which share of a step was waiting for data.
A rank that has its images waits for the others to have theirs, and that counts too.

  python -m profiling bench waiting --config coco.yaml data.root=/data/coco
  python -m profiling bench waiting data.image_size=800           drawn scenes"""


def add_waiting_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `waiting` to the benchmarks of a command line."""
    about = "how long training steps wait for data"
    parser = kinds.add_parser(
        "waiting",
        help=about,
        description=f"Time {about}.\n\n{WAITING_ABOUT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", default="demo.yaml", metavar="NAME", help="as train.py's (default: demo.yaml)"
    )
    add_overrides(parser)
    add_counts(
        parser,
        ("--ranks", 2, "ranks that train together"),
        ("--steps", 5, f"steps that count, after {WAITING_WARM_UP} that do not"),
    )
    parser.add_argument(
        "--workers",
        default="0,1",
        metavar="A,B",
        help="loading processes of a rank, one run for each number (default: 0,1)",
    )
    add_json_option(parser)
    parser.set_defaults(run=waiting_command)


def waiting_command(
    *,
    config: str,
    overrides: Sequence[str],
    ranks: int,
    steps: int,
    workers: str,
    json_file: Path | None,
) -> int:
    """Run the benchmark; returns the exit code.

    Raises:
        InputError: The configuration or its data are not there, or cores are fewer than ranks.
    """
    require_free_json(json_file)
    settings = load_config(config, overrides)
    counts = [worker_count(text) for text in workers.split(",")]
    if len(os.sched_getaffinity(0)) < ranks:
        raise InputError(f"--ranks: {ranks} are more than the cores that this process may use")
    try:
        runs = measure_runs(config, overrides, ranks=ranks, steps=steps, counts=counts)
    except JobFailedError as error:
        return error.code
    make_console().print(waiting_table(runs))
    standard = settings.data.image_size == DEFAULT_SIZE and ranks == 2
    put_out(
        waiting_findings(runs, with_targets=standard),
        benchmark="waiting",
        workload={
            "image_size": settings.data.image_size,
            "batch_size": settings.training.batch_size,
            "ranks": ranks,
            "steps": steps,
            "runs": {str(count): [asdict(one) for one in run] for count, run in runs.items()},
        },
        with_targets=standard,
        json_file=json_file,
    )
    return FINISHED


def measure_runs(
    config: str, overrides: Sequence[str], *, ranks: int, steps: int, counts: Sequence[int]
) -> dict[int, list[RankSteps]]:
    """Run a job for each number of loading processes; return them by that number.

    Raises:
        JobFailedError: One of them could not go on.
        InputError: There is no mpirun.
    """
    mpirun = choose_mpirun(None)
    runs = {}
    with tempfile.TemporaryDirectory(prefix="waiting-benchmark-") as folder:
        for count in counts:
            job = MeasuredJob(
                ranks=ranks,
                config=config,
                overrides=(*overrides, f"data.workers={count}"),
                warm_up=WAITING_WARM_UP,
                steps=steps,
                alternate=False,
                scenes=Path(folder, "scenes"),
            )
            title = f"{count} loading processes a rank, {ranks} ranks; steps"
            runs[count] = measure_job(job, mpirun=mpirun, title=title)
    return runs


def measure_job(job: MeasuredJob, *, mpirun: Mpirun, title: str) -> Job:
    """Run a job, and show its progress.

    Raises:
        JobFailedError: It could not go on.
    """
    console = make_console()
    with progress(console, title, total=job.all_steps) as advance:
        return measure_ranks(
            job,
            mpirun=mpirun,
            advance=lambda step: advance(step, ""),
            say=partial(console.print, markup=False, soft_wrap=True),
        )


def waiting_findings(runs: dict[int, list[RankSteps]], *, with_targets: bool) -> list[Finding]:
    """Return for each run the share of the rank that waited longest."""
    return [
        Finding(
            f"waiting for data, share of a step, {count} loading processes a rank",
            max(map(waiting_share, run)),
            f"{max(map(waiting_share, run)):.4f}",
            at_most=LARGEST_SHARE if with_targets else None,
        )
        for count, run in runs.items()
    ]


def waiting_share(rank: RankSteps) -> float:
    """Return the share of all steps together that was waiting for data."""
    return sum(rank.data_seconds) / sum(rank.seconds)


def worker_count(text: str) -> int:
    """Read a number of `--workers`."""
    if not text.isdigit():
        raise InputError(f"--workers: expected numbers such as 0,1, found {text!r}")
    return int(text)


def waiting_table(runs: dict[int, list[RankSteps]]) -> Table:
    """Return a row for each rank of each run."""
    table = Table()
    for heading in ("loading processes", "rank", "step, median", "waiting, median", "share"):
        table.add_column(heading, justify="right")
    for count, run in runs.items():
        table.add_section()
        for one in run:
            waited = median(one.data_seconds) * 1000
            share = f"{waiting_share(one):.2%}"
            step = f"{median(one.seconds):.2f} s"
            table.add_row(str(count), str(one.rank), step, f"{waited:.1f} ms", share)
    return table


RANKS = 2
BATCH_SPLIT_WARM_UP = 2
DEFAULTS = ("data.image_size=256", "training.batch_size=8", "launch.threads=1")
STANDARD = (256, 8)
"""Image size and mean batch of a rank for which the target is given."""
LEAST_SHARE = 0.8
JOBS = {"undisturbed": "even", "even": "even", "speed": "speed"}
"""Jobs of a round by name: `distributed.batch_split`. But for the first, rank 1 is disturbed."""

Round = dict[str, Job]
"""The jobs of `JOBS`."""

BATCH_SPLIT_ABOUT = """\
Trains a few steps of a configuration on two ranks, started by mpirun and pinned as those of
train.py, with weights from random numbers: undisturbed, then with a busy loop on the core of rank 1
and even batches, then the same with batches split by speed. In between are steps without exchange,
for what each rank can do by itself; the sum over both, disturbed, is the ideal throughput."""


def add_batch_split_benchmark(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `batch-split` to the benchmarks of a command line."""
    about = "training on ranks of which one is slow, with even and uneven batches"
    parser = kinds.add_parser(
        "batch-split",
        help=about,
        description=f"Time {about}.\n\n{BATCH_SPLIT_ABOUT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", default="demo.yaml", metavar="NAME", help="as train.py's (default: demo.yaml)"
    )
    add_overrides(parser)
    add_counts(
        parser,
        ("--rounds", 2, "times that all three run"),
        ("--steps", 4, f"steps that count, after {BATCH_SPLIT_WARM_UP} that do not"),
    )
    add_json_option(parser)
    parser.set_defaults(run=batch_split_command)


def batch_split_command(
    *, config: str, overrides: Sequence[str], rounds: int, steps: int, json_file: Path | None
) -> int:
    """Run the benchmark; returns the exit code.

    Raises:
        InputError: The configuration or its data are not there, it says itself how to split
            batches, or there are too few cores.
    """
    require_free_json(json_file)
    if any(one.partition("=")[0] == "distributed.batch_split" for one in overrides):
        raise InputError("distributed.batch_split: the benchmark sets it; leave it out")
    words = (*DEFAULTS, *overrides)
    settings = load_config(config, words)
    cpus = cpus_of_last_rank(settings)
    job_of = partial(make_job, config=config, overrides=words, steps=steps)
    try:
        with background_load() as others:
            found = measure_rounds(job_of, cpus, rounds=rounds)
    except JobFailedError as error:
        return error.code
    console = make_console()
    console.print(jobs_table(found))
    if disturbance(others.cores):
        console.print(disturbance(others.cores), soft_wrap=True)
    image_size, batch_size = settings.data.image_size, settings.training.batch_size
    with_targets = (image_size, batch_size) == STANDARD
    put_out(
        batch_split_findings(found, with_targets=with_targets),
        benchmark="batch-split",
        workload={
            "image_size": image_size,
            "batch_size": batch_size,
            "steps": steps,
            "busy_cpus": list(cpus),
            "cores_busy_otherwise": others.cores,
            "rounds": [as_json(one) for one in found],
        },
        with_targets=with_targets,
        json_file=json_file,
    )
    return FINISHED


def cpus_of_last_rank(settings: Config) -> tuple[int, ...]:
    """Return the CPUs on which rank 1 will compute.

    Raises:
        InputError: There are too few cores for two ranks.
    """
    host, allowance = read_topology(), read_allowance()
    plan = configured_plan(
        settings,
        host,
        allowed=host.restricted(allowance.cpus),
        quota=allowance.quota,
        hosts=((socket.gethostname(), RANKS),),
    )
    return plan.hosts[0].ranks[-1].share.cpus


def make_job(
    split: str, *, config: str, overrides: Sequence[str], steps: int, scenes: Path
) -> MeasuredJob:
    """Return a job of two ranks, each counted step followed by one without exchange."""
    return MeasuredJob(
        ranks=RANKS,
        config=config,
        overrides=(*overrides, f"distributed.batch_split={split}"),
        warm_up=BATCH_SPLIT_WARM_UP,
        steps=steps,
        alternate=True,
        scenes=scenes,
    )


def measure_rounds(
    job_of: Callable[..., MeasuredJob], cpus: Sequence[int], *, rounds: int
) -> list[Round]:
    """Run all jobs in turn, so many times.

    Args:
        job_of: Makes one, see `make_job`.
        cpus: Those of rank 1.
        rounds: How often.

    Raises:
        JobFailedError: One of them could not go on.
        InputError: There is no mpirun.
    """
    mpirun = choose_mpirun(None)
    found = []
    with tempfile.TemporaryDirectory(prefix="batch-split-benchmark-") as folder:
        for number in range(1, rounds + 1):
            of_round = {}
            for name, split in JOBS.items():
                job = job_of(split, scenes=Path(folder, "scenes"))
                with nullcontext() if name == "undisturbed" else busy_cores(cpus):
                    title = f"round {number} of {rounds}, {name}; steps"
                    of_round[name] = measure_job(job, mpirun=mpirun, title=title)
            found.append(of_round)
    return found


def as_json(of_round: Round) -> dict[str, list[dict[str, Any]]]:
    """Return every step of every rank, by job."""
    return {name: [asdict(one) for one in job] for name, job in of_round.items()}


def throughput(job: Job) -> float:
    """Return the throughput of all ranks together, waiting included. [images/s]"""
    return sum(one.images for one in job) / median(slowest(job))


def own_throughput(one: RankSteps) -> float:
    """Return a rank's throughput while all compute without exchange. [images/s]"""
    return one.images / median(one.held_back_seconds)


def ideal(of_round: Round) -> float:
    """Return the throughput of the disturbed ranks if none waited for another. [images/s]"""
    return sum(map(own_throughput, of_round["even"]))


def batch_split_findings(rounds: Sequence[Round], *, with_targets: bool) -> list[Finding]:
    """Return how slow rank 1 was, and the shares of the ideal throughput, even and by speed."""

    def over_rounds(what: str, values: list[float], *, at_least: float | None = None) -> Finding:
        shown = f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"
        return Finding(what, median(values), shown, at_least=at_least)

    slow = [
        own_throughput(one["even"][1]) / own_throughput(one["undisturbed"][1]) for one in rounds
    ]
    shares = {
        name: [throughput(one[name]) / ideal(one) for one in rounds] for name in ("even", "speed")
    }
    gains = [throughput(one["speed"]) / throughput(one["even"]) for one in rounds]
    return [
        over_rounds("speed of rank 1 beside a busy loop, share of its own", slow),
        over_rounds("even batches, share of the ideal throughput", shares["even"]),
        over_rounds(
            "batches split by speed, share of the ideal throughput",
            shares["speed"],
            at_least=LEAST_SHARE if with_targets else None,
        ),
        over_rounds("batches split by speed against even ones, times as fast", gains),
    ]


def jobs_table(rounds: Sequence[Round]) -> Table:
    """Return a row for each rank of each job."""
    table = Table()
    for heading in ("round", "job", "rank", "images", "alone, median", "step, median", "images/s"):
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for number, of_round in enumerate(rounds, start=1):
        table.add_section()
        for name, job in of_round.items():
            for one in job:
                table.add_row(
                    str(number) if one.rank == 0 and name == "undisturbed" else "",
                    name if one.rank == 0 else "",
                    str(one.rank),
                    str(one.images),
                    f"{median(one.held_back_seconds):.2f} s",
                    f"{median(one.seconds):.2f} s",
                    f"{throughput(job):.2f}" if one.rank == 0 else "",
                )
    return table
