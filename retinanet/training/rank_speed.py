"""Ranks of different speed: which are slow and why, and how a batch is split among them.

`SlowRank` finds a rank for which all others wait: a host that is busy, hot or older than the rest.
`BackgroundLoad` finds other programs on this rank's cores, where every parallel region waits for
the slowest thread. `settle_batches` splits a batch before the first step
(`distributed.batch_split`): `speed` measures how fast each rank trains while all others do.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from common.errors import printable
from common.machine import busiest, ticks_on, waiting_of_threads
from launch.limits import memory_left
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_types import split_at_start, split_by_speed
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.memory import images_that_fit
from retinanet.training.distributed import dummy_batch
from retinanet.training.loop import StepResult, accumulate_gradients

STEPS = 20
"""Looked at together: single steps are slow for many reasons."""
MOST_OF_THEM = 0.8
LONGER_NOTED = 0.25
"""Of the others' time, from which on it is worth a line."""


class SlowRank:
    """Compares forward passes: in a backward pass fast ranks wait for slow ones."""

    def __init__(self, hosts: Sequence[str], *, advice: str = "") -> None:
        """`hosts`: of each rank, for the message; `advice`: its end."""
        self._hosts = hosts
        self._advice = advice
        self._slowest: deque[int] = deque(maxlen=STEPS)
        self._longer: deque[float] = deque(maxlen=STEPS)
        self._noted: int | None = None

    def note(self, results: Sequence[StepResult]) -> str | None:
        """Return a line about a slow rank, once for each; call it with every step of all ranks."""
        times = [result.forward_seconds for result in results]
        slowest = times.index(max(times))
        others = [seconds for rank, seconds in enumerate(times) if rank != slowest]
        if not others or not fmean(others):
            return None
        self._slowest.append(slowest)
        self._longer.append(times[slowest] / fmean(others) - 1)
        rank, count = Counter(self._slowest).most_common(1)[0]
        longer = fmean(self._longer)
        is_slow = count >= MOST_OF_THEM * STEPS and longer >= LONGER_NOTED
        if not is_slow or rank == self._noted:
            return None
        self._noted = rank
        return (
            f"note: rank {rank} on {self._hosts[rank]} is slow, and all wait for it: its forward "
            f"passes took {longer:.0%} longer than the others' in the last {STEPS} steps"
            f"{self._advice}"
        )


def advice_on_slow_rank(config: Config) -> str:
    """Return what helps against a slow rank: fewer images for it, if batches are split evenly."""
    if config.distributed.batch_split != "even" or config.training.batch_size == 1:
        return ""
    return "; if it stays so, --resume with distributed.batch_split=speed gives it fewer images"


SECONDS = 5.0
"""Between two looks: long enough for a share, short enough that a test run has several."""
LEAST_WAIT = 0.2
"""Share of the time that a compute thread waited for its core, from which on a note is worth it.
An undisturbed thread waits for less than 0.02, one beside a busy process for about 0.5."""
LEAST_CORES = 0.1
"""A process that used less is not named."""
MOST_NAMED = 3
SILENT_SECONDS = 600.0
"""After a note: a load that stays, or comes and goes, is reported again only then."""


