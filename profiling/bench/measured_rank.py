"""A measuring rank: `python -m profiling.bench.measured_rank`, started by mpirun.

With `--all-reduce` it times all-reduces of some sizes, over the way that gradients between hosts
take: the process group's own backend. Otherwise it times a few training steps. It takes its place
as a rank of train.py does, on the same cores, and trains MLPerf's model, or with `--own-model` the
configuration's, with weights from random numbers on the configuration's data.

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
from profiling.bench.job import MARK
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import place_on_host

ALL_REDUCE_WARM_UP, ALL_REDUCES = 2, 5
"""All-reduces of each size that do not count, and that do; their median is the result."""


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
        "--all-reduce",
        type=positive,
        action="append",
        metavar="BYTES",
        help="time all-reduces of this size instead of steps; repeatable",
    )
    ranks = read_ranks(os.environ)
    # All ranks have the same command line, so all would print the same error.
    with rank0_only_errors(ranks):
        arguments = parser.parse_args()
        config = load_config(arguments.config, arguments.overrides)
        place = place_on_host(config, ranks)
    if arguments.all_reduce:
        measure_all_reduces(config, arguments.all_reduce, place=place)
    else:
        # torch is loaded only now: cores, memory policy and environment must be settled before.
        from profiling.bench.measured_steps import measure_steps

        measure_steps(config, arguments, place=place, report=report)
    return FINISHED


def measure_all_reduces(config: Config, sizes: list[int], *, place: RankContext) -> None:
    """Join the other ranks; time all-reduces of `sizes` bytes; rank 0 prints a median for each."""
    # torch is loaded only now: cores and environment must be settled before.
    import torch
    import torch.distributed as dist

    from launch.process_group import joined

    with joined(place, timeout_s=config.distributed.timeout_s) as group:
        medians = {}
        for size in sizes:
            # float32 whatever the precision of training: sizes are given in bytes.
            values = torch.zeros(max(1, size // torch.float32.itemsize))
            seconds = []
            for _ in range(ALL_REDUCE_WARM_UP + ALL_REDUCES):
                # Otherwise a rank that begins early would also time its waiting for the others.
                group.barrier()
                begin = time.perf_counter()
                dist.all_reduce(values)
                # An all-reduce is over when the slowest rank has its result.
                seconds.append(max(group.all_gather(time.perf_counter() - begin)))
            medians[size] = median(seconds[ALL_REDUCE_WARM_UP:])
        if group.is_first:
            hosts = len(set(group.hosts))
            report({"backend": group.backend, "hosts": hosts, "seconds": medians})


def report(message: object) -> None:
    """Print a line for the process that started the job."""
    # Python buffers what is written to a pipe, and the progress would be shown late.
    print(MARK + json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
