"""The scaling study: combinations of ranks and threads, their jobs, and the derived numbers.

Every combination that fits the host is a job of its own. The jobs run one after another in rounds,
forwards and backwards, so that what changes steadily, as a machine that warms up, affects all
combinations alike. The planner (`profiling.studies.tune`) measures its steps in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from rich.console import Console

from common.console import print_line, progress
from common.errors import InputError
from launch.mpirun import Mpirun
from launch.placement import Misfit, count_ranks, fit_ranks
from launch.shares import CoreRequest
from launch.topology import Topology, list_sockets_of_ranks
from profiling.bench.job import (
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

DOES_NOT_FIT = "–"
LARGEST_EXCHANGE = 0.05
"""Target for the share of a step that communication takes, with gradients in BF16."""
STANDARD_SIZE = 800
STANDARD_BATCH = 2

Job = Sequence[RankSteps]  # The steps of each rank of one job


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A number of ranks with a number of threads and of images in a step each."""

    ranks: int
    threads: int
    batch_size: int
    hosts: tuple[tuple[str, int], ...] = ()
    """Names, and the number of ranks of each; none: this host."""
    misfit: str = ""  # Why it cannot run; empty if it can

    @property
    def name(self) -> str:
        """The name, such as `2 ranks × 1 thread`."""
        return f"{count_ranks(self.ranks)} × {count_threads(self.threads)}"

    @property
    def shape(self) -> str:
        """The ranks and threads, such as `2 × 1`."""
        return f"{self.ranks} × {self.threads}"

    @property
    def images(self) -> int:
        """Images of a step over all ranks."""
        return self.ranks * self.batch_size

    @property
    def all_threads(self) -> int:
        """Compute threads over all ranks."""
        return self.ranks * self.threads


def count_threads(threads: int) -> str:
    """Return `1 thread`, `2 threads`."""
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
    """Return every combination, by ranks over all hosts and then by threads of a rank.

    `batch_size` counts where there is no `global_batch`, the images of all ranks in a step.
    `place_on_hosts` returns the ranks of each host for a number of ranks; none: all on this one.
    `allowed` are the CPUs of each host that ranks may use, `quota` CPUs' worth of time for each
    host. The threads of `request` are not looked at.
    """
    combinations = []
    for count in ranks:
        hosts: tuple[tuple[str, int], ...] = ()
        no_place = ""
        try:
            hosts = place_on_hosts(count)
        except InputError as error:
            no_place = str(error)
        if global_batch is not None and global_batch % count:
            no_place = f"{global_batch} images do not divide evenly among {count_ranks(count)}"
        # Hosts are alike, so each number of ranks on a host is checked once.
        counts = dict.fromkeys([on_host for _, on_host in hosts] or [count])
        for of_rank in threads:
            needed = replace(request, threads=of_rank)
            fits = (
                fit_ranks(
                    list_sockets_of_ranks(allowed), ranks=on_host, request=needed, quota=quota
                )
                for on_host in counts
            )
            combination = Combination(
                ranks=count,
                threads=of_rank,
                batch_size=global_batch // count if global_batch else batch_size,
                hosts=hosts,
                misfit=no_place or next((fit.why for fit in fits if isinstance(fit, Misfit)), ""),
            )
            combinations.append(combination)
    return combinations


def misfits(combinations: Sequence[Combination]) -> list[str]:
    """Return a line for each reason why combinations do not fit."""
    reasons: dict[str, list[str]] = {}
    for combination in combinations:
        if combination.misfit:
            reasons.setdefault(combination.misfit, []).append(combination.shape)
    return [f"{DOES_NOT_FIT} {', '.join(names)}: {why}" for why, names in reasons.items()]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The jobs of one combination, and the numbers derived from them."""

    combination: Combination
    jobs: Sequence[Job]  # One of each round, in order; at least one

    @property
    def step_seconds(self) -> float:
        """Median over the steps of all rounds, each as long as that of its slowest rank."""
        return median(seconds for job in self.jobs for seconds in slowest(job))

    @property
    def images_per_second(self) -> float:
        """Throughput of all ranks."""
        return self.combination.images / self.step_seconds

    @property
    def data_share(self) -> float:
        """Median share of a step spent waiting for data."""
        return self._share(waited_for_data)

    @property
    def exposed_share(self) -> float | None:
        """Median share of a step spent waiting for other ranks' gradients. None for one rank."""
        return self._share(exposed) if self.combination.ranks > 1 else None

    @property
    def added_share(self) -> float | None:
        """Median share of a step that the exchange of gradients adds. None for one rank.

        Each step is compared with the next one, which has no exchange: a while in which the machine
        is slower affects both.
        """
        pairs = [
            1 - without / step
            for job in self.jobs
            if self.combination.ranks > 1
            for step, without in zip(slowest(job), slowest_held_back(job), strict=True)
        ]
        return median(pairs) if pairs else None

    def _share(self, part: Callable[[Job], Sequence[float]]) -> float:
        """Return the median over all steps of a part's share in them."""
        return median(
            seconds / whole
            for job in self.jobs
            for seconds, whole in zip(part(job), slowest(job), strict=True)
        )


