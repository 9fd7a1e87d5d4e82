"""A measuring rank: `python -m profiling.bench.measured_rank`, started by mpirun.

Its argument is a `MeasuredJob` as JSON. With `exchanges` it times averages of gradients by the way
that those of a training take for the same configuration. Otherwise it times a few training steps.
It takes its place as a rank of a training does, on the same cores, and trains with weights from
random numbers on the configuration's data.

Rank 0 prints lines of JSON for `profiling.bench.job`: one after every step, and one with what all
ranks measured at the end.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from common.cli import run_command
from common.errors import FINISHED
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from profiling.bench.job import MARK, MeasuredJob
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
    ranks = read_ranks(os.environ)
    # All ranks have the same command line, so all would print the same error.
    with rank0_only_errors(ranks):
        job = TypeAdapter(MeasuredJob).validate_json(sys.argv[1])
        config = load_config(job.config, job.overrides)
        place = place_on_host(config, ranks)
    if job.exchanges:
        measure_exchanges(config, job.exchanges, place=place)
    else:
        # torch is loaded only now: cores, memory policy and environment must be settled before.
        from profiling.bench.measured_steps import measure_steps

        measure_steps(config, job, place=place, report=report)
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


def measure_exchanges(config: Config, sizes: Sequence[int], *, place: RankContext) -> None:
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
