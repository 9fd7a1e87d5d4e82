"""Gradients that two ranks average, beside those of one process with all their images; broken ones.

`test_gradient_exchange.py` runs this under mpirun; rank 0 writes what it found as JSON.
"""

import json
import os
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

from launch.pinning import RankContext, enter_rank_context
from launch.ranks import read_ranks
from launch.shares import CoreRequest

IMAGES = 8
SIZE = 96


def main(place: RankContext, results: Path) -> None:
    import torch
    from torch import Tensor
    from torch.optim import SGD

    from data.dataset import Batch
    from launch.process_group import ProcessGroup, joined
    from retinanet.engine.engines import PreparedTraining, prepare_training
    from retinanet.engine.gradient_sync import GradientExchange, SharedGradients, share_gradients
    from retinanet.engine.optimizers import gradient_norm
    from retinanet.model.retinanet import RetinaNet
    from retinanet.training.loop import accumulate_gradients, batch_losses

    def make_batch(first: int, last: int) -> Batch:
        """Images of noise, a box each; the one numbered 1 has none."""
        generator = torch.Generator().manual_seed(1)
        shape = (IMAGES, 3, SIZE, SIZE)
        pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        corners = torch.rand((IMAGES, 1, 2), generator=generator) * 20
        targets = [
            {"boxes": torch.cat([corner, corner + 40], dim=1), "labels": torch.tensor([2])}
            for corner in corners
        ]
        targets[1] = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
        count = last - first
        return Batch(
            pixels[first:last].contiguous(memory_format=torch.channels_last),
            targets[first:last],
            list(range(first, last)),
            [(SIZE, SIZE)] * count,
        )

    def prepare(precision: str) -> PreparedTraining:
        torch.manual_seed(0)
        model = RetinaNet(num_classes=3, norm="frozen", trainable_layers=3)
        for name, tensor in model.state_dict().items():
            if name.endswith("bn3.weight"):
                tensor.fill_(0.1)  # keeps random blocks from doubling what goes through them
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = SGD(trained, lr=1)
        prepared = prepare_training(model, optimizer, engine="torch", precision=precision)
        prepared.model.train()
        return prepared

    def gradients(
        prepared: PreparedTraining, batches: list[Batch], exchange: GradientExchange | None
    ) -> dict[str, Tensor]:
        accumulate_gradients(prepared, batches, exchange=exchange)
        found = {
            name: value.grad.clone()
            for name, value in prepared.model.named_parameters()
            if value.grad is not None
        }
        prepared.optimizer.zero_grad(set_to_none=True)
        return found

    @cache
    def prepared_alone(precision: str) -> PreparedTraining:
        return prepare(precision)

    @cache
    def gradients_alone(precision: str, first: int, last: int) -> dict[str, Tensor]:
        """Those of these images in one process: several comparisons ask for the same."""
        return gradients(prepared_alone(precision), [make_batch(first, last)], None)

    def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        """The largest of all parameters: the difference's norm over the gradient's."""
        assert found.keys() == expected.keys() and found
        return max(
            float((found[name] - expected[name]).norm() / expected[name].norm())
            for name in expected
        )

    def norm_where_one_breaks(
        prepared: PreparedTraining, exchange: GradientExchange, batches: int, *, rank: int
    ) -> str:
        """Rank 1's first batch has an infinite loss, whose gradients are finite."""
        bias = prepared.model.get_parameter("head.regression_head.bbox_reg.bias")
        if rank == 1:
            bias.data.fill_(3e38)
        own = [make_batch(2, 3), make_batch(3, 4)][:batches]
        terms = accumulate_gradients(prepared, own, exchange=exchange)
        assert [one.is_finite for one in terms] == [rank == 0] * batches
        return str(gradient_norm(prepared.model.parameters()))

    def compare(
        group: ProcessGroup,
        *,
        precision: str,
        compress: str,
        batches: int,
        shared: bool = False,
        split: tuple[int, int] = (1, 1),
    ) -> dict[str, list[Any]]:
        """Differences of three steps, and each rank's norm in a fourth, where one rank breaks.

        The steps are the first, the one after torch has sorted its buckets anew, and another.
        `split`: images of each rank in a batch.
        """
        together = sum(split)
        prepared = prepare(precision)
        exchange = GradientExchange(
            prepared.model,
            partial(batch_losses, prepared),
            compress=compress,
            shared=share(group, prepared.model, compress=compress) if shared else None,
            weight=split[group.rank] / together,
        )
        differences = []
        for step in range(3):
            first = step if batches == 1 else 0
            begins = [
                first + number * together + sum(split[: group.rank]) for number in range(batches)
            ]
            own = [make_batch(begin, begin + split[group.rank]) for begin in begins]
            averaged = gradients(prepared, own, exchange)
            expected = gradients_alone(precision, first, first + together * batches)
            differences.append(difference(averaged, expected))
        norm = norm_where_one_breaks(prepared, exchange, batches, rank=group.rank)
        return {"differences": differences, "norms": group.all_gather(norm)}

    def share(group: ProcessGroup, model: RetinaNet, *, compress: str) -> SharedGradients:
        made = share_gradients(
            group.all_gather,
            rank=group.rank,
            values=sum(one.numel() for one in model.parameters() if one.requires_grad),
            compress=compress == "bf16",
            timeout_s=60,
        )
        assert made is not None
        return made

    with joined(place, timeout_s=60) as group:
        found = {
            "plain": compare(group, precision="float32", compress="none", batches=1),
            "shared": compare(group, precision="float32", compress="none", batches=1, shared=True),
            "shared, accumulated": compare(
                group, precision="float32", compress="none", batches=2, shared=True
            ),
            "shared, compressed": compare(
                group, precision="float32", compress="bf16", batches=1, shared=True
            ),
            "accumulated": compare(group, precision="float32", compress="none", batches=2),
            "compressed": compare(group, precision="float32", compress="bf16", batches=1),
            "bf16": compare(group, precision="bf16", compress="none", batches=1),
            "uneven": compare(group, precision="float32", compress="none", batches=1, split=(3, 1)),
            "uneven, shared, accumulated": compare(
                group, precision="float32", compress="none", batches=2, shared=True, split=(3, 1)
            ),
        }
        if group.is_first:
            results.write_text(json.dumps(found))


if __name__ == "__main__":
    here = enter_rank_context(
        read_ranks(os.environ),
        request=CoreRequest(threads=1),
        allocator="tuned",
        backend="gloo",
        pinned=True,
        timeout_s=60,
    )
    main(here, Path(sys.argv[1]))
