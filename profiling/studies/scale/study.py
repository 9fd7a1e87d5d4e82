"""The combinations of ranks and threads of a scaling study, and which of them fit the host.

TODO-DOC The job that measures a combination of ranks and threads.

TODO-DOC The jobs of a scaling study, one after another.

TODO-DOC What a scaling study has measured, and the numbers that are made of it.

TODO-DOC What a scaling study says in a line each, beside the targets of the standard workload.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from common.console import Advance, progress
from common.errors import FINISHED, INTERRUPTED, InputError, described
from launch.mpirun import Mpirun
from launch.placement import Misfit, count_ranks, fit_ranks
from launch.shares import CoreRequest
from launch.topology import Topology, sockets_of
from profiling.bench.job import (
    JobFailedError,
    MeasuredJob,
    RankSteps,
    exposed,
    measure_ranks,
    slowest,
    slowest_held_back,
    waited_for_data,
)
from profiling.bench.results import Finding
from profiling.bench.variant import Ratio
from retinanet.config import Config


@dataclass(frozen=True, kw_only=True)
class Combination:
    """So many ranks of so many threads."""

    ranks: int
    threads: int
    """Compute threads of each rank."""
    batch_size: int
    """Images of each rank in a step."""
    hosts: tuple[tuple[str, int], ...] = ()
    """Names, and the number of ranks of each; none: this host."""
    misfit: str = ""
    """Why it cannot run; empty if it can."""

    @property
    def name(self) -> str:
        """Such as `2 ranks × 1 thread`."""
        return f"{count_ranks(self.ranks)} × {count_threads(self.threads)}"

    @property
    def images(self) -> int:
        """Of a step, over all ranks."""
        return self.ranks * self.batch_size


def count_threads(threads: int) -> str:
    """`1 thread`, `2 threads`."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def combine(
    ranks: Sequence[int],
    threads: Sequence[int],
    *,
    batch_size: int,
    global_batch: int | None,
    place_on_hosts: Callable[[int], tuple[tuple[str, int], ...]],
    allowed: Topology,
    quota: float | None,
    request: CoreRequest,
) -> list[Combination]:
    """Every combination, by ranks and then by threads.

    Args:
        ranks: Numbers of ranks over all hosts.
        threads: Numbers of compute threads of a rank.
        batch_size: Images of a rank in a step.
        global_batch: Images of all ranks in a step, which then counts instead.
        place_on_hosts: From a number of ranks to those of each host; none: all on this one.
        allowed: The CPUs of each host that ranks may use.
        quota: CPUs' worth of time for each host; None: no limit.
        request: The cores of a rank that do not compute; its threads are not looked at.
    """
    found = []
    for count in ranks:
        hosts: tuple[tuple[str, int], ...] = ()
        misfit = ""
        try:
            hosts = place_on_hosts(count)
        except InputError as error:
            misfit = str(error)
        if global_batch is not None and global_batch % count:
            misfit = f"{global_batch} images do not divide evenly among {count_ranks(count)}"
        for of_rank in threads:
            wanted = CoreRequest(
                threads=of_rank, comm_cores=request.comm_cores, loader_cores=request.loader_cores
            )
            counts = [on_host for _, on_host in hosts] or [count]
            found.append(
                Combination(
                    ranks=count,
                    threads=of_rank,
                    batch_size=global_batch // count if global_batch else batch_size,
                    hosts=hosts,
                    misfit=misfit or why_not(allowed, counts, request=wanted, quota=quota),
                )
            )
    return found


def why_not(
    allowed: Topology, counts: Sequence[int], *, request: CoreRequest, quota: float | None
) -> str:
    """Why so many ranks do not fit a host, for the first number that does not; else empty."""
    for count in dict.fromkeys(counts):
        fitted = fit_ranks(sockets_of(allowed), ranks=count, request=request, quota=quota)
        if isinstance(fitted, Misfit):
            return fitted.why
    return ""


def job_of_combination(
    one: Combination,
    *,
    config: str,
    overrides: Sequence[str],
    warm_up: int,
    steps: int,
    scenes: Path,
    own_model: bool = False,
) -> MeasuredJob:
    """Steps in turn with and without exchange, so that its cost shows within one job.

    Args:
        one: Ranks, threads and images of each rank.
        config: Name of the configuration that is trained.
        overrides: On top of it.
        warm_up: Steps that do not count.
        steps: That count.
        scenes: Folder for drawn scenes.
        own_model: Whether the configuration's model trains, and not MLPerf's.
    """
    here = (f"launch.threads={one.threads}", f"training.batch_size={one.batch_size}")
    return MeasuredJob(
        ranks=one.ranks,
        hosts=one.hosts,
        config=config,
        overrides=(*overrides, *here),
        warm_up=warm_up,
        steps=steps,
        alternate=True,
        scenes=scenes,
        own_model=own_model,
    )


