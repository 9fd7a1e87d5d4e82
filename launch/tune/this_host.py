"""What to measure of this host."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from launch.host.allowance import read_allowance
from launch.host.memory_limit import memory_left
from launch.host.sockets import count_cores, sockets_of
from launch.host.topology import read_topology
from launch.placement.fitting import fitting_shapes
from launch.resources import anonymous_bytes
from launch.tune.measure_host import WhatToMeasure
from launch.tune.shapes import measured_pairs, with_batches
from launch.tune.step_time import Shape
from launch.tune.trained_data import TrainedData
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.configured_place import core_request
from retinanet.errors import InputError

MOST_PAIRS = 4
"""Ways to divide the host that are measured."""
ROUNDS = 2
SCENES = 96
"""Drawn for the measured jobs, where there is no data set or where it is drawn itself."""
MEMORY_SHARE = 0.9
"""Of what is free, that ranks may be estimated to take."""


def what_to_measure(data: TrainedData, *, overrides: Sequence[str]) -> WhatToMeasure:
    """As much as the planner needs, of what this process may use of the host.

    Raises:
        InputError: A setting is wrong, or there is not enough memory.
    """
    config = load_config(data.config, overrides)
    allowance = read_allowance()
    sockets = sockets_of(read_topology().restricted(allowance.cpus))
    pairs = fitting_shapes(sockets, quota=allowance.quota, request=core_request(config))
    fits = memory_check(config, classes=data.classes)
    own = config.training.batch_size
    shapes = tuple(one for one in with_batches(pairs, own=own) if fits(one))
    if not shapes:
        raise InputError("memory: not even one image fits; give a smaller data.image_size")
    chosen = measured_pairs(pairs, most=MOST_PAIRS)
    return WhatToMeasure(
        command=shlex.join(["python", "-m", "launch", "tune", "--data", data.name, *overrides]),
        measured=tuple(one for one in with_batches(chosen, own=own) if fits(one)),
        shapes=shapes,
        data=data,
        overrides=tuple(overrides),
        job_overrides=(*overrides, *drawn(config, classes=data.classes)),
        config=config,
        cores=count_cores(sockets),
        sockets=len(sockets),
        rounds=ROUNDS,
    )


def drawn(config: Config, *, classes: int) -> tuple[str, ...]:
    """Settings that have few scenes drawn where they are drawn anyway, or there is no data set.

    In place of a data set they have as many classes.
    """
    data = config.data
    if data.scenes is not None:
        return (few_scenes(min(SCENES, data.scenes.train)),)
    if data.train_annotations is not None or (data.root is not None and data.root.exists()):
        return ()
    alike = (f"model.num_classes={classes}", "data.class_indices=category_id")
    return ("data.root=null", few_scenes(SCENES), *alike)


def few_scenes(count: int) -> str:
    """To train on; the measured jobs evaluate nothing."""
    return f"data.scenes={{train: {count}, validation: 1}}"


def memory_check(config: Config, *, classes: int) -> Callable[[Shape], bool]:
    """What tells whether a shape's ranks together find the memory that they are estimated to take.

    Args:
        config: That they train.
        classes: Of the model.
    """
    from retinanet.engine.engines import chosen_engine  # noqa: PLC0415
    from retinanet.preflight.known_data import KnownData  # noqa: PLC0415
    from retinanet.preflight.model_bytes import model_bytes  # noqa: PLC0415
    from retinanet.preflight.quick import need_of_rank  # noqa: PLC0415

    left = memory_left()
    sizes = model_bytes(config.model, config.training, num_classes=classes)
    known = KnownData(num_classes=classes, train_images=None, validation_images=None)
    engine = chosen_engine(config.engine.name)

    def fits(one: Shape) -> bool:
        of_shape = replace(config, training=replace(config.training, batch_size=one.batch_size))
        need = need_of_rank(of_shape, sizes, known, planned=one.ranks, engine=engine)
        wanted = one.ranks * (need.all + anonymous_bytes()) + sizes.checkpoint
        return left is None or wanted <= MEMORY_SHARE * left.size

    return fits
