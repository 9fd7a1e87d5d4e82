"""Program of four ranks in two groups that print JSON lines; run by `test_groups.py`."""

import json
import sys
import time
from functools import partial
from typing import Any

from tests.support.rank_programs import enter_test_rank

TIMEOUT_S = 240.0
GROUPS = 2
STEPS = 12
LATE_S = 0.3

if __name__ == "__main__":
    place = enter_test_rank(allocator="system", timeout_s=TIMEOUT_S)
    import torch
    from torch import nn

    from launch.process_group import ProcessGroup, joined
    from retinanet.engine.gradient_sync import GradientExchange, MemoryPlace, share_gradients
    from retinanet.engine.optimizers import make_optimizer
    from retinanet.training.async_groups.epoch import BatchQueue
    from retinanet.training.async_groups.groups import GroupOptimizer, compute_group, living_group
    from retinanet.training.async_groups.weights import GroupWeights, memory_of_weights
    from retinanet.training.loop import optimizer_step

    make = partial(make_optimizer, name="sgd", learning_rate=0.5)

    def averages(group: ProcessGroup, *, shared: bool, compress: str) -> list[float]:
        """Return the averaged gradients of three steps; each rank has another gradient."""
        model = nn.Linear(1, 1, bias=False)
        gradients = None
        if shared:
            gradients = share_gradients(
                group.all_gather,
                rank=group.rank,
                values=1,
                compress=compress == "bf16",
                timeout_s=TIMEOUT_S,
            )
            assert gradients is not None
        exchange = GradientExchange(
            model,
            lambda batch: {"loss": model(batch).sum()},
            compress=compress,
            averaging=gradients,
            ranks=group.exchange,
        )
        averages = []
        for step in range(3):
            batch = torch.full((1, 1), float(10 ** group.in_job(group.rank) * (step + 1)))
            exchange.backward(exchange(batch)["loss"])
            assert model.weight.grad is not None
            averages.append(float(model.weight.grad))
            model.weight.grad = None
        return averages

    def shared_weights(everybody: ProcessGroup, parameters: list[nn.Parameter]) -> GroupWeights:
        memory = memory_of_weights(parameters, optimizer="sgd") if everybody.is_first else None
        memory_place = everybody.from_first(
            lambda: memory.place if memory else None, MemoryPlace | None
        )
        assert memory_place is not None
        weights = GroupWeights(
            memory_place, parameters, optimizer="sgd", make=make, timeout_s=TIMEOUT_S
        )
        if everybody.is_first:
            weights.fill(parameters, make(nn.ParameterList(parameters)))
        everybody.barrier()
        return weights

    def update_from_queue(everybody: ProcessGroup, members: ProcessGroup) -> dict[str, Any]:
        """Take steps that add powers of four to the weights, so that their sum shows which ones."""
        parameters = [nn.Parameter(torch.zeros(3, dtype=torch.float32))]
        weights = shared_weights(everybody, parameters)
        optimizer = GroupOptimizer(
            weights, make(nn.ParameterList(parameters)), group=members, is_in_memory=True
        )
        assert everybody.sealed is not None
        number = everybody.rank // members.size
        queue = BatchQueue(
            everybody.sealed.store, stretch=1, steps=STEPS, group=number, group_size=members.size
        )
        if not members.is_first:
            time.sleep(LATE_S)  # the group's first rank must wait for it
        optimizer.begin()
        staleness: list[int] = []
        equal: list[bool] = []
        while (step := queue.take(len(staleness))) is not None:
            parameters[0].grad = torch.full((3,), float(-(4**step)))
            optimizer_step(optimizer, 1.0)
            staleness.append(optimizer.staleness)
            read = members.all_gather(parameters[0].tolist(), list[Any])
            equal.append(all(weights == read[0] for weights in read))
        everybody.barrier()
        weights.copy_to(parameters)
        return {
            "taken": queue.taken,
            "staleness": staleness,
            "equal in group": all(equal),
            "has gradients": parameters[0].grad is not None,
            "weights": parameters[0].tolist(),
        }

    def remaining_ranks(everybody: ProcessGroup) -> dict[str, Any]:
        """Form a group of ranks 0, 1 and 3; only they call it."""
        remaining = living_group(everybody, (0, 1, 3), timeout_s=TIMEOUT_S)
        tensor = torch.full((2,), float(everybody.rank))
        remaining.average([tensor])
        return {
            "rank": remaining.rank,
            "all": remaining.all_gather(everybody.rank, int),
            "first": remaining.from_first(lambda: f"made by {everybody.rank}", str),
            "rows": [row.tolist() for row in remaining.gather_rows([torch.arange(remaining.rank)])],
            "average": tensor.tolist(),
        }

    with joined(place, timeout_s=TIMEOUT_S) as group:
        torch.set_num_threads(1)
        members = compute_group(group, GROUPS, timeout_s=TIMEOUT_S)
        results: dict[str, Any] = {
            "job rank": group.rank,
            "rank": members.rank,
            "first of its group": members.from_first(lambda: group.rank, int),
            "gathered": members.gather(group.rank, int),
            "gloo": averages(members, shared=False, compress="none"),
            "gloo, bf16": averages(members, shared=False, compress="bf16"),
            "shared": averages(members, shared=True, compress="none"),
            "updates": update_from_queue(group, members),
        }
        if group.rank != 2:
            results["remaining"] = remaining_ranks(group)
        if group.watch is not None:
            group.watch.lost.clear()  # no rank has ended: all end together
        sys.stdout.write(json.dumps(results) + "\n")
