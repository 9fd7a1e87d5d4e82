"""The place on its host that a configuration asks for."""

import os
from dataclasses import replace

from launch.group.keeper import keep_this_rank
from launch.group.launcher_process import launcher_process
from launch.place import Place, take_place
from launch.placement.share import CoreRequest
from launch.ranks import Ranks
from retinanet.batch_split import split_at_start
from retinanet.compute_groups import group_of_rank, require_groups
from retinanet.config import Config


def place_on_host(config: Config, ranks: Ranks, *, binding: bool = True) -> Place:
    """Take it, before torch is loaded; see `take_place`.

    A oneDNN log that will be written has a time in every line: oneDNN looks for that only once.
    Without `binding` the ranks only meet, to look at their hosts: no cores, no libraries.

    Raises:
        InputError: Something asked for is not installed, or does not fit this host or its ranks.
    """
    if config.profile.onednn_steps:
        os.environ.setdefault("ONEDNN_VERBOSE_TIMESTAMP", "1")
    if not binding:
        return take_place(
            ranks,
            request=CoreRequest(threads=1, comm_cores=0, loader_cores=0),
            allocator="system",
            backend="gloo",
            pinned=False,
            timeout_s=config.distributed.timeout_s,
        )
    require_groups(config.distributed.groups, ranks=ranks.size)
    split_at_start(  # refuses one of other ranks
        config.distributed.batch_split, batch_size=config.training.batch_size, ranks=ranks.size
    )
    place = take_place(
        ranks,
        request=core_request(config),
        allocator=config.engine.allocator,
        backend=config.distributed.backend,
        pinned=config.launch.pin,
        timeout_s=config.distributed.timeout_s,
    )
    groups = config.distributed.groups
    if groups == 1 or group_of_rank(ranks.rank, ranks=ranks.size, groups=groups) == 0:
        return place
    # Its end may be that of its group alone, if the launcher does not hear of it.
    keeper = keep_this_rank(
        launcher=launcher_process(ranks, os.environ), silence_s=config.distributed.timeout_s
    )
    return replace(place, keeper=keeper)


def core_request(config: Config) -> CoreRequest:
    """The cores that each rank asks for."""
    threads = config.launch.threads
    return CoreRequest(
        threads=None if threads == "auto" else threads,
        comm_cores=config.launch.comm_cores,
        loader_cores=config.data.reserve_cores,
    )
