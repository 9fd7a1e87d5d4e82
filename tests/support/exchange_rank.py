"""A rank that averages known gradients in two levels and by gloo over all ranks, in turn.

`mpirun -np 4 python -m tests.support.exchange_rank --gradients 36000000 --rounds 5 --backend auto`:
rank 0 prints a line of JSON with seconds, errors, and whether all ranks had the same bits.
"""

import argparse
import json
import os
import sys
import time
import zlib

from common.cli import positive, run_command
from common.errors import FINISHED
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from profiling.bench.job import MARK
from profiling.bench.measured_rank import average_buckets, bucket_sizes
from tests.support.rank_programs import enter_test_rank

TIMEOUT_S = 120.0
FLAT, LEVELS = "flat", "levels"


def main() -> int:
    """Join the ranks and measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gradients", type=positive, required=True, metavar="N")
    parser.add_argument("--rounds", type=positive, required=True, metavar="N")
    parser.add_argument("--backend", required=True, metavar="NAME")
    with rank0_only_errors(read_ranks(os.environ)):
        arguments = parser.parse_args()
        place = enter_test_rank(backend=arguments.backend, timeout_s=TIMEOUT_S)
    measure(place, gradients=arguments.gradients, rounds=arguments.rounds)
    return FINISHED


def measure(place: RankContext, *, gradients: int, rounds: int) -> None:
    """Average the gradients of all ranks in each way, and print times and differences."""
    # torch is loaded only now: the environment must be settled before.
    import torch

    from launch.process_group import joined
    from retinanet.engine.host_gradients import average_over_hosts

    torch.set_num_threads(1)
    with joined(place, timeout_s=TIMEOUT_S) as group:
        weight = 1 / group.size
        sizes = bucket_sizes(gradients)
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(gradients, generator=generator)
        # Of rank 0 the noise, of rank 1 twice that, and so on: the mean is known.
        mean = noise * ((group.size + 1) / 2)
        values = torch.empty(gradients)

        averagings = {}
        for compress in (False, True):
            averaging = average_over_hosts(
                group, values=gradients, compress=compress, timeout_s=TIMEOUT_S
            )
            assert averaging is not None, "no compiler"
            averagings[compress] = averaging

        ways = {
            f"{name} {'bf16' if compress else 'float32'}": (averaging, compress)
            for compress in (False, True)
            for name, averaging in ((LEVELS, averagings[compress]), (FLAT, None))
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        errors, are_equal = {}, {}
        for round_number in range(rounds + 1):
            for name, (averaging, compress) in ways.items():
                torch.mul(noise, float(group.rank + 1), out=values)
                parts = list(values.split(sizes))
                group.barrier()
                begin = time.perf_counter()
                average_buckets(parts, averaging, weight=weight, compress=compress)
                duration = max(group.all_gather(time.perf_counter() - begin, float))
                # The first round opens connections and is not counted.
                if round_number:
                    seconds[name].append(duration)
                bits = zlib.crc32(values.view(torch.uint8).numpy().data)
                are_equal[name] = len(set(group.all_gather(bits, int))) == 1
                errors[name] = float((values - mean).norm() / mean.norm())
        if group.is_first:
            report = {
                "seconds": seconds,
                "errors": errors,
                "are_equal": are_equal,
                "way": averagings[False].way,
                "transport": group.transport.reason,
            }
            print(MARK + json.dumps(report), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
