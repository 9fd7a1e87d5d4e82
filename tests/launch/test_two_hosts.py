"""Ranks of one job on two hosts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.processes_left import processes_with, wait_until_gone
from tests.launch.ranks import MPIRUN, ended
from tests.launch.two_hosts import ADDRESSES, TwoHosts, two_hosts

pytestmark = pytest.mark.whole_machine

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

STEPS = 3
SETTINGS = [
    "data.scenes.train=4",
    "data.scenes.validation=1",
    "data.image_size=64",
    "training.batch_size=1",
    f"training.max_steps={STEPS}",
    "evaluation.every=100",
    "evaluation.pictures=0",
    "engine.precision=float32",
    "launch.threads=1",  # on each host alike, so that sums are in one order
]


@pytest.fixture(params=[True, False], ids=["names-are-127.0.1.1", "names-are-addresses"])
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path, names_are_loopback=request.param) as both:
        yield both


@pytest.fixture
def debian_hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    """To each its own name is 127.0.1.1, which the other cannot reach."""
    with two_hosts(tmp_path, names_are_loopback=True) as both:
        yield both


def start_on_both(hosts: TwoHosts, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch", "run", "--np", "2", "--hosts", "left,right"]
    return hosts.start_on_left(
        [*command, "--mpirun", str(MPIRUN), "--", *words], environment=os.environ
    )


def start_on_one(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch", "run", "--np", "2", "--mpirun", str(MPIRUN)]
    return subprocess.Popen(
        [*command, "--", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_hosts_have_their_own_network_and_name_and_reach_each_other(hosts: TwoHosts) -> None:
    looks = ["sh", "-c", "hostname; ip -brief -4 address show dev eth0; getent hosts right"]
    done = ended(hosts.start_on_left(looks, environment=os.environ), timeout=10)
    name, interface, other = done.output.splitlines()
    assert name == "left" and ADDRESSES[0] in interface, done.errors
    assert other.startswith(ADDRESSES[1])


def test_mpirun_starts_a_rank_on_each_host_and_they_hear_each_other(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    script = tmp_path / "meeting.py"
    script.write_text(MEETING)
    done = ended(start_on_both(hosts, str(script), "a b"))
    assert done.code == 0, done.errors
    assert sorted(done.output.splitlines()) == [
        "0 on left heard right; ['left', 'right'] 2 {'a b'}",
        "1 on right heard left; ['left', 'right'] 2 {'a b'}",
    ]
    assert f"{MPIRUN} -bind-to none -hosts left:1,right:1 -np 2 {sys.executable}" in done.errors


def steps_of(run: Path) -> list[str]:
    file = run / "metrics.jsonl"
    return [line for line in file.read_text().splitlines() if '"step"' in line.split(",")[0]]


def weights_of(run: Path) -> bytes:
    return (run / "checkpoints" / "last" / "model.safetensors").read_bytes()


def test_training_on_two_hosts_ends_with_the_weights_of_one_host(
    debian_hosts: TwoHosts, tmp_path: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}"]
    alone = ended(start_on_one(*train, "run.name=one"))
    both = ended(start_on_both(debian_hosts, *train, "run.name=two"))
    assert (alone.code, both.code) == (0, 0), alone.errors + both.errors
    assert both.output.count(f"finished after {STEPS} steps") == 1
    assert "left" in both.output and "right" in both.output
    assert len(steps_of(tmp_path / "two")) == STEPS
    assert weights_of(tmp_path / "two") == weights_of(tmp_path / "one")


def groups_of_steps(run: Path) -> list[int]:
    return [json.loads(line)["group"] for line in steps_of(run)]


def test_groups_on_two_hosts_share_the_weights_and_outlive_a_host(
    debian_hosts: TwoHosts, tmp_path: Path
) -> None:
    run = tmp_path / "groups"
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", f"run.name={run.name}"]
    train += ["data.scenes.train=40", "training.max_steps=40", "distributed.timeout_s=10"]
    job = start_on_both(debian_hosts, *train, "distributed.groups=2")
    wait_for_steps(run, job, count=8)
    debian_hosts.cut()
    end = time.monotonic() + 60
    while '"evaluation"' not in (run / "metrics.jsonl").read_text():
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.1)
    assert set(groups_of_steps(run)) == {0, 1}
    assert set(groups_of_steps(run)[-4:]) == {0}
    [mpirun] = processes_with(f"run.name={run.name}", begin=f"{MPIRUN} ")
    os.kill(mpirun, signal.SIGKILL)  # it waits for the other host
    cut = ended(job)
    assert "rank 1 on right was silent for 8 s (stopped, or cut off?): its group 1" in cut.errors
    wait_until_gone(f"run.name={run.name}")


def wait_for_steps(run: Path, job: subprocess.Popen[str], *, count: int) -> None:
    end = time.monotonic() + 90
    while not (run / "metrics.jsonl").exists() or len(steps_of(run)) < count:
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.05)


def test_a_signal_and_a_cut_cable_end_both_hosts_and_one_host_goes_on(
    debian_hosts: TwoHosts, tmp_path: Path
) -> None:
    run = tmp_path / "moved"
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", f"run.name={run.name}"]
    train += ["training.epochs=1000"]
    many = "training.max_steps=1000"
    job = start_on_both(debian_hosts, *train, many)
    wait_for_steps(run, job, count=2)
    job.send_signal(signal.SIGTERM)
    stopped = ended(job)
    assert stopped.code == 75, stopped.errors
    assert stopped.output.count("SIGTERM: checkpoint written") == 1

    kept = len(steps_of(run))
    changes = ["distributed.timeout_s=5", "checkpoint.every=1 steps"]
    job = start_on_both(debian_hosts, *train, many, *changes, "--resume")
    wait_for_steps(run, job, count=kept + 3)
    debian_hosts.cut()
    end = time.monotonic() + 15
    ranks = f"{sys.executable} train.py"  # on both hosts; mpirun's command begins otherwise
    while processes_with(f"run.name={run.name}", begin=ranks):
        assert time.monotonic() < end
        time.sleep(0.1)
    [mpirun] = processes_with(f"run.name={run.name}", begin=f"{MPIRUN} ")
    os.kill(mpirun, signal.SIGKILL)  # it waits for the other host; `launch run` does so after 30 s
    cut = ended(job)
    assert cut.code not in (0, 75)
    wait_until_gone(f"run.name={run.name}")
    assert cut.errors.count("error: rank 1 on right was silent for 4 s") == 1, cut.errors

    done = len(steps_of(run))
    more = f"training.max_steps={done + 1}"
    resumed = ended(start_on_one(*train, more, "--resume"))
    assert resumed.code == 0, resumed.errors
    assert len(steps_of(run)) == done + 1
