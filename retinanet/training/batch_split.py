"""The images of each rank in a batch, settled before the first step (`distributed.batch_split`).

TODO-DOC How fast a rank trains while all others do: what `distributed.batch_split=speed` goes by.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from data.dataset import Batch
from launch.limits import memory_left
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_types import split_at_start, split_by_speed
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.preflight.quick import images_that_fit
from retinanet.training.distributed import dummy_batch
from retinanet.training.loop import accumulate_gradients


@dataclass(frozen=True, kw_only=True)
class RankBatches:
    """How a batch is split among the ranks."""

    images: tuple[int, ...]
    """Of each rank."""
    speeds: tuple[float, ...] = ()
    """Of each rank, where they have just been measured. [images/s]"""
    is_recorded: bool = False
    """Whether they were measured at an earlier start of the run, and not again."""

    @property
    def is_even(self) -> bool:
        """Whether all ranks have as many."""
        return len(set(self.images)) == 1

    def weight(self, rank: int) -> float:
        """A rank's part of all images, by which it counts in averages over them."""
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

    Args:
        config: The run's.
        prepared: The model as its engine runs it.
        group: The ranks.
        local_ranks: Those of this host, which share its memory.
        recorded: The split by speed that a resumed run had, see `recorded_split`; none: measure.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    given, batch_size = config.distributed.batch_split, config.training.batch_size
    start = split_at_start(given, batch_size=batch_size, ranks=group.size)
    if given != "speed":
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
    told = group.all_gather((speed, sum(start) if most is None else most))
    speeds, limits = zip(*told, strict=True)
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
    """Time forward and backward passes on noise, as long on all ranks; all of them call it.

    On noise, since their time depends on how many pixels there are and not on what they show: no
    file is read, no image of the run's order is used up. Nobody is done early and leaves caches
    and memory to the others, which no step would do. Weights, optimizer, running statistics and
    random states are afterwards what they were.

    Args:
        prepared: The model, before its gradients are exchanged.
        group: The ranks.
        images: In each pass.
        image_size: Of their sides. [pixels]
        focal_form: See `focal_loss`.

    Returns:
        This rank's. [images/s]
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    statistics.keep()
    batch = dummy_batch(images, image_size)
    seconds_of_pass(prepared, batch, focal_form=focal_form)  # kernels are built, memory is filled
    slowest = max(group.all_gather(seconds_of_pass(prepared, batch, focal_form=focal_form)))
    end = time.perf_counter() + PASSES * slowest
    found: list[float] = []
    while not found or time.perf_counter() < end:
        found.append(seconds_of_pass(prepared, batch, focal_form=focal_form))
    statistics.put_back()
    return images / median(found)


def seconds_of_pass(prepared: PreparedTraining, batch: Batch, *, focal_form: str) -> float:
    """Take a batch forward and backward; its gradients are dropped."""
    began = time.perf_counter()
    accumulate_gradients(prepared, [batch], focal_form=focal_form)
    prepared.optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - began
