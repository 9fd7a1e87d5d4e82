"""How fast a rank trains while all others do: what `distributed.batch_split=speed` goes by."""

import time
from statistics import median

from data.dataset import Batch
from launch.group.process_group import ProcessGroup
from retinanet.engine.engines import PreparedTraining
from retinanet.engine.running_statistics import RunningStatistics
from retinanet.training.loop import accumulate_gradients
from retinanet.training.noise import noise

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
    batch = noise(images, image_size)
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
