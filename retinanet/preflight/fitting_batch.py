"""How many images a rank's memory holds, once it has taken a batch through the model."""

from dataclasses import replace

from launch.host.memory_limit import MemoryLeft
from retinanet.config import Config
from retinanet.preflight.known_data import KnownData
from retinanet.preflight.memory_need import training_bytes
from retinanet.preflight.quick import need_of_rank, shape_of_steps, sizes_of_model


def images_that_fit(
    config: Config, *, num_classes: int, engine: str, local_ranks: int, left: MemoryLeft | None
) -> int | None:
    """The largest batch of a rank: the even one, which it has just taken, and what else fits.

    Set aside is all that the preflight counts beside a batch, though part of it is taken already.

    Args:
        config: The run's.
        num_classes: Of the model.
        engine: `torch` or `ipex`.
        local_ranks: Of this host; each may have as much of what is left.
        left: What its processes may still take.

    Returns:
        None where nobody says what is left.
    """
    if left is None:
        return None
    known = KnownData(num_classes=num_classes, train_images=None, validation_images=None)
    sizes = sizes_of_model(config, known)
    need = need_of_rank(config, sizes, known, planned=local_ranks, engine=engine)
    aside = need.model + need.other + need.loading
    free = (left.size - sizes.checkpoint) // local_ranks - aside
    shape = replace(shape_of_steps(config, known, engine=engine), batch_size=1)
    return config.training.batch_size + max(0, free // training_bytes(shape))
