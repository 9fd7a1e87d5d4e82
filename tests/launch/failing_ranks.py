"""Some ranks fail before torch is loaded: failing_ranks.py MOMENT RANK[,RANK…]

MOMENT: `arguments`, `before` the rendezvous, or `after` it. The ranks fail one after the other.
"""

import argparse
import os
import sys
import time

from common.cli import run_command
from common.errors import InputError
from launch.ranks import read_ranks
from launch.rendezvous import make_rendezvous, rank0_only_errors, settle_transport


def main() -> int:
    ranks = read_ranks(os.environ)
    moment, failing = sys.argv[1], map(int, sys.argv[2].split(","))

    def fail_at(now: str) -> None:
        if now == moment and ranks.rank in failing:
            time.sleep(0.2 * ranks.rank)
            if now == "arguments":
                argparse.ArgumentParser().parse_args(["--nonsense"])
            raise InputError("a.json: field: wrong")

    with rank0_only_errors(ranks):
        fail_at("arguments")
        fail_at("before")
        rendezvous = make_rendezvous(ranks, os.environ)
        fail_at("after")
        settle_transport(ranks, rendezvous, "auto")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
