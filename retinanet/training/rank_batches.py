"""The images of each rank in a batch, settled before the first step (`distributed.batch_split`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.group.process_group import ProcessGroup
from launch.host.memory_limit import memory_left
from retinanet.batch_split import split_at_start, split_by_speed
from retinanet.config import Config
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.preflight.fitting_batch import images_that_fit
from retinanet.training.rank_speed import measured_speed


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
