"""The description of a run before its first step, for the console and `environment.json`."""

from collections.abc import Mapping
from typing import Any

import torch

from common.wording import counted
from data.annotations import shown_size
from launch.rendezvous import ONE_HOST
from launch.topology import format_cpu_list
from retinanet.config_types import describe_split
from retinanet.training.components import RunComponents


def describe_run(run: RunComponents, *, step: int, ways: Mapping[str, object]) -> dict[str, Any]:
    """Return rows for the console about a run that starts after `step` steps.

    `ways`: rows about how the ranks train, see `SynchronousEpochs.rows`.
    """
    training, size = run.config.training, run.config.data.image_size
    train, validation, _ = run.data
    without_boxes = len(train.annotations) - len(train)
    skipped = f" ({without_boxes} without boxes are skipped)" if without_boxes else ""
    ranks = f"{run.averaging.size} ranks × " if run.averaging.size > 1 else ""
    threads = torch.get_num_threads()
    trained = sum(value.numel() for value in run.model.parameters() if value.requires_grad)
    rows: dict[str, Any] = {
        "run": run.folder.path,
        "data": f"{len(train)} training images{skipped}, {len(validation)} for validation, "
        f"{run.description.num_classes} class indices",
        "images": run.loading.describe(),
        **run.rare_classes,
        "model": f"{run.description.architecture.title}, {trained / 1e6:.1f} million trainable "
        f"parameters, {run.description.norm} norms",
        "steps": f"{run.plan.total_steps} of {ranks}{training.batch_size} × "
        f"{training.gradient_accumulation} images, {shown_size(size)} pixels, "
        f"{run.description.precision}, {counted(threads, 'thread')}, "
        f"engine {run.engine}",
    }
    if run.config.distributed.batch_split != "even" and run.averaging.size > 1:
        rows["batches"] = describe_split(run.batches.images, run.batches.speeds)
        if run.batches.is_recorded:
            rows["batches"] += ", by the speed measured at an earlier start"
    rows |= {**describe_ranks(run), **ways, **(run.start.rows() if run.start else {})}
    if step:
        rows["resumed"] = f"after step {step}"
    return rows


def describe_ranks(run: RunComponents) -> dict[str, object]:
    """Return rows about the number of ranks, gradient averaging, and the cores of rank 0."""
    pinned = run.place.pinned
    nodes = f"node{'s' if len(pinned.share.nodes) > 1 else ''}"
    cores = (
        f"CPUs {format_cpu_list(pinned.share.cpus)}, memory of {nodes} "
        f"{format_cpu_list(pinned.share.nodes)}"
    )
    if not pinned.enabled:
        cores = "not bound (launch.pin=false)"
    if len(run.group.hosts) == 1:
        return {"cores": cores}
    hosts = list(dict.fromkeys(run.group.hosts))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
    by = f"gradients by {run.exchange_name}"
    if run.averaging.size == 1:
        by = "gradients not averaged"
    by += " in bf16" if run.config.distributed.compress == "bf16" else ""
    if run.config.distributed.backend == "auto" and run.averaging.size > 1:
        is_one = run.averaging.is_on_one_host
        by += f" (auto: {ONE_HOST.reason if is_one else run.group.transport.reason})"
    return {"ranks": f"{len(run.group.hosts)} on {where}, {by}", "cores": f"rank 0: {cores}"}


def ranks_as_json(run: RunComponents) -> dict[str, Any]:
    """Return the ranks for `environment.json`, with the CPUs of rank 0."""
    ranks, pinned = run.place.ranks, run.place.pinned
    return {
        "size": len(run.group.hosts),
        "hosts": list(run.group.hosts),
        "launcher": ranks.launcher,
        "exchange": run.exchange_name,
        "compute_groups": run.config.distributed.groups,
        "images_of_a_batch": list(run.batches.images),
        "measured_images_per_second": list(run.batches.speeds) or None,
        "pinned": pinned.enabled,
        "cpus_of_rank_0": list(pinned.share.cpus),
        "environment_of_rank_0": dict(pinned.environment),
    }
