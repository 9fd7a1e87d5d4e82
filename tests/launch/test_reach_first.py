"""Real ranks that do not find each other: who says so, how soon, and with which status."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.launch.ranks import REPOSITORY

PROGRAM = str(Path(__file__).with_name("group_program.py"))
LIMIT_S = 12
"""Notes come after a quarter of it."""

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "no-such-host.invalid,other.invalid",
    "SLURM_NTASKS": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def start(variables: dict[str, str], *, limit_s: int = LIMIT_S) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, "talk", str(limit_s)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rank_variables(rank: int, *, size: int, port: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "RANK": str(rank),
    }


def test_a_refused_connection_is_noted_with_address_and_port_and_named_at_the_end() -> None:
    port = free_port()
    process = start(rank_variables(1, size=2, port=port), limit_s=8)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    *notes, last = errors.splitlines()
    assert len(notes) == 2 and all(note.startswith("note: rank 1 on ") for note in notes)
    assert last.startswith("error: rank 1 on ") and "firewall" in last and "refused" in last
    assert all("127.0.0.1" in line and str(port) in line for line in (*notes, last))


def test_rank_0_names_the_ranks_that_did_not_come() -> None:
    port = free_port()
    first, second = (start(rank_variables(rank, size=5, port=port)) for rank in (0, 1))
    _, errors = first.communicate(timeout=90)
    note, last = errors.splitlines()
    assert first.returncode == 1
    assert note.startswith("note: rank 0 on ") and "-4 of 5" in note
    assert last.startswith("error: rank 0 on ") and "WORLD_SIZE" in last and "2-4" in last
    _, errors = second.communicate(timeout=30)
    assert second.returncode in (1, 2)
    [line] = errors.splitlines()
    assert "error: " in line and "rank 0" in line


def test_a_rank_that_comes_before_rank_0_waits_for_it() -> None:
    port = free_port()
    early = start(rank_variables(1, size=3, port=port), limit_s=60)
    time.sleep(2)
    others = [start(rank_variables(rank, size=3, port=port), limit_s=60) for rank in (0, 2)]
    for process in (early, *others):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors


def test_an_unknown_first_host_of_slurm_is_an_error_in_seconds() -> None:
    begin = time.monotonic()
    process = start(SLURM, limit_s=300)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begin < 40
    assert process.returncode == 2
    [line] = errors.splitlines()
    assert line.startswith("error: ") and "no-such-host.invalid" in line and "MASTER_ADDR" in line


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(rank_variables(0, size=2, port=port))
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    [line] = errors.splitlines()
    assert line.startswith("error: MASTER_PORT: ") and str(port) in line
