"""What a oneDNN log says of its run, so that its problems can be run again alike."""

from typing import Any

import torch

from launch.group.process_group import ProcessGroup
from launch.host.cpu_lists import format_cpu_list
from launch.place import Place
from retinanet.batch_split import split_at_start
from retinanet.config import Config
from retinanet.engine.engines import PreparedTraining, chosen_engine
from retinanet.engine.network import FoldedForward
from retinanet.training.run_folder import command_line
from retinanet.versions import installed_versions

IPEX = "intel_extension_for_pytorch"


def facts_of_run(
    prepared: PreparedTraining, *, config: Config, place: Place, group: ProcessGroup
) -> dict[str, Any]:
    """This rank's conditions; JSON holds them all. `profiling.onednn_log.marks` says where."""
    share, engine = place.pinned.share, config.engine
    forward = prepared.forward
    own_kernels = forward.own_kernels if isinstance(forward, FoldedForward) else None
    name = chosen_engine(engine.name)
    return {
        "run": config.run.name,
        "rank": group.rank,
        "ranks": group.size,
        "local_rank": place.ranks.local_rank,
        "local_ranks": place.ranks.local_size,
        "host": group.hosts[group.rank],
        "threads": torch.get_num_threads(),
        "cpus": format_cpu_list(share.cpus),
        "memory_nodes": format_cpu_list(share.nodes),
        "pinned": place.pinned.enabled,
        "images_a_step": images_a_step(config, group),
        "image_size": config.data.image_size,
        "precision": engine.precision,
        "engine": name,
        "convolutions": engine.convolutions,
        "own_kernels": own_kernels,
        "allocator": engine.allocator,
        "torch": torch.__version__,
        "ipex": installed_versions([IPEX]).get(IPEX) if name == "ipex" else None,
        "command": command_line(),
    }


def images_a_step(config: Config, group: ProcessGroup) -> int | None:
    """Of this rank; None where only the run has measured how many."""
    split, training = config.distributed.batch_split, config.training
    if split == "speed" and group.size > 1:
        return None
    batches = split_at_start(split, batch_size=training.batch_size, ranks=group.size)
    return batches[group.rank] * training.gradient_accumulation
