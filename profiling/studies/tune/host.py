"""What to measure of this host.

TODO-DOC The network between named hosts, measured: all-reduces over a rank on each of them.

TODO-DOC Which of the ranks and threads that a host can have are worth measuring.
"""

import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from common.errors import InputError
from common.machine import anonymous_bytes
from launch.hosts import expand_hosts, hosts_with_ranks, read_hostfile
from launch.limits import memory_left, read_allowance
from launch.mpirun import Mpirun
from launch.placement import fitting_shapes
from launch.topology import count_cores, read_topology, sockets_of
from profiling.bench.job import AllReduces, JobFailedError, measure_all_reduces
from profiling.studies.tune.measure import TrainedData, WhatToMeasure
from profiling.studies.tune.measurements import BetweenHosts
from profiling.studies.tune.model import Shape, rank_counts
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import core_request

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
    from retinanet.preflight.check import need_of_rank  # noqa: PLC0415
    from retinanet.preflight.memory import model_bytes  # noqa: PLC0415
    from retinanet.preflight.run import KnownData  # noqa: PLC0415

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


SIZES = (2**12, 2**16, 2**20, 2**23, 2**25)
"""Of the all-reduces, up to about a bucket of gradients. [bytes]"""


def named_hosts(text: str | None, hostfile: Path | None) -> tuple[str, ...]:
    """The hosts that the command line names, as `launch run` reads them; none: no network.

    Raises:
        InputError: The list or the file is none, or names less than two hosts.
    """
    if hostfile is not None:
        hosts = tuple(one.name for one in read_hostfile(hostfile))
    elif text is not None and ":" in text:
        hosts = tuple(name for name, _ in hosts_with_ranks(text, ranks=None))
    else:
        hosts = expand_hosts(text) if text is not None else ()
    if len(hosts) == 1:
        option = f"--hostfile {hostfile}" if hostfile else f"--measure-hosts {text}"
        raise InputError(f"{option}: a network joins two hosts or more; name another one")
    return hosts


def measure_between(hosts: tuple[str, ...], *, mpirun: Mpirun) -> BetweenHosts:
    """Time all-reduces over a rank on each of the first two, four and so on, and of all.

    Raises:
        InputError: Ranks could not be started on all of them, or share a host.
    """
    found = [measure_over(hosts[:count], mpirun=mpirun) for count in rank_counts(len(hosts))]
    times = tuple(itertools.chain.from_iterable(one.times for one in found))
    return BetweenHosts(hosts=hosts, all_reduces=times, over=found[-1].over)


def measure_over(hosts: tuple[str, ...], *, mpirun: Mpirun) -> AllReduces:
    """Those over a rank on each of these.

    Raises:
        InputError: See `measure_between`.
    """
    names = ",".join(hosts)
    on_hosts = tuple((host, 1) for host in hosts)
    try:
        found = measure_all_reduces(sizes=SIZES, ranks=len(hosts), mpirun=mpirun, hosts=on_hosts)
    except JobFailedError as error:
        raise InputError(
            f"{names}: the ranks on them could not measure ({error}); check with python -m launch "
            f"run --np {len(hosts)} --hosts {names} -- hostname"
        ) from error
    if found.hosts < len(hosts):
        raise InputError(f"{names}: are names of {found.hosts} hosts only; name different ones")
    return found


BATCH_SIZES = (1, 2, 4)
"""Images of a rank, measured and planned beside the configuration's own number: more gain little,
and make global batches large."""


def measured_pairs(shapes: Sequence[tuple[int, int]], *, most: int) -> list[tuple[int, int]]:
    """Ranks and threads to measure: some of the host's shapes, and single ranks of their threads.

    A single rank tells what threads bring, several what ranks take from each other.

    Args:
        shapes: All of the host, by ranks.
        most: So many of them at the most, beside the one of most ranks.
    """
    step = max(1, -(-len(shapes) // most))
    chosen = [*shapes[::step], shapes[-1]]
    alone = [(1, threads) for _, threads in chosen]
    return sorted(dict.fromkeys([*alone, *chosen]))


def with_batches(pairs: Sequence[tuple[int, int]], *, own: int) -> list[Shape]:
    """Every pair of ranks and threads with every one of `BATCH_SIZES`, and `own` images of a rank.

    `own`: the configuration's.
    """
    sizes = sorted({*BATCH_SIZES, own})
    return [
        Shape(ranks=ranks, threads=threads, batch_size=batch_size)
        for (ranks, threads), batch_size in product(pairs, sizes)
    ]
