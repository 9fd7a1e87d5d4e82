"""What a run says of itself at its start: to a person, and to whoever reads its numbers later."""

from typing import TYPE_CHECKING, Any

import torch

from launch.host.cpu_lists import format_cpu_list
from retinanet.batch_split import described_split
from retinanet.compute_groups import planned_groups
from retinanet.config import TrainingConfig
from retinanet.momentum import beta1_of

if TYPE_CHECKING:
    from retinanet.training.run import Run


def described(run: "Run") -> dict[str, object]:
    """Rows for the console."""
    training, size = run.config.training, run.config.data.image_size
    trained = sum(one.numel() for one in run.model.parameters() if one.requires_grad)
    without_boxes = len(run.data.train.annotations) - len(run.data.train)
    skipped = f" ({without_boxes} without boxes are skipped)" if without_boxes else ""
    size_of_group = run.compute_group.size
    ranks = f"{size_of_group} ranks × " if size_of_group > 1 else ""
    threads = torch.get_num_threads()
    rows: dict[str, object] = {
        "run": run.folder.path,
        "data": f"{len(run.data.train)} training images{skipped}, "
        f"{len(run.data.validation)} for validation, "
        f"{run.description.num_classes} class indices",
        "images": run.loading.describe(),
        "model": f"RetinaNet-ResNeXt50, {trained / 1e6:.1f} million parameters that train, "
        f"{run.description.norm} norms",
        "steps": f"{run.plan.total_steps} of {ranks}{training.batch_size} × "
        f"{training.gradient_accumulation} images, {size}×{size} pixels, "
        f"{run.description.precision}, {threads} {'thread' if threads == 1 else 'threads'}, "
        f"engine {run.engine}",
        **described_batches(run),
        **described_ranks(run),
        **described_groups(run),
    }
    if run.step:
        rows["resumed"] = f"after step {run.step}"
    return rows


def described_batches(run: "Run") -> dict[str, object]:
    """How many images each rank has of a batch, where that was not left to be even."""
    batches = run.batches
    if run.config.distributed.batch_split == "even" or run.compute_group.size == 1:
        return {}
    words = described_split(batches.images, batches.speeds)
    if batches.is_recorded:
        words += ", as the run was split by speed before"
    return {"batches": words}


def described_ranks(run: "Run") -> dict[str, object]:
    """How many ranks there are, what exchanges their gradients, and where rank 0 runs."""
    group, place, way = run.group, run.place, way_of(run)
    share = place.pinned.share
    nodes = f"node{'s' if len(share.nodes) > 1 else ''} {format_cpu_list(share.nodes)}"
    cores = f"CPUs {format_cpu_list(share.cpus)}, memory of {nodes}"
    if not place.pinned.enabled:
        cores = "where the system puts them (launch.pin=false)"
    if group.size == 1:
        return {"cores": cores}
    hosts = list(dict.fromkeys(group.hosts))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
    by = f"gradients by {way}" if run.compute_group.size > 1 else "gradients of each by itself"
    by += " in bf16" if run.config.distributed.compress == "bf16" else ""
    if way == "gloo":
        by += "; three times as fast with ccl, which needs oneccl_bindings_for_pytorch"
    return {"ranks": f"{group.size} on {where}, {by}", "cores": f"rank 0: {cores}"}


def described_groups(run: "Run") -> dict[str, object]:
    """How many compute groups there are, their momentum, and where the weights are."""
    if run.groups is None:
        return {}
    count = run.config.distributed.groups
    words = planned_groups(count, ranks=count * run.compute_group.size)
    momentum = momentum_of_groups(run.config.training, count)
    return {"groups": f"{words}; {momentum}; weights by {run.groups.update.way}"}


def momentum_of_groups(training: TrainingConfig, groups: int) -> str:
    """What becomes of the optimizer's momentum, in words."""
    implicit = f"as 1 − 1/{groups} of momentum comes from not waiting"
    if training.optimizer == "sgd":
        return f"momentum {training.momentum:g} as told, beside the 1 − 1/{groups} of not waiting"
    beta1 = beta1_of(training.beta1, groups=groups)
    return f"beta1 {beta1:g}, {implicit if training.beta1 == 'auto' else 'as told'}"


def facts_of_ranks(run: "Run") -> dict[str, Any]:
    """How many there are, where, how they share batches and gradients; rank 0's CPUs for all."""
    return {
        "size": run.group.size,
        "hosts": list(run.group.hosts),
        "launcher": run.place.ranks.launcher,
        "exchange": way_of(run),
        "compute_groups": run.config.distributed.groups,
        "images_of_a_batch": list(run.batches.images),
        "measured_images_per_second": list(run.batches.speeds) or None,
        "pinned": run.place.pinned.enabled,
        "cpus_of_rank_0": list(run.place.pinned.share.cpus),
        "environment_of_rank_0": dict(run.place.pinned.environment),
    }


def way_of(run: "Run") -> str:
    """`shared memory`, `gloo`, `ccl`; `none` for one rank."""
    return run.exchange.way if run.exchange else "none"