Job = Sequence[RankSteps]
"""What each rank of one job measured."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The jobs of one combination."""

    combination: Combination
    jobs: Sequence[Job]
    """One of each round, in order; at least one."""

    @property
    def step_seconds(self) -> float:
        """Median over the steps of all rounds, each as long as that of its slowest rank."""
        return median(seconds for job in self.jobs for seconds in slowest(job))

    @property
    def images_per_second(self) -> float:
        """Over all ranks."""
        return self.combination.images / self.step_seconds

    @property
    def data_share(self) -> float:
        """Of a step, what was waiting for data; median."""
        return share(self.jobs, waited_for_data)

    @property
    def exposed_share(self) -> float | None:
        """Of a step, what was waiting for other ranks' gradients; median. None for one rank."""
        return share(self.jobs, exposed) if self.combination.ranks > 1 else None

    @property
    def added_share(self) -> float | None:
        """Of a step, what the exchange of gradients makes it longer; median. None for one rank.

        Each step is held against the next one, which has no exchange: a while in which the machine
        is slower meets both.
        """
        pairs = [
            1 - without / step
            for job in self.jobs
            if self.combination.ranks > 1
            for step, without in zip(slowest(job), slowest_held_back(job), strict=True)
        ]
        return median(pairs) if pairs else None


@dataclass
class Rounds:
    """What has been measured so far."""

    combinations: Sequence[Combination]
    """That fit, in the order of the first round."""
    rounds: int
    jobs: dict[Combination, list[Job]] = field(default_factory=dict)
    code: int = FINISHED
    """Another one where an interruption, or a job that failed, has ended the study."""
    ended_by: str = ""
    """What it was, in words."""
    title: str = "scaling study, steps"
    """Of the progress that is shown."""
    other_cores: float = 0.0
    """Cores of this host that other work kept busy meanwhile, where all ranks run here."""

    @property
    def order(self) -> list[tuple[int, Combination]]:
        """Every job with its round, from 1: forwards, then backwards, and so on.

        What changes steadily, as a machine that warms up, so meets all combinations alike.
        """
        return [
            (number, combination)
            for number in range(1, self.rounds + 1)
            for combination in self.combinations[:: 1 if number % 2 else -1]
        ]

    @property
    def missing(self) -> list[tuple[int, Combination]]:
        """Those that have not run yet."""
        return [(number, one) for number, one in self.order if len(self.jobs.get(one, ())) < number]

    @property
    def done(self) -> int:
        """Jobs."""
        return sum(map(len, self.jobs.values()))

    @property
    def measured(self) -> list[Measured]:
        """The combinations that have run at least once."""
        return [
            Measured(combination=one, jobs=self.jobs[one])
            for one in self.combinations
            if one in self.jobs
        ]


