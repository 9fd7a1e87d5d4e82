"""The ranks of `test_process_group.py`: they connect, and one of them may fail.

group_program.py CASE TIMEOUT_S; a silent rank is lost after `SILENCE_S`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common.cli import run_command
from common.errors import InputError, NonFiniteLossError
from retinanet.training.signals import hold_signal
from tests.support.rank_programs import enter_test_rank

LONG = 100.0
"""Longer than any test. [seconds]"""
SILENCE_S = 3.0


def stop_for(seconds: float) -> None:
    """Suspend this process to simulate a slow rank."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def main() -> int:
    case, timeout_s = sys.argv[1], float(sys.argv[2])
    place = enter_test_rank(backend="auto", pinned="PIN" in os.environ, timeout_s=timeout_s)
    if case == "late" and place.ranks.rank == 1:
        time.sleep(LONG)
    from launch import process_group
    from launch.process_group import ProcessGroup, joined

    process_group.SILENCE_SHARE = SILENCE_S / timeout_s
    if "bug" in case:  # the others are at work: no other cause is on its way
        process_group.ANSWER_S = 0.5

    def exchange(group: ProcessGroup) -> int:
        group.all_gather(0, int)
        return 0

    def only_on(rank: int, act: Callable[[], object], group: ProcessGroup) -> int:
        if group.rank == rank:
            time.sleep(0.5 if rank else 0.8)  # the others are in their exchange, or at work
            act()
        if "busy" in case:
            time.sleep(LONG)
        return exchange(group)

    def exchange_all(group: ProcessGroup) -> int:
        import torch

        if group.rank == 1:
            stop_for(1.0)
        tensor = torch.full((2,), float(group.rank))
        group.average([tensor])
        copied = torch.full((2,), float(group.rank))
        group.broadcast([copied])
        rows = (1, 2, 0)[group.rank]
        halves, numbers = torch.full((rows, 2), group.rank + 0.5), torch.arange(rows)
        results = {
            "all_gather": group.all_gather(group.rank * 10, int),
            "gather": group.gather(group.rank * 10, int),
            "gather_rows": [column.tolist() for column in group.gather_rows([halves, numbers])],
            "from_first": group.from_first(lambda: f"made by {group.rank}", str),
            "average": tensor.tolist(),
            "broadcast": copied.tolist(),
        }
        sys.stdout.write(f"rank {group.rank}: {results}\n")  # one write: lines do not mix
        return 75

    def killed_in_mpi(group: ProcessGroup) -> int:
        from mpi4py import MPI

        for turn in range(10**9):
            MPI.COMM_WORLD.allreduce(turn)
            if turn == 100 and group.rank == int(case[-1]):
                os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def in_run_folder(group: ProcessGroup) -> int:
        from retinanet.training.run_folder import claim_run_folder

        path = Path(os.environ["RUN_FOLDER"])
        with claim_run_folder(path, resume=False, overwrite=False, group=group):
            return only_on(1, fail, group)

    def fail() -> None:
        kinds = {"input": InputError("a.json: field: wrong"), "bug": LookupError("a bug")}
        kinds["not finite"] = NonFiniteLossError("loss nan")
        raise next(error for kind, error in kinds.items() if kind in case)

    def sends(number: signal.Signals) -> Callable[[], object]:
        return lambda: os.kill(os.getpid(), number)

    cases: dict[str, Callable[[ProcessGroup], int]] = {
        "exchange": exchange_all,
        "input": lambda group: only_on(1, fail, group),
        "input of all": lambda group: only_on(group.rank, fail, group),
        "input, in a run folder": in_run_folder,
        "not finite": lambda group: only_on(1, fail, group),
        "bug": lambda group: only_on(1, fail, group),
        "bug of the first": lambda group: only_on(0, fail, group),
        "killed": lambda group: only_on(1, sends(signal.SIGKILL), group),
        "busy, killed": lambda group: only_on(1, sends(signal.SIGKILL), group),
        "busy, first killed": lambda group: only_on(0, sends(signal.SIGKILL), group),
        "busy, frozen": lambda group: only_on(1, sends(signal.SIGSTOP), group),
        "busy, first frozen": lambda group: only_on(0, sends(signal.SIGSTOP), group),
        "stuck": lambda group: only_on(1, lambda: time.sleep(LONG), group),
    }
    if case.startswith("killed in an exchange of mpi"):
        cases[case] = killed_in_mpi
    hold_signal()  # as train.py does
    with joined(place, timeout_s=timeout_s) as group:
        status = cases.get(case, exchange)(group)
    # Python's own handlers end before the process: then mpirun's SIGUSR1 would kill this rank.
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    return status


if __name__ == "__main__":
    sys.exit(run_command(main))
