"""Ranks of one job on two hosts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.ranks import MPIRUN, ended
from tests.launch.two_hosts import ADDRESSES, TwoHosts, two_hosts
from tests.support.commands import start_program
from tests.support.processes import processes_with, wait_until_gone
from tests.support.training_runs import read_records, wait_for_steps

pytestmark = pytest.mark.whole_machine

EXCHANGE = """
import os, socket, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
facts = (socket.gethostname(), os.stat("/proc/self/ns/net").st_ino, sys.argv[1])
names, networks, arguments = (set(column) for column in zip(*world.allgather(facts)))
neighbour = world.sendrecv(facts[0], dest=1 - world.rank, source=1 - world.rank)
line = f"{world.rank} on {facts[0]} from {neighbour}; {sorted(names)} {len(networks)} {arguments}"
sys.stdout.write(line + "\\n")  # one write: lines do not mix
"""

STEPS = 2
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


def start_on_both(hosts: TwoHosts, *arguments: str, ranks: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch", "run", "--np", str(ranks), "--hosts", "left,right"]
    return hosts.start_on_left(
        [*command, "--mpirun", str(MPIRUN), "--", *arguments], environment=os.environ
    )


def start_on_one(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch", "run", "--np", "2", "--mpirun", str(MPIRUN)]
    return start_program(*command, "--", *arguments, start_new_session=True)


def test_hosts_have_separate_networks_and_reach_each_other(hosts: TwoHosts) -> None:
    looks = ["sh", "-c", "hostname; ip -brief -4 address show dev eth0; getent hosts right"]
    done = ended(hosts.start_on_left(looks, environment=os.environ), timeout=10)
    name, interface, other = done.output.splitlines()
    assert name == "left" and ADDRESSES[0] in interface, done.errors
    assert other.startswith(ADDRESSES[1])


def test_mpirun_connects_one_rank_on_each_host(hosts: TwoHosts, tmp_path: Path) -> None:
    script = tmp_path / "exchange.py"
    script.write_text(EXCHANGE)
    done = ended(start_on_both(hosts, str(script), "a b"))
    assert done.code == 0, done.errors
    assert sorted(done.output.splitlines()) == [
        "0 on left from right; ['left', 'right'] 2 {'a b'}",
        "1 on right from left; ['left', 'right'] 2 {'a b'}",
    ]
    options = "-bind-to none -disable-auto-cleanup -hosts left:1,right:1 -np 2"
    assert f"{MPIRUN} {options} {sys.executable}" in done.errors


def read_weights(run: Path) -> bytes:
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
    assert "gradients by mpi (auto: started by mpich's mpirun)" in " ".join(both.output.split())
    assert len(read_records(tmp_path / "two", kind="step")) == STEPS
    assert read_weights(tmp_path / "two") == read_weights(tmp_path / "one")


def groups_of_steps(run: Path) -> list[int]:
    return [record["group"] for record in read_records(run, kind="step")]


@pytest.mark.exhaustive
def test_compute_groups_survive_the_loss_of_a_host(debian_hosts: TwoHosts, tmp_path: Path) -> None:
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
    assert "rank 1 on right sent no heartbeat for 8 s" in cut.errors
    wait_until_gone(f"run.name={run.name}")


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_is_named_although_mpi_ends_the_job(
    debian_hosts: TwoHosts, tmp_path: Path, victim: int
) -> None:
    run = tmp_path / "killed"
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", f"run.name={run.name}"]
    train += ["training.epochs=1000", "training.max_steps=1000", "data.workers=0"]
    job = start_on_both(debian_hosts, *train)
    wait_for_steps(run, job, count=2)
    ranks = processes_with(f"run.name={run.name}", begin=f"{sys.executable} train.py")
    rank_of = {number_of_rank(process): process for process in ranks}
    os.kill(rank_of[victim], signal.SIGKILL)
    done = ended(job)
    assert done.code not in (0, 75)
    name = ("left", "right")[victim]
    assert f"error: rank {victim} on {name} ended without a message" in done.errors, done.errors
    wait_until_gone(f"run.name={run.name}")


@pytest.mark.slow
def test_error_on_two_ranks_of_each_host_ends_all_with_its_status(
    debian_hosts: TwoHosts, tmp_path: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", "launch.pin=false", "model.norm=frozen"]
    done = ended(start_on_both(debian_hosts, *train, ranks=4))
    assert done.code == 2, done.errors
    assert done.errors.count("error: model.norm: frozen needs pretrained weights") == 1


@pytest.mark.exhaustive
def test_run_by_mpi_resumes_bit_for_bit_after_a_rank_was_killed(
    debian_hosts: TwoHosts, tmp_path: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", "launch.pin=false", "data.workers=0"]
    train += ["distributed.compress=bf16", "checkpoint.every=1 steps", "training.epochs=1000"]
    # 4 ranks: the sums of two, rounded, go between the hosts.
    steps = "training.max_steps=8"
    whole = ended(start_on_both(debian_hosts, *train, steps, "run.name=whole", ranks=4))
    assert whole.code == 0, whole.errors
    assert "shared memory, between hosts by mpi in bf16" in " ".join(whole.output.split())
    job = start_on_both(debian_hosts, *train, steps, "run.name=killed", ranks=4)
    wait_for_steps(tmp_path / "killed", job, count=3)
    ranks = processes_with("run.name=killed", begin=f"{sys.executable} train.py")
    os.kill({number_of_rank(process): process for process in ranks}[2], signal.SIGKILL)
    killed = ended(job)
    assert "error: rank 2 on right ended without a message" in killed.errors, killed.errors
    resume = (*train, steps, "run.name=killed", "--resume")
    resumed = ended(start_on_both(debian_hosts, *resume, ranks=4))
    assert resumed.code == 0, resumed.errors
    assert read_weights(tmp_path / "killed") == read_weights(tmp_path / "whole")


@pytest.mark.exhaustive
def test_suspended_rank_and_lost_packets_are_named_by_mpi_jobs(
    debian_hosts: TwoHosts, tmp_path: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", "training.epochs=1000"]
    train += ["training.max_steps=1000", "data.workers=0", "distributed.timeout_s=5"]
    several = (*train, "run.name=suspended", "launch.pin=false")
    job = start_on_both(debian_hosts, *several, ranks=4)
    wait_for_steps(tmp_path / "suspended", job, count=2)
    ranks = processes_with("run.name=suspended", begin=f"{sys.executable} train.py")
    suspended = {number_of_rank(process): process for process in ranks}[3]
    os.kill(suspended, signal.SIGSTOP)
    done = ended(job)
    assert done.code not in (0, 75)
    assert "error: rank 3 on right sent no heartbeat for 4 s" in done.errors, done.errors
    wait_until_gone("run.name=suspended")

    job = start_on_both(debian_hosts, *train, "run.name=lost")
    wait_for_steps(tmp_path / "lost", job, count=2)
    debian_hosts.drop_everything()
    end = time.monotonic() + 15
    while processes_with("run.name=lost", begin=f"{sys.executable} train.py"):
        assert time.monotonic() < end
        time.sleep(0.1)
    [mpirun] = processes_with("run.name=lost", begin=f"{MPIRUN} ")
    os.kill(mpirun, signal.SIGKILL)  # it waits for the other host; `launch run` does so after 30 s
    lost = ended(job)
    assert "error: rank 1 on right sent no heartbeat for 4 s" in lost.errors, lost.errors


def number_of_rank(process: int) -> int:
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    [number] = [item for item in variables if item.startswith(b"PMI_RANK=")]
    return int(number.partition(b"=")[2])


@pytest.mark.exhaustive
def test_signal_and_cut_cable_end_both_hosts_and_one_host_resumes(
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

    steps = len(read_records(run, kind="step"))
    changes = ["distributed.timeout_s=5", "checkpoint.every=1 steps"]
    job = start_on_both(debian_hosts, *train, many, *changes, "--resume")
    wait_for_steps(run, job, count=steps + 3)
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
    assert cut.errors.count("error: rank 1 on right sent no heartbeat for 4 s") == 1, cut.errors

    done = len(read_records(run, kind="step"))
    limit = f"training.max_steps={done + 1}"
    resumed = ended(start_on_one(*train, limit, "--resume"))
    assert resumed.code == 0, resumed.errors
    assert len(read_records(run, kind="step")) == done + 1
