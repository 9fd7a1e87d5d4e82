"""A firewall between hosts before a job starts, and none: two hosts under the real mpirun."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.run import address_of
from tests.launch.processes_left import processes_with
from tests.launch.ranks import MPIRUN, ended
from tests.launch.two_hosts import TwoHosts, two_hosts

RELAY = """
import signal, sys
from launch import run
from launch.run import run_with_graceful_stop
run.NOTICE_S, run.LIMIT_S = 2.0, 5.0
hosts = ("left", "right")
sys.exit(
    run_with_graceful_stop(
        sys.argv[1:], stop_signal=signal.SIGTERM, patience_s=20, hosts=hosts
    )
)
"""
SLEEP = "import time; time.sleep(9)"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path, names_are_loopback=True) as both:
        yield both


def command(mark: str) -> list[str]:
    """Ranks that outlast the limit; `mark` tells their processes from others."""
    flags = ["-bind-to", "none", "-hosts", "left:1,right:1", "-np", "2"]
    return [sys.executable, "-c", RELAY, str(MPIRUN), *flags, sys.executable, "-c", SLEEP, mark]


def test_a_firewall_before_the_start_is_noted_and_ends_the_job(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    hosts.drop_everything()
    begin = time.monotonic()
    job = ended(hosts.start_on_left(command(str(tmp_path)), environment=os.environ), timeout=60)
    assert time.monotonic() - begin < 40
    assert job.code == 1
    note, error = job.errors.splitlines()
    assert note.startswith("note: host right has not started")
    assert error.startswith("error: --hosts: host right has not started")
    assert "firewall" in note and "firewall" in error
    for process in processes_with(str(tmp_path)):  # the other host's helper waits for its answer
        os.kill(process, signal.SIGKILL)


def test_hosts_that_start_are_not_noted_and_live_longer_than_the_limit(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    job = ended(hosts.start_on_left(command(str(tmp_path)), environment=os.environ), timeout=60)
    assert (job.code, job.errors) == (0, "")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100000A", "10.0.0.1"),
        ("0000000000000000FFFF00000100000A", "10.0.0.1"),
        ("B80D0120000000000000000001000000", "2001:db8::1"),
    ],
)
def test_addresses_are_read_as_the_kernel_writes_them(text: str, address: str) -> None:
    assert address_of(text) == address
