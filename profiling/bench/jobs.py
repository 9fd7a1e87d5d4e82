"""Benchmarks of jobs of ranks that train real steps: `waiting` and `batch-split`.

- `waiting`: how long steps wait for data, on real images and any number of ranks.
- `batch-split`: what uneven batches regain where one of two ranks is slow, beside a busy loop.
"""

import argparse
import os
import socket
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

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
from profiling.bench.results import (
    Benchmarks,
    Finding,
    add_benchmark,
    add_counts,
    background_load,
    disturbance,
)
from profiling.bench.worker_pool import busy_cores
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import configured_plan

Job = list[RankSteps]  # The steps of all ranks of a job
LARGEST_SHARE = 0.01
WAITING_WARM_UP = 3

WAITING_ABOUT = """\
Trains a few steps of a configuration on several ranks with random weights, and reports the share of
a step spent waiting for data. The ranks are started by mpirun and pinned as in train.py. The time
that a rank waits for the data of other ranks is included.

  python -m profiling bench waiting --config coco.yaml data.root=/data/coco
  python -m profiling bench waiting data.image_size=800           synthetic data"""


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add the options for the configuration that a job trains."""
    parser.add_argument(
        "--config", default="demo.yaml", metavar="NAME", help="as for train.py (default: demo.yaml)"
    )
    add_overrides(parser)


def measure_job(job: MeasuredJob, *, mpirun: Mpirun, title: str) -> Job:
    """Run a job, and show its progress."""
    console = make_console()
    with progress(console, title, total=job.all_steps) as advance:
        return measure_ranks(
            job,
            mpirun=mpirun,
            advance=lambda step: advance(step, ""),
            print_line=partial(console.print, markup=False, soft_wrap=True),
        )


def add_waiting_benchmark(kinds: Benchmarks) -> None:
    """Add `waiting` to the benchmarks of a command line."""
    about = "how long training steps wait for data"
    parser = add_benchmark(kinds, "waiting", waiting_command, about=about, text=WAITING_ABOUT)
    add_configuration(parser)
    add_counts(
        parser,
        ("--ranks", 2, "number of ranks"),
        ("--steps", 5, f"measured steps, after {WAITING_WARM_UP} warm-up steps"),
    )
    parser.add_argument(
        "--workers",
        default="0,1",
        metavar="A,B",
        help="data-loading workers per rank; one run for each number (default: 0,1)",
    )
    add_json_option(parser)


def waiting_command(
    *,
    config: str,
    overrides: Sequence[str],
    ranks: int,
    steps: int,
    workers: str,
    json_file: Path | None,
) -> int:
    """Run the benchmark; return the exit code."""
    require_free_json(json_file)
    settings = load_config(config, overrides)
    counts = workers.split(",")
    for text in counts:
        if not text.isdigit():
            raise InputError(f"--workers: expected numbers such as 0,1, found {text!r}")
    if (cores := len(os.sched_getaffinity(0))) < ranks:
        raise InputError(
            f"--ranks: {ranks} ranks need {ranks} cores, {cores} are available; give fewer"
        )
    try:
        runs = waiting_jobs(config, overrides, ranks=ranks, steps=steps, counts=map(int, counts))
    except JobFailedError as error:
        return error.code
    make_console().print(waiting_table(runs))
    findings = []
    for count, job in runs.items():
        # The target holds for every rank, so the longest wait counts.
        share = max(map(waiting_share, job))
        what = f"waiting for data, share of a step, {count} data-loading workers per rank"
        findings.append(Finding(what, share, f"{share:.4f}", at_most=LARGEST_SHARE))
    image_size = settings.data.image_size
    workload = {
        "image_size": image_size,
        "batch_size": settings.training.batch_size,
        "ranks": ranks,
        "steps": steps,
        "runs": {str(count): list(map(asdict, job)) for count, job in runs.items()},
    }
    standard = image_size == 800 and ranks == 2
    put_out(findings, "waiting", workload, with_targets=standard, json_file=json_file)
    return FINISHED


def waiting_jobs(
    config: str, overrides: Sequence[str], *, ranks: int, steps: int, counts: Iterable[int]
) -> dict[int, Job]:
    """Run a job for each number of loading processes; return them by that number."""
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
            title = f"{count} data-loading workers per rank, {ranks} ranks; steps"
            runs[count] = measure_job(job, mpirun=mpirun, title=title)
    return runs


def waiting_share(rank: RankSteps) -> float:
    """Return the share of the total time of all steps spent waiting for data."""
    return sum(rank.data_seconds) / sum(rank.seconds)


def waiting_table(runs: dict[int, Job]) -> Table:
    """Return a row for each rank of each run."""
    table = Table()
    for heading in ("workers per rank", "rank", "step (median)", "waiting (median)", "share"):
        table.add_column(heading, justify="right")
    for count, job in runs.items():
        table.add_section()
        for rank in job:
            table.add_row(
                str(count),
                str(rank.rank),
                f"{median(rank.seconds):.2f} s",
                f"{median(rank.data_seconds) * 1000:.1f} ms",
                f"{waiting_share(rank):.2%}",
            )
    return table


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
ranks are started by mpirun and pinned as in train.py. Every other step exchanges no gradients and
shows the throughput of each rank alone; the sum over both disturbed ranks is the ideal."""