class BackgroundLoad:
    """Measures how long compute threads wait for their cores, and who uses these meanwhile."""

    def __init__(self, cpus: Collection[int], *, place: str, seconds: float = SECONDS) -> None:
        """Begin to watch this rank's `cpus`; `place` in the note is the rank and its host.

        Two looks are `seconds` apart.
        """
        self._cpus = frozenset(cpus)
        self._place = place
        self._seconds = seconds
        self._start = time.monotonic()
        self._waits = waiting_of_threads()
        self._ticks: dict[int, int] | None = None
        self._silent_until = self._start

    def note(self) -> str | None:
        """Return one line about the load, if there is one; call it after every step."""
        now = time.monotonic()
        seconds = now - self._start
        if seconds < self._seconds:
            return None
        waits = waiting_of_threads()
        known = waits.keys() & self._waits.keys()
        share = max((waits[thread] - self._waits[thread] for thread in known), default=0) / seconds
        before, self._ticks = self._ticks, None
        self._start, self._waits = now, waits
        if share < LEAST_WAIT or now < self._silent_until:
            return None
        # Reading all processes takes milliseconds, so it is done only where cores are shared. Names
        # come with the next look, if the load is still there.
        self._ticks = ticks_on(self._cpus)
        if before is None:
            return None
        self._silent_until = now + SILENT_SECONDS
        processes = busiest(before, self._ticks, seconds=seconds, least_cores=LEAST_CORES)
        named = [
            f"{printable(process.name)} (process {process.process}, {process.cores:.1f} cores"
            f"{', started by this run' if process.is_ours else ''})"
            for process in processes[:MOST_NAMED]
        ]
        causes = ", ".join(named)
        if not causes:
            causes = "no process that can be seen from here, perhaps another container"
        return (
            f"note: {self._place} shares its cores: a compute thread waited for its core for "
            f"{share:.0%} of the last {seconds:.0f} s. Busy there: {causes}. A step waits for its "
            "slowest thread; end or move the other work, or give this run fewer cores "
            "(launch.threads)"
        )


@dataclass(frozen=True, kw_only=True)
class RankBatches:
    """How a batch is split among the ranks."""

    images: tuple[int, ...]
    """Of each rank."""
    speeds: tuple[float, ...] = ()
    """Of each rank, where they have just been measured. [images/s]"""
    is_recorded: bool = False
    """Whether they were measured at an earlier start of the run, and not again."""

    def weight(self, rank: int) -> float:
        """Return a rank's part of all images, its weight in averages over them."""
        return self.images[rank] / sum(self.images)


def settle_batches(
    config: Config,
    prepared: PreparedTraining,
    *,
    group: ProcessGroup,
    local_ranks: int,
    recorded: Sequence[int] = (),
) -> RankBatches:
    """Split batches as configured; all ranks call it, before gradients are exchanged.

    The `local_ranks` of this host share its memory. `recorded` is the split by speed that a resumed
    run had, see `recorded_split`; without one it is measured.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    setting, batch_size = config.distributed.batch_split, config.training.batch_size
    start = split_at_start(setting, batch_size=batch_size, ranks=group.size)
    if setting != "speed":
        return RankBatches(images=start)
    if recorded:
        return RankBatches(images=tuple(recorded), is_recorded=True)
    if group.size == 1 or batch_size == 1:  # there is nothing to choose
        return RankBatches(images=start)
    speed = measured_speed(
        prepared,
        group=group,
        images=batch_size,
        image_size=config.data.image_size,
        focal_form=config.engine.focal_loss,
    )
    most = images_that_fit(
        config,
        num_classes=prepared.model.head.classification_head.num_classes,
        engine=chosen_engine(config.engine.name),
        local_ranks=local_ranks,
        left=memory_left(),
    )
    of_ranks = group.all_gather((speed, sum(start) if most is None else most))
    speeds, limits = zip(*of_ranks, strict=True)
    images = split_by_speed(speeds, images=sum(start), most=limits)
    return RankBatches(images=images, speeds=speeds)


PASSES = 3
"""Of the slowest rank, in the time for which all are measured."""


def measured_speed(
    prepared: PreparedTraining,
    *,
    group: ProcessGroup,
    images: int,
    image_size: int,
    focal_form: str = "auto",
) -> float:
    """Return this rank's speed on dummy images [images/s]; all ranks call it.

    All ranks compute for the same time: none is done early and leaves caches and memory to the
    others, which no step would do. Weights, optimizer, running statistics and random states are
    unchanged afterwards.
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    statistics.keep()
    batch = dummy_batch(images, image_size)

    def seconds_of_pass() -> float:
        start = time.perf_counter()
        accumulate_gradients(prepared, [batch], focal_form=focal_form)
        prepared.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    seconds_of_pass()  # kernels are built, memory is filled
    slowest = max(group.all_gather(seconds_of_pass()))
    end = time.perf_counter() + PASSES * slowest
    seconds: list[float] = []
    while not seconds or time.perf_counter() < end:
        seconds.append(seconds_of_pass())
    statistics.put_back()
    return images / median(seconds)
