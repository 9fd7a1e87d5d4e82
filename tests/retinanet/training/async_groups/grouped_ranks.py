"""Four ranks in two groups, as JSON lines; `test_grouped_ranks.py` runs this under mpirun."""

import json
import os
import sys
import time
from functools import partial
from typing import Any

from launch.pinning import enter_rank_context
from launch.ranks import read_ranks
from launch.shares import CoreRequest

TIMEOUT_S = 60.0
GROUPS = 2
STEPS = 12
LATE_S = 0.3

if __name__ == "__main__":
    place = enter_rank_context(
        read_ranks(os.environ),
        request=CoreRequest(threads=1),
        allocator="system",
        backend="gloo",
        pinned=False,
        timeout_s=TIMEOUT_S,
    )
    import torch
    from torch import Tensor, nn

    from launch.process_group import ProcessGroup, joined
    from retinanet.engine.gradient_sync import GradientExchange, share_gradients
    from retinanet.engine.optimizers import make_optimizer
    from retinanet.training.async_groups.epoch import BatchQueue
    from retinanet.training.async_groups.groups import GroupUpdate, compute_group, living_group
    from retinanet.training.async_groups.weights import GroupWeights, memory_of_weights

    make = partial(make_optimizer, name="sgd", learning_rate=0.5)

    def averages(own: ProcessGroup, *, shared: bool, compress: str) -> list[float]:
        """One gradient of three steps: a rank's own, which the others' are averaged with."""
        model = nn.Linear(1, 1, bias=False)
        gradients = None
        if shared:
            gradients = share_gradients(
                own.all_gather,
                rank=own.rank,
                values=1,
                compress=compress == "bf16",
                timeout_s=TIMEOUT_S,
            )
            assert gradients is not None
        exchange = GradientExchange(
            model,
            lambda batch: {"loss": model(batch).sum()},
            compress=compress,
            shared=gradients,
            ranks=own.exchange,
        )
        found = []
        for step in range(3):
            batch = torch.full((1, 1), float(10 ** own.in_job(own.rank) * (step + 1)))
            exchange.backward(exchange(batch)["loss"])
            assert model.weight.grad is not None
            found.append(float(model.weight.grad))
            model.weight.grad = None
        return found

    def common_weights(everybody: ProcessGroup, parameters: list[nn.Parameter]) -> GroupWeights:
        memory = memory_of_weights(parameters, optimizer="sgd") if everybody.is_first else None
        where = everybody.from_first(lambda: memory.place if memory else None)
        assert where is not None
        weights = GroupWeights(where, parameters, optimizer="sgd", make=make, timeout_s=TIMEOUT_S)
        if everybody.is_first:
            weights.fill(parameters, make(nn.ParameterList(parameters)))
        everybody.barrier()
        return weights

    def update_from_queue(everybody: ProcessGroup, own: ProcessGroup) -> dict[str, Any]:
        """Each step adds a power of four to the weights, so that their sum tells who took which."""
        parameters = [nn.Parameter(torch.zeros(3, dtype=torch.float32))]
        weights = common_weights(everybody, parameters)
        update = GroupUpdate(weights, parameters, group=own, is_in_memory=True)
        assert everybody.store is not None
        number = everybody.rank // own.size
        queue = BatchQueue(
            everybody.store, stretch=1, steps=STEPS, group=number, group_size=own.size
        )
        if not own.is_first:
            time.sleep(LATE_S)  # its first must not step, with all others kept out, before this
        update.begin()
        staleness: list[int] = []
        same: list[bool] = []
        while (step := queue.take(len(staleness))) is not None:
            parameters[0].grad = torch.full((3,), float(-(4**step)))
            update(1.0)
            staleness.append(update.staleness)
            read: list[Tensor] = own.all_gather(parameters[0].detach())
            same.append(all(torch.equal(one, read[0]) for one in read))
        everybody.barrier()
        weights.copy_to(parameters)
        return {
            "taken": queue.taken,
            "staleness": staleness,
            "same in group": all(same),
            "gradients left": parameters[0].grad is not None,
            "weights": parameters[0].tolist(),
        }

    def those_left(everybody: ProcessGroup) -> dict[str, Any]:
        """Ranks 0, 1 and 3 go on; they, and no others, call it."""
        left = living_group(everybody, (0, 1, 3), comm_cpus=(), timeout_s=TIMEOUT_S)
        tensor = torch.full((2,), float(everybody.rank))
        left.average([tensor])
        return {
            "rank": left.rank,
            "all": left.all_gather(everybody.rank),
            "first": left.from_first(lambda: f"made by {everybody.rank}"),
            "rows": [one.tolist() for one in left.gather_rows([torch.arange(left.rank)])],
            "average": tensor.tolist(),
        }

    with joined(place, timeout_s=TIMEOUT_S) as group:
        torch.set_num_threads(1)
        comm_cpus = tuple(os.sched_getaffinity(0))
        mine = compute_group(group, GROUPS, comm_cpus=comm_cpus, timeout_s=TIMEOUT_S)
        said: dict[str, Any] = {
            "job rank": group.rank,
            "rank": mine.rank,
            "first of its group": mine.from_first(lambda: group.rank),
            "gathered": mine.gather(group.rank),
            "gloo": averages(mine, shared=False, compress="none"),
            "gloo, bf16": averages(mine, shared=False, compress="bf16"),
            "shared": averages(mine, shared=True, compress="none"),
            "updates": update_from_queue(group, mine),
        }
        if group.rank != 2:
            said["left"] = those_left(group)
        if group.watch is not None:
            group.watch.lost.clear()  # nobody has ended: all leave together
        sys.stdout.write(json.dumps(said) + "\n")