def add_batch_split_benchmark(kinds: Benchmarks) -> None:
    """Add `batch-split` to the benchmarks of a command line."""
    about = "training with one slow rank, with even and uneven batches"
    parser = add_benchmark(
        kinds, "batch-split", batch_split_command, about=about, text=BATCH_SPLIT_ABOUT
    )
    add_configuration(parser)
    add_counts(
        parser,
        ("--rounds", 2, "runs of each of the three jobs"),
        ("--steps", 4, f"measured steps, after {BATCH_SPLIT_WARM_UP} warm-up steps"),
    )
    add_json_option(parser)


def batch_split_command(
    *, config: str, overrides: Sequence[str], rounds: int, steps: int, json_file: Path | None
) -> int:
    """Run the benchmark; return the exit code."""
    require_free_json(json_file)
    if any(field.partition("=")[0] == "distributed.batch_split" for field in overrides):
        raise InputError("distributed.batch_split: set by the benchmark; remove it")
    # Of two values for a field the last one counts, so the user's come last.
    overrides = (*DEFAULTS, *overrides)
    settings = load_config(config, overrides)
    cpus = cpus_of_last_rank(settings)
    try:
        with background_load() as others:
            measured = batch_split_rounds(config, overrides, cpus, steps=steps, rounds=rounds)
    except JobFailedError as error:
        return error.code
    console = make_console()
    console.print(batch_split_table(measured))
    if disturbance(others.cores):
        console.print(disturbance(others.cores), soft_wrap=True)
    image_size, batch_size = settings.data.image_size, settings.training.batch_size
    rounds_json = [
        {name: list(map(asdict, job)) for name, job in jobs.items()} for jobs in measured
    ]
    workload = {
        "image_size": image_size,
        "batch_size": batch_size,
        "steps": steps,
        "busy_cpus": list(cpus),
        "cores_busy_otherwise": others.cores,
        "rounds": rounds_json,
    }
    standard, findings = (image_size, batch_size) == STANDARD, batch_split_findings(measured)
    put_out(findings, "batch-split", workload, with_targets=standard, json_file=json_file)
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


def batch_split_rounds(
    config: str, overrides: Sequence[str], cpus: Sequence[int], *, steps: int, rounds: int
) -> list[Round]:
    """Run all jobs in turn for a number of rounds; rank 1 computes on `cpus`."""
    mpirun = choose_mpirun(None)
    measured = []
    with tempfile.TemporaryDirectory(prefix="batch-split-benchmark-") as folder:
        for number in range(1, rounds + 1):
            jobs = {}
            for name, split in JOBS.items():
                job = MeasuredJob(
                    ranks=RANKS,
                    config=config,
                    overrides=(*overrides, f"distributed.batch_split={split}"),
                    warm_up=BATCH_SPLIT_WARM_UP,
                    steps=steps,
                    alternate=True,
                    # All jobs share the folder: synthetic images are generated by the
                    # first one only.
                    scenes=Path(folder, "scenes"),
                )
                title = f"round {number} of {rounds}, {name}; steps"
                with nullcontext() if name == "undisturbed" else busy_cores(cpus):
                    jobs[name] = measure_job(job, mpirun=mpirun, title=title)
            measured.append(jobs)
    return measured


def throughput(job: Job) -> float:
    """Return the total throughput of all ranks, including waiting time. [images/s]"""
    return sum(rank.images for rank in job) / median(slowest(job))


def throughput_alone(rank: RankSteps) -> float:
    """Return a rank's throughput while all compute without exchange. [images/s]"""
    return rank.images / median(rank.held_back_seconds)


def batch_split_findings(rounds: Sequence[Round]) -> list[Finding]:
    """Return the slowdown of rank 1, and the shares of the ideal throughput, even and by speed.

    Ideal is the throughput of the disturbed ranks if none waited for another.
    """

    def over_rounds(what: str, values: list[float], *, at_least: float | None = None) -> Finding:
        shown = f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"
        return Finding(what, median(values), shown, at_least=at_least)

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
    """Return a row for each rank of each job."""
    table = Table()
    for heading in (
        "round",
        "job",
        "rank",
        "images",
        "alone (median)",
        "step (median)",
        "images/s",
    ):
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for number, jobs in enumerate(rounds, start=1):
        table.add_section()
        for name, job in jobs.items():
            for rank in job:
                table.add_row(
                    str(number) if rank.rank == 0 and name == "undisturbed" else "",
                    name if rank.rank == 0 else "",
                    str(rank.rank),
                    str(rank.images),
                    f"{median(rank.held_back_seconds):.2f} s",
                    f"{median(rank.seconds):.2f} s",
                    f"{throughput(job):.2f}" if rank.rank == 0 else "",
                )
    return table
