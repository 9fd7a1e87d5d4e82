"""A measuring rank: `python -m profiling.bench.measured_rank`, started by mpirun.

With `--exchange` it times averages of some numbers of gradients, all at once, by the way that those
of a training take for the same configuration. Otherwise it times a few training steps. It takes its
place as a rank of a training does, on the same cores, and trains MLPerf's model, or with
`--own-model` the configuration's, with weights from random numbers on the configuration's data.

Rank 0 prints lines of JSON for `profiling.bench.job`: one after every step, and one with what all
ranks measured at the end.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from common.cli import positive, run_command
from common.errors import FINISHED
from common.options import add_overrides
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from profiling.bench.job import MARK
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import place_on_host

if TYPE_CHECKING:
    from torch import Tensor

    from retinanet.engine.gradient_sync import Averaging

FIRST_BUCKET, BUCKET = 1 << 18, 25 << 18
"""Gradients of torch's first bucket (1 MiB) and of the others (25 MiB)."""
EXCHANGE_WARM_UP, EXCHANGES = 2, 5
"""Exchanges of each size that do not count, and that do; their median is the result."""


def main() -> int:
    """Join the ranks and measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="demo.yaml", metavar="NAME")
    add_overrides(parser)
    parser.add_argument("--warm-up", type=positive, default=3, metavar="N")
    parser.add_argument("--steps", type=positive, default=5, metavar="N")
    parser.add_argument(
        "--alternate",
        action="store_true",
        help="after each measured step, run one without gradient exchange",
    )
    parser.add_argument(
        "--own-model",
        action="store_true",
        help="train the model of the configuration, not MLPerf's",
    )
    parser.add_argument("--scenes", type=Path, metavar="FOLDER", help="folder for synthetic data")
    parser.add_argument(
        "--exchange",
        type=positive,
        action="append",
        metavar="N",
        help="time exchanges of so many gradients instead of steps; repeatable",
    )
    ranks = read_ranks(os.environ)
    # All ranks have the same command line, so all would print the same error.
    with rank0_only_errors(ranks):
        arguments = parser.parse_args()
        config = load_config(arguments.config, arguments.overrides)
        place = place_on_host(config, ranks)
    if arguments.exchange:
        measure_exchanges(config, arguments.exchange, place=place)
    else:
        # torch is loaded only now: cores, memory policy and environment must be settled before.
        from profiling.bench.measured_steps import measure_steps

        measure_steps(config, arguments, place=place, report=report)
    return FINISHED


def bucket_sizes(gradients: int) -> list[int]:
    """Return the sizes of DistributedDataParallel's buckets, as if parameters could be divided."""
    sizes = [min(FIRST_BUCKET, gradients)]
    while (left := gradients - sum(sizes)) > 0:
        sizes.append(min(BUCKET, left))
    return sizes


def average_buckets(
    buckets: "Sequence[Tensor]", averaging: "Averaging | None", *, weight: float, compress: bool
) -> None:
    """Average float32 gradients over all ranks, all buckets at once; None: by torch's group."""
    import torch
    import torch.distributed as dist

    if averaging is not None:
        last = len(buckets) - 1
        futures = [
            averaging.average(bucket, weight=weight, index=index, is_last=index == last)
            for index, bucket in enumerate(buckets)
        ]
        for future in futures:
            future.wait()
        return
    works, sent = [], []
    for bucket in buckets:
        bucket.mul_(weight)
        sent.append(bucket.to(torch.bfloat16) if compress else bucket)
        works.append(dist.all_reduce(sent[-1], async_op=True))
    for bucket, averaged, work in zip(buckets, sent, works, strict=True):
        assert work is not None
        work.wait()
        if compress:
            bucket.copy_(averaged)


def measure_exchanges(config: Config, sizes: list[int], *, place: RankContext) -> None:
    """Join the other ranks; time exchanges of gradients; rank 0 prints a median for each size."""
    # torch is loaded only now: cores and environment must be settled before.
    import torch

    from launch.process_group import joined
    from retinanet.training.averaging import choose_averaging

    settings = config.distributed
    with joined(place, timeout_s=settings.timeout_s) as group:
        averaging = choose_averaging(settings, group, values=max(sizes))
        medians = {}
        for size in sizes:
            buckets = torch.zeros(size).split(bucket_sizes(size))
            seconds = []
            for _ in range(EXCHANGE_WARM_UP + EXCHANGES):
                # Otherwise a rank that begins early would also time its waiting for the others.
                group.barrier()
                begin = time.perf_counter()
                average_buckets(
                    buckets,
                    averaging,
                    weight=1 / group.size,
                    compress=settings.compress == "bf16",
                )
                # An exchange is over when the slowest rank has its result.
                seconds.append(max(group.all_gather(time.perf_counter() - begin, float)))
            medians[size] = median(seconds[EXCHANGE_WARM_UP:])
        if group.is_first:
            way = averaging.way if averaging else f"{group.backend} over all ranks"
            reason = group.transport.reason
            hosts = len(set(group.hosts))
            report({"way": way, "reason": reason, "hosts": hosts, "seconds": medians})


def report(message: object) -> None:
    """Print a line for the process that started the job."""
    # Python buffers what is written to a pipe, and the progress would be shown late.
    print(MARK + json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
