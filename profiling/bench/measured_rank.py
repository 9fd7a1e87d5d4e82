"""A measuring rank: `python -m profiling.bench.measured_rank`, started by mpirun.

With `--exchange` it times averages of some numbers of gradients, all at once, by the way that those
of train.py take for the same configuration. Otherwise it times a few training steps. It takes its
place as a rank of train.py does, on the same cores, and trains MLPerf's model, or with
`--own-model` the configuration's, with weights from random numbers on the configuration's data.

Rank 0 prints lines of JSON for `profiling.bench.job`: one after every step, and one with what all
ranks measured at the end.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

from common.cli import add_overrides, positive, run_command
from common.errors import FINISHED
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from profiling.bench.exchange_rank import average_buckets, bucket_sizes
from profiling.bench.job import MARK
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import place_on_host

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


def measure_exchanges(config: Config, sizes: list[int], *, place: RankContext) -> None:
    """Join the other ranks; time exchanges of gradients; rank 0 prints a median for each size."""
    # torch is loaded only now: cores and environment must be settled before.
    import torch

    from launch.process_group import joined
    from retinanet.training.averaging import choose_averaging

    settings = config.distributed
    with joined(place, timeout_s=settings.timeout_s) as group:
        averaging = choose_averaging(
            group,
            values=max(sizes),
            backend=settings.backend,
            compress=settings.compress,
            timeout_s=settings.timeout_s,
        )
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
