"""Compares gradients that two ranks average with those of one process with all their images.

`test_gradient_sync.py` runs this under mpirun; rank 0 writes the differences as JSON.
"""

import json
import sys
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

from launch.pinning import RankContext
from tests.support.rank_programs import enter_test_rank

SIZE = 64


def main(context: RankContext, results: Path, cases: list[str]) -> None:
    import torch
    from torch import Tensor

    from data.dataset import Batch
    from launch.process_group import ProcessGroup, joined
    from retinanet.engine import kernels
    from retinanet.engine.engines import PreparedTraining
    from retinanet.engine.gradient_sync import GradientExchange, SharedGradients, share_gradients
    from retinanet.engine.optimizers import gradient_norm
    from retinanet.model.retinanet import RetinaNet
    from retinanet.training.loop import accumulate_gradients, batch_losses
    from tests.retinanet.training.tiny_steps import concatenated, make_model, prepared
    from tests.retinanet.training.tiny_steps import make_batch as noise_batch

    # A batch of all images may have too many pixels for kernels of few, which round otherwise.
    kernels.MOST_PIXELS = 0

    def make_batch(first: int, last: int) -> Batch:
        """Return images of noise with a box each; image 1 has none."""
        batches = [noise_batch(seed=number, size=SIZE) for number in range(first, last)]
        if first <= 1 < last:
            no_labels = torch.zeros(0, dtype=torch.int64)
            batches[1 - first].targets[0] = {"boxes": torch.zeros(0, 4), "labels": no_labels}
        return concatenated(*batches)

    new_model = make_model(norm="frozen")

    def prepare(precision: str) -> PreparedTraining:
        training = prepared(deepcopy(new_model), precision=precision)
        training.model.train()
        return training

    def gradients(
        training: PreparedTraining, batches: list[Batch], exchange: GradientExchange | None
    ) -> dict[str, Tensor]:
        accumulate_gradients(training, batches, exchange=exchange)
        copies = {
            name: value.grad.clone()
            for name, value in training.model.named_parameters()
            if value.grad is not None
        }
        training.optimizer.zero_grad(set_to_none=True)
        return copies

    @cache
    def prepared_alone(precision: str) -> PreparedTraining:
        return prepare(precision)

    @cache
    def gradients_alone(precision: str, first: int, last: int) -> dict[str, Tensor]:
        """Return the gradients of these images in one process."""
        return gradients(prepared_alone(precision), [make_batch(first, last)], None)

    def difference(averaged: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        """Return the largest norm of a difference, relative to that of its gradient.

        On some processors a value at the kink of a ReLU is on its other side in a batch of another
        size, in one process too: four parameters then differ by 2e-3. So the five largest count
        only from 0.01 on; gradients with a wrong weight differ by a quarter and more.
        """
        assert averaged.keys() == expected.keys() and averaged
        *others, a, b, c, d, e = sorted(
            float((averaged[name] - expected[name]).norm() / expected[name].norm())
            for name in expected
        )
        return max([others[-1], *(value for value in (a, b, c, d, e) if value >= 0.01)])

    def norm_after_broken_batch(
        training: PreparedTraining, exchange: GradientExchange, batches: int, *, rank: int
    ) -> str:
        """Return a rank's gradient norm after an infinite loss on rank 1 with finite gradients."""
        bias = training.model.get_parameter("head.regression_head.bbox_reg.bias")
        if rank == 1:
            bias.data.fill_(3e38)
        rank_batches = [make_batch(2, 3), make_batch(3, 4)][:batches]
        terms = accumulate_gradients(training, rank_batches, exchange=exchange)
        assert [term.is_finite for term in terms] == [rank == 0] * batches
        return str(gradient_norm(training.model.parameters()))

    def compare(group: ProcessGroup, case: str) -> dict[str, list[Any]]:
        """Return differences of three steps, and each rank's norm after a broken batch.

        The steps are the first, the one after torch has sorted its buckets anew, and another.
        `case` has words: "shared" memory, "compressed", "accumulated", "uneven", "bf16".
        """
        precision = "bf16" if "bf16" in case else "float32"
        compress = "bf16" if "compressed" in case else "none"
        batches = 2 if "accumulated" in case else 1
        split = (3, 1) if "uneven" in case else (1, 1)  # images of each rank in a batch
        together = sum(split)
        training = prepare(precision)
        exchange = GradientExchange(
            training.model,
            partial(batch_losses, training),
            compress=compress,
            averaging=share(group, training.model, compress=compress) if "shared" in case else None,
            weight=split[group.rank] / together,
        )
        differences = []
        for step in range(3):
            first = step if batches == 1 else 0
            begins = [
                first + number * together + sum(split[: group.rank]) for number in range(batches)
            ]
            rank_batches = [make_batch(begin, begin + split[group.rank]) for begin in begins]
            averaged = gradients(training, rank_batches, exchange)
            expected = gradients_alone(precision, first, first + together * batches)
            differences.append(difference(averaged, expected))
        norm = norm_after_broken_batch(training, exchange, batches, rank=group.rank)
        return {"differences": differences, "norms": group.all_gather(norm, str)}

    def share(group: ProcessGroup, model: RetinaNet, *, compress: str) -> SharedGradients:
        shared = share_gradients(
            group.all_gather,
            rank=group.rank,
            values=sum(p.numel() for p in model.parameters() if p.requires_grad),
            compress=compress == "bf16",
            timeout_s=60,
        )
        assert shared is not None
        return shared

    with joined(context, timeout_s=60) as group:
        comparison = {case: compare(group, case) for case in cases}
        if group.is_first:
            results.write_text(json.dumps(comparison))


if __name__ == "__main__":
    main(enter_test_rank(pinned=True), Path(sys.argv[1]), sys.argv[2:])