@dataclass
class Rounds:
    """The jobs of a study: those to run, and what has been measured so far."""

    combinations: Sequence[Combination]
    """The combinations that fit, in the order of the first round."""
    rounds: int
    jobs: dict[Combination, list[Job]] = field(default_factory=dict)
    title: str = "scaling study, steps"
    running: str = ""  # Names the job that runs, or was the last to

    @property
    def order(self) -> list[tuple[int, Combination]]:
        """All jobs with their rounds, from 1; the order alternates from round to round."""
        return [
            (number, combination)
            for number in range(1, self.rounds + 1)
            for combination in self.combinations[:: 1 if number % 2 else -1]
        ]

    @property
    def done(self) -> int:
        """The number of jobs that have run."""
        return sum(map(len, self.jobs.values()))

    @property
    def measured(self) -> list[Measured]:
        """The combinations that have run at least once."""
        return [
            Measured(combination=combination, jobs=self.jobs[combination])
            for combination in self.combinations
            if combination in self.jobs
        ]


def run_rounds(
    rounds: Rounds,
    template: MeasuredJob,
    *,
    mpirun: Mpirun,
    console: Console,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Run the remaining jobs, and record their measurements.

    Threads and batch size of the template are each combination's. `keep` is called after each job.

    Raises:
        JobFailedError: A job failed; its ranks have printed the reason.
        KeyboardInterrupt: Ctrl-C.
    """
    jobs = {
        combination: replace(
            template,
            ranks=combination.ranks,
            hosts=combination.hosts,
            overrides=(
                *template.overrides,
                f"launch.threads={combination.threads}",
                f"training.batch_size={combination.batch_size}",
            ),
        )
        for combination in rounds.combinations
    }
    # Jobs of a combination run in order of rounds: their number shows which are missing.
    missing = [job for job in rounds.order if len(rounds.jobs.get(job[1], ())) < job[0]]
    total = sum(jobs[combination].all_steps for _, combination in rounds.order)
    before = total - sum(jobs[combination].all_steps for _, combination in missing)
    with progress(console, rounds.title, total=total, start=before) as advance:
        for number, combination in missing:
            rounds.running = f"{combination.name}, round {number} of {rounds.rounds}"
            advance(before, rounds.running)
            ranks = measure_ranks(
                jobs[combination],
                mpirun=mpirun,
                advance=lambda step: advance(before + step, rounds.running),  # noqa: B023, at once
                print_line=partial(print_line, console),
            )
            rounds.jobs.setdefault(combination, []).append(ranks)
            keep()
            before += jobs[combination].all_steps


def smallest(measured: Sequence[Measured]) -> Measured:
    """Return the combination with the fewest ranks, then the fewest threads: 1.00 in the table."""
    return min(measured, key=lambda each: (each.combination.ranks, each.combination.threads))


def efficiency(result: Measured, measured: Sequence[Measured]) -> float | None:
    """Return the weak-scaling efficiency; 1 is ideal.

    The reference is the throughput of the fewest ranks with the same number of threads, scaled to
    this number of ranks. None if no such combination with fewer ranks was measured.
    """
    threads = result.combination.threads
    base = smallest([other for other in measured if other.combination.threads == threads])
    times = result.combination.ranks / base.combination.ranks
    return result.images_per_second / (times * base.images_per_second) if times > 1 else None


def times_the_throughput(result: Measured, other: Measured) -> Ratio:
    """Return the ratio of the median steps, with the lowest and the highest ratio of a round."""
    rounds = [
        replace(result, jobs=[job]).images_per_second
        / replace(other, jobs=[other_job]).images_per_second
        # After an interruption, one of them may lack a round.
        for job, other_job in zip(result.jobs, other.jobs, strict=False)
    ]
    ratio = result.images_per_second / other.images_per_second
    return Ratio(ratio, min(rounds), max(rounds))


def is_standard(config: Config) -> bool:
    """Return whether the targets apply to this workload."""
    return config.data.image_size == STANDARD_SIZE and config.engine.precision == "bf16"


def findings(
    measured: Sequence[Measured], *, config: Config, global_batch: int | None
) -> list[Finding]:
    """Compare numbers of ranks on equal cores, and find the largest communication shares.

    `global_batch` are the images of all ranks in a step, where it is the same for all combinations.
    """
    standard = is_standard(config)
    compared = []
    for result in measured if global_batch is not None else ():
        # With that of the fewest ranks and as many compute threads in all.
        this = result.combination
        equal_cores = [
            each for each in measured if each.combination.all_threads == this.all_threads
        ]
        base = min(equal_cores, key=lambda other: other.combination.ranks)
        if base is result:
            continue
        other = base.combination
        # The target is for one comparison: two ranks of one thread with one rank of two.
        is_target = (this.ranks, this.threads, other.ranks, other.threads) == (2, 1, 1, 2)
        has_target = standard and global_batch == STANDARD_BATCH and is_target
        ratio = times_the_throughput(result, base)
        compared.append(
            Finding(
                what=f"{this.name} against {other.name}, both {global_batch} images per step",
                value=ratio.median,
                shown=f"{ratio.median:.2f} times as fast ({ratio.lowest:.2f}–{ratio.highest:.2f})",
                at_least=1.0 if has_target else None,
            )
        )
    at_most = LARGEST_EXCHANGE if standard and config.distributed.compress == "bf16" else None
    for what, name in (
        ("waiting for gradients", "exposed_share"),
        ("added by the exchange", "added_share"),
    ):
        shares = [
            (share, result.combination.name)
            for result in measured
            if (share := getattr(result, name)) is not None
        ]
        if shares:
            value, largest = max(shares)
            shown = f"{value:.4f} ({largest})"
            title = f"{what}, largest share of a step"
            compared.append(Finding(title, value, shown, at_most=at_most))
    return compared
