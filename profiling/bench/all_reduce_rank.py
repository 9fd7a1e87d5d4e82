"""A rank that times all-reduces: `python -m profiling.bench.all_reduce_rank`, under mpirun.

They go the way that gradients between hosts take, by the process group's own backend. Rank 0 prints
a line of JSON with the median of each size; see `profiling.bench.job`.
"""

import argparse
import json
import os
import sys
import time
from statistics import median

from common.cli import positive, run_command
from common.errors import FINISHED
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from profiling.bench.job import MARK
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.placement import place_on_host

WARM_UP = 2


def main() -> int:
    """Take a place among the ranks, measure; returns the exit code."""
    ranks = read_ranks(os.environ)
    with rank0_only_errors(ranks):
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--size", type=positive, action="append", required=True, metavar="N")
        parser.add_argument("--rounds", type=positive, default=5, metavar="N")
        arguments = parser.parse_args()
        config = load_config("demo.yaml", [])
        place = place_on_host(config, ranks)
    return measure_here(config, place=place, sizes=arguments.size, rounds=arguments.rounds)


def measure_here(config: Config, *, place: RankContext, sizes: list[int], rounds: int) -> int:
    """Join the other ranks, measure with them; rank 0 tells.

    Args:
        config: How long to wait for the others.
        place: Of this rank.
        sizes: Of the all-reduces. [bytes]
        rounds: All-reduces of each size that count.
    """
    # torch is loaded only now: cores and environment must be settled before.
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from launch.process_group import joined  # noqa: PLC0415

    with joined(place, timeout_s=config.distributed.timeout_s) as group:
        found = {}
        for size in sizes:
            values = torch.zeros(max(1, size // torch.float32.itemsize))
            seconds = []
            for _ in range(WARM_UP + rounds):
                group.barrier()
                begin = time.perf_counter()
                dist.all_reduce(values)
                seconds.append(max(group.all_gather(time.perf_counter() - begin)))
            found[size] = median(seconds[WARM_UP:])
        if group.is_first:
            message = {"backend": group.backend, "hosts": len(set(group.hosts)), "seconds": found}
            print(MARK + json.dumps(message), flush=True)
    return FINISHED


if __name__ == "__main__":
    sys.exit(run_command(main))