def run_rounds(
    rounds: Rounds,
    job_of: Callable[[Combination], MeasuredJob],
    *,
    mpirun: Mpirun,
    console: Console,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Run the jobs that have not run, and note what they measured.

    A job that fails, and Ctrl-C, end the study.

    Args:
        rounds: Which there are; gets the measurements, and how the study ended.
        job_of: The job of a combination.
        mpirun: Starts them.
        console: Where progress is shown.
        keep: Called after each job, with its measurements noted.
    """
    total = sum(job_of(one).all_steps for _, one in rounds.order)
    missing = rounds.missing
    before = total - sum(job_of(one).all_steps for _, one in missing)
    name = ""
    try:
        with progress(console, rounds.title, total=total, start=before) as advance:
            for number, one in missing:
                name = f"{one.name}, round {number} of {rounds.rounds}"
                job = job_of(one)
                advance(before, name)
                ranks = measure_ranks(
                    job,
                    mpirun=mpirun,
                    advance=partial(add, advance, before, name),
                    say=lambda line: console.print(line, markup=False, soft_wrap=True),
                )
                rounds.jobs.setdefault(one, []).append(ranks)
                keep()
                before += job.all_steps
    except JobFailedError as error:
        rounds.code, rounds.ended_by = error.code, f"{name}: {error}"
    except KeyboardInterrupt as error:
        rounds.code, rounds.ended_by = INTERRUPTED, described(error) or ""


def add(advance: Advance, before: int, note: str, step: int) -> None:
    """Show a job's step among the steps of all jobs."""
    advance(before + step, note)


def share(jobs: Sequence[Job], part: Callable[[Job], Sequence[float]]) -> float:
    """Median over all steps of a part's share in them."""
    return median(
        seconds / whole
        for job in jobs
        for seconds, whole in zip(part(job), slowest(job), strict=True)
    )


def smallest(measured: Sequence[Measured]) -> Measured:
    """That of the fewest ranks, and among these of the fewest threads: the 1.00 of the table."""
    return min(measured, key=lambda one: (one.combination.ranks, one.combination.threads))


def efficiency(one: Measured, measured: Sequence[Measured]) -> float | None:
    """Weak scaling: throughput over that of the fewest ranks with as many threads, times as many.

    1 is ideal. None where nothing with fewer ranks and as many threads was measured.
    """
    same = [other for other in measured if other.combination.threads == one.combination.threads]
    base = smallest(same)
    times = one.combination.ranks / base.combination.ranks
    return one.images_per_second / (times * base.images_per_second) if times > 1 else None


def times_the_throughput(one: Measured, other: Measured) -> Ratio:
    """Of all steps' medians; beside it the lowest and the highest of a round."""
    rounds = [
        Measured(combination=one.combination, jobs=[job]).images_per_second
        / Measured(combination=other.combination, jobs=[other_job]).images_per_second
        for job, other_job in zip(one.jobs, other.jobs, strict=False)  # one may lack a round
    ]
    return Ratio(one.images_per_second / other.images_per_second, min(rounds), max(rounds))


LARGEST_EXCHANGE = 0.05
"""Of a step, with gradients in BF16."""
STANDARD_SIZE = 800
STANDARD_BATCH = 2


def is_standard(config: Config) -> bool:
    """Whether the targets are for this workload."""
    return config.data.image_size == STANDARD_SIZE and config.engine.precision == "bf16"


def findings(
    measured: Sequence[Measured], *, config: Config, global_batch: int | None
) -> list[Finding]:
    """More ranks against fewer on as many cores, and the largest shares of communication.

    Args:
        measured: All combinations that have run.
        config: What they ran.
        global_batch: Images of all ranks in a step, where it is the same for all.
    """
    standard = is_standard(config)
    is_compressed = config.distributed.compress == "bf16"
    found = []
    if global_batch is not None:
        targets = standard and global_batch == STANDARD_BATCH
        found += same_cores(measured, global_batch=global_batch, with_targets=targets)
    return found + communication(measured, with_targets=standard and is_compressed)


def same_cores(
    measured: Sequence[Measured], *, global_batch: int, with_targets: bool
) -> list[Finding]:
    """Every combination against that of the fewest ranks with as many compute threads in all."""
    found = []
    for one in measured:
        of_same = [other for other in measured if total_threads(other) == total_threads(one)]
        base = min(of_same, key=lambda other: other.combination.ranks)
        if base is one:
            continue
        ratio = times_the_throughput(one, base)
        pair = (shape(one), shape(base))
        found.append(
            Finding(
                what=f"{one.combination.name} against {base.combination.name}, "
                f"{global_batch} images a step both",
                value=ratio.median,
                shown=f"{ratio.median:.2f} times as fast ({ratio.lowest:.2f}–{ratio.highest:.2f})",
                at_least=1.0 if with_targets and pair == ((2, 1), (1, 2)) else None,
            )
        )
    return found


def shape(one: Measured) -> tuple[int, int]:
    """Ranks, and threads of each."""
    return one.combination.ranks, one.combination.threads


def total_threads(one: Measured) -> int:
    """Over all ranks."""
    return one.combination.ranks * one.combination.threads


def communication(measured: Sequence[Measured], *, with_targets: bool) -> list[Finding]:
    """The largest share of a step in waiting for gradients, and that exchanging them adds."""
    exposed = [(one.exposed_share, one.combination.name) for one in measured]
    added = [(one.added_share, one.combination.name) for one in measured]
    shares = (("waiting for gradients", exposed), ("what the exchange adds", added))
    found = []
    for what, all_values in shares:
        values = [(share, name) for share, name in all_values if share is not None]
        if values:
            value, name = max(values)
            found.append(
                Finding(
                    what=f"{what}, largest share of a step",
                    value=value,
                    shown=f"{value:.4f} ({name})",
                    at_most=LARGEST_EXCHANGE if with_targets else None,
                )
            )
    return found
