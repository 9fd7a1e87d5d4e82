"""Two ranks together, with JSON lines of both; `test_distributed.py` runs this under mpirun."""

import json
import os
import sys
import time
from collections.abc import Iterator

from launch.pinning import enter_rank_context
from launch.ranks import read_ranks
from launch.shares import CoreRequest

if __name__ == "__main__":
    place = enter_rank_context(
        read_ranks(os.environ),
        request=CoreRequest(threads=1),
        allocator="tuned",
        backend="gloo",
        pinned=False,
        timeout_s=60,
    )
    import torch
    from torch import nn
    from torch.optim import Adam

    from common.errors import InputError
    from data.dataset import Batch
    from launch.process_group import joined
    from retinanet.training.distributed import (
        agree_on_weights,
        agreed_batches,
        average_norms,
        in_turn,
        share_weights,
    )

    with joined(place, timeout_s=60) as group:
        own = float(group.rank + 1)
        said: dict[str, object] = {}

        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for parameter in model.parameters():
            nn.init.constant_(parameter, own)
        optimizer = Adam(model.parameters(), lr=0.0)
        if group.is_first:  # as if it had read a checkpoint
            sum(one.sum() for one in model.parameters()).backward()
            optimizer.step()
        share_weights(group, model, optimizer)
        said["weights"] = sorted({float(one) for one in model[0].weight.flatten()})
        said["optimizer steps"] = [float(one["step"]) for one in optimizer.state.values()]

        said["equal"] = agree_on_weights(group, model)
        if not group.is_first:
            model[0].weight.data[3, 1, 2, 2] += 2**-20
        said["a bit apart"] = agree_on_weights(group, model)
        said["together again"] = agree_on_weights(group, model)

        model[1].running_mean.fill_(own)
        average_norms(group, model)
        said["mean"] = model[1].running_mean.tolist()

        def make() -> tuple[float, float]:
            begin = time.monotonic()
            time.sleep(0.5)
            return begin, time.monotonic()

        made = in_turn(group, make)
        returned = time.monotonic()
        (_, first_end), (second_begin, second_end) = group.all_gather(made)
        said["first before second"] = first_end <= second_begin
        said["returned after both"] = returned >= second_end

        def batches() -> Iterator[Batch]:
            yield Batch(torch.zeros(0), [], [1], [])
            if group.rank == 1:
                raise InputError("second.jpg: damaged")
            yield Batch(torch.zeros(0), [], [2], [])

        ids = []
        try:
            for batch in agreed_batches(group, batches()):
                ids += batch.image_ids
        except InputError as error:
            said["error"] = str(error)
        said["batches"] = ids
        sys.stdout.write(json.dumps({"rank": group.rank, **said}) + "\n")
