"""The network between named hosts, measured by real ranks on two of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import BAD_INPUT, InputError
from profiling.studies.tune.measure import NETWORK_SIZES, named_hosts
from profiling.studies.tune.measurements import Measurements, read_measurements, write_measurements
from profiling.studies.tune.model import fit_network
from tests.launch.ranks import MPIRUN, Ended, ended
from tests.launch.two_hosts import TwoHosts, two_hosts
from tests.profiling.studies.tune.by_hand import measurements

LIMIT = "400mbit"
BYTES_PER_SECOND = 50e6


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path, names_are_loopback=True) as both:
        yield both


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    write_measurements(file, measurements())
    return file


def tune_on_left(hosts: TwoHosts, plan: Path, *words: str) -> Ended:
    command = [sys.executable, "-m", "launch", "tune", "--plan", str(plan), "--mpirun", str(MPIRUN)]
    return ended(hosts.start_on_left([*command, *words], environment=os.environ))


def limit(hosts: TwoHosts) -> None:
    """Let the cable carry no more from left to right."""
    if shutil.which("tc") is None:
        pytest.skip("no program tc; apt-get install iproute2")
    words = f"tc qdisc add dev eth0 root tbf rate {LIMIT} burst 64kb latency 50ms".split()
    done = subprocess.run([*hosts.enter_left, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no limit of a virtual cable here: {done.stderr.strip()}")


@pytest.mark.whole_machine
def test_bandwidth_of_a_limited_cable_is_measured_kept_and_used(
    hosts: TwoHosts, plan: Path
) -> None:
    limit(hosts)
    done = tune_on_left(hosts, plan, "--hosts", "64", "--measure-hosts", "left,right")
    assert done.code == 0, done.errors
    assert "all-reduce time: measured, and by the model" in done.output
    assert "(measured over 2 hosts, gloo: left, right)" in done.output

    kept = read_measurements(plan)
    assert isinstance(kept, Measurements) and kept.between_hosts is not None
    assert kept.between_hosts.hosts == ("left", "right")
    assert [one.size for one in kept.between_hosts.all_reduces] == list(NETWORK_SIZES)
    fitted = fit_network(kept.between_hosts.all_reduces, source="")
    assert 0.5 * BYTES_PER_SECOND < fitted.bandwidth < 1.2 * BYTES_PER_SECOND

    again = tune_on_left(hosts, plan, "--hosts", "64")
    assert again.code == 0, again.errors
    assert again.output == done.output.replace("all-reduces between left, right …\n", "")
    given = tune_on_left(hosts, plan, "--hosts", "64", "--network", "25Gbit/s,20us")
    assert "network: 25 Gbit/s per host, latency 20 µs (given" in given.output


@pytest.mark.whole_machine
def test_host_that_nobody_knows_is_told_with_a_command_that_checks_it(
    hosts: TwoHosts, plan: Path
) -> None:
    done = tune_on_left(hosts, plan, "--hosts", "64", "--measure-hosts", "left,nowhere")
    assert done.code == BAD_INPUT
    last = done.errors.splitlines()[-1]
    assert last.startswith("error: left,nowhere: the measurement failed")
    assert "--hosts left,nowhere -- hostname" in last
    kept = read_measurements(plan)
    assert isinstance(kept, Measurements) and kept.between_hosts is None


def test_hosts_are_named_as_for_launch_run(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("node1:8\nnode2:4  # half\n")
    assert named_hosts(None, file) == ("node1", "node2")
    assert named_hosts("node[1-3]", None) == ("node1", "node2", "node3")
    assert named_hosts("a:2,b:2", None) == ("a", "b")
    assert named_hosts(None, None) == ()


def test_one_host_is_no_network() -> None:
    with pytest.raises(InputError, match="--measure-hosts a: a network needs at least two hosts"):
        named_hosts("a", None)
