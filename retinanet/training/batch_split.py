"""The split of a batch among the ranks (`distributed.batch_split`), before the first step.

`speed` measures how fast each rank trains while all others train too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from data.annotations import Size, as_size
from data.dataset import Batch
from launch.limits import free_memory
from launch.process_group import ProcessGroup
from retinanet.config import Config
from retinanet.config_types import split_at_start, split_by_speed
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.engine.folded_forward import RunningStatistics
from retinanet.memory import images_that_fit
from retinanet.training.loop import accumulate_gradients


@dataclass(frozen=True, kw_only=True)
class RankBatches:
    """The split of a batch among the ranks."""

    images: tuple[int, ...]
    speeds: tuple[float, ...] = ()  # Each rank's speed, if measured at this start. [images/s]
    is_recorded: bool = False
    """Whether the speeds were measured at an earlier start of the run."""

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
    """Split batches as configured; all ranks call it before gradients are exchanged.

    The `local_ranks` of this host share its memory. `recorded` is the split by speed of a resumed
    run, see `recorded_split`; if empty, speeds are measured.

    Raises:
        InputError: A list is not of these ranks, or not of this batch.
    """
    setting, batch_size = config.distributed.batch_split, config.training.batch_size
    start = split_at_start(setting, batch_size=batch_size, ranks=group.size)
    if setting != "speed":
        return RankBatches(images=start)
    if recorded:
        # A new measurement would differ slightly. Another split changes the sums of gradients, so
        # the resumed run would no longer be bitwise equal.
        return RankBatches(images=tuple(recorded), is_recorded=True)
    # Each rank needs at least one image, so only one split is possible.
    if group.size == 1 or batch_size == 1:
        return RankBatches(images=start)
    speed = measured_speed(
        prepared,
        group=group,
        images=batch_size,
        image_size=as_size(config.data.image_size),
        focal_form=config.engine.focal_loss,
    )
    # Each rank has a limit of its own, since hosts may differ in memory.
    most = images_that_fit(
        config,
        num_classes=prepared.model.head.classification_head.num_classes,
        engine=chosen_engine(config.engine.name),
        local_ranks=local_ranks,
        available=free_memory(),
    )
    limit = sum(start) if most is None else most
    measured = group.all_gather((speed, limit), tuple[float, int])
    speeds, limits = zip(*measured, strict=True)
    images = split_by_speed(speeds, images=sum(start), most=limits)
    return RankBatches(images=images, speeds=speeds)


PASSES = 3  # Passes of the slowest rank during the measurement


def measured_speed(
    prepared: PreparedTraining,
    *,
    group: ProcessGroup,
    images: int,
    image_size: Size,
    focal_form: str = "auto",
) -> float:
    """Return this rank's speed on dummy images [images/s]; all ranks call it.

    All ranks compute for the same time: if one finished early, the others would have caches and
    memory bandwidth that they lack in a step. Weights, optimizer, running statistics and random
    states are unchanged afterwards.
    """
    prepared.model.train()
    statistics = RunningStatistics(prepared.model)
    statistics.keep()
    batch = dummy_batch(images, image_size)

    def seconds_of_pass() -> float:
        start = time.perf_counter()
        # Without an exchange, in which a fast rank would wait for the slow ones.
        accumulate_gradients(prepared, [batch], focal_form=focal_form)
        prepared.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    # The first pass is not measured: oneDNN builds its kernels, and memory is mapped.
    seconds_of_pass()
    slowest = max(group.all_gather(seconds_of_pass(), float))
    end = time.perf_counter() + PASSES * slowest
    seconds: list[float] = []
    while not seconds or time.perf_counter() < end:
        seconds.append(seconds_of_pass())
    statistics.put_back()
    return images / median(seconds)


BOX = (0.2, 0.2, 0.6, 0.7)  # The object of each image, in shares of its sides. [xyxy]


def dummy_batch(images: int, size: Size) -> Batch:
    """Return a batch of noise images of (height, width), without torch's global generator."""
    generator = torch.Generator().manual_seed(0)
    shape = (images, 3, *size)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    target = {
        "boxes": torch.tensor([BOX]) * torch.tensor(size[::-1] * 2),
        "labels": torch.tensor([0]),
    }
    return Batch(
        pixels.contiguous(memory_format=torch.channels_last),
        [target] * images,
        image_ids=[0] * images,
        original_sizes=[size] * images,
    )
