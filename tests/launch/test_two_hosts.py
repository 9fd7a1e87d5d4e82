"""Ranks of one job on two hosts."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.two_hosts import ADDRESSES, TwoHosts, two_hosts

MPIRUN = Path(sys.prefix) / "bin" / "mpirun"

MEETING = """
import os, socket, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
own = (socket.gethostname(), os.stat("/proc/self/ns/net").st_ino, sys.argv[1])
hosts = world.allgather(own)
names, networks, words = (set(column) for column in zip(*hosts))
around = world.sendrecv(own[0], dest=1 - world.rank, source=1 - world.rank)
line = f"{world.rank} on {own[0]} heard {around}; {sorted(names)} {len(networks)} {words}"
sys.stdout.write(line + "\\n")  # at once: lines of two ranks do not mix
"""


@pytest.fixture(params=[True, False], ids=["names-are-127.0.1.1", "names-are-addresses"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path, names_are_loopback=request.param) as both:
        yield both


def run_on_both(hosts: TwoHosts, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "launch", "run", "--np", "2", "--hosts", "left,right"]
    process = hosts.start_on_left(
        [*command, "--mpirun", str(MPIRUN), "--", *words], environment=os.environ
    )
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def test_hosts_have_their_own_network_and_name_and_reach_each_other(hosts: TwoHosts) -> None:
    looks = ["sh", "-c", "hostname; ip -brief -4 address show dev eth0; getent hosts right"]
    process = hosts.start_on_left(looks, environment=os.environ)
    output, errors = process.communicate(timeout=10)
    name, interface, other = output.splitlines()
    assert name == "left" and ADDRESSES[0] in interface and other.startswith(ADDRESSES[1]), errors


def test_mpirun_starts_a_rank_on_each_host_and_they_hear_each_other(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    script = tmp_path / "meeting.py"
    script.write_text(MEETING)
    code, output, errors = run_on_both(hosts, str(script), "a b")
    assert code == 0, errors
    assert sorted(output.splitlines()) == [
        "0 on left heard right; ['left', 'right'] 2 {'a b'}",
        "1 on right heard left; ['left', 'right'] 2 {'a b'}",
    ]
    assert f"{MPIRUN} -bind-to none -hosts left:1,right:1 -np 2 {sys.executable}" in errors
