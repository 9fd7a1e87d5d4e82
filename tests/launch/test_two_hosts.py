"""Ranks of one job on two hosts."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from launch.mpirun import identify
from tests.launch.ranks import MPIRUN, ended
from tests.launch.two_hosts import REPOSITORY, TwoHosts, two_hosts
from tests.support.commands import start_program
from tests.support.processes import rank_processes, wait_until_gone
from tests.support.training_runs import read_records, wait_for_steps

pytestmark = pytest.mark.whole_machine

EXCHANGE = """
import os, socket, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
facts = (socket.gethostname(), os.stat("/proc/self/ns/net").st_ino, sys.argv[1])
names, networks, arguments = (set(column) for column in zip(*world.allgather(facts)))
neighbour = world.sendrecv(facts[0], dest=1 - world.rank, source=1 - world.rank)
line = f"{world.rank} on {facts[0]} from {neighbour}; {sorted(names)} {len(networks)} {arguments}"
sys.stdout.write(line + "\\n")  # one write: lines do not mix
# As in a training, whose rank 0 ends last. Where both hosts end in the same moment, MPICH's mpirun
# may write to a helper that has just ended, and then ends with 141.
rank = world.rank
MPI.Finalize()
time.sleep(1 - rank)
"""

PROGRAM = str(Path(__file__).with_name("group_program.py"))
PORT = "29500"  # Free in the network of each host
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


def start_on_both(
    hosts: TwoHosts, *arguments: str, ranks: int = 2, mpirun: Path = MPIRUN
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch", "run", "--np", str(ranks), "--hosts", "left,right"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return hosts.start_on_left(
        [*command, "--mpirun", str(mpirun), "--", *arguments], environment=environment
    )


def start_on_one(*arguments: str, ranks: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch", "run", "--np", str(ranks), "--mpirun", str(MPIRUN)]
    return start_program(*command, "--", *arguments, start_new_session=True)


def test_mpirun_connects_hosts_whose_names_are_their_addresses(tmp_path: Path) -> None:
    script = tmp_path / "exchange.py"
    script.write_text(EXCHANGE)
    with two_hosts(tmp_path, names_are_loopback=False) as hosts:
        done = ended(start_on_both(hosts, str(script), "a b"))
    assert done.code == 0, done.errors
    assert sorted(done.output.splitlines()) == [
        "0 on left from right; ['left', 'right'] 2 {'a b'}",
        "1 on right from left; ['left', 'right'] 2 {'a b'}",
    ]
    options = "-bind-to none -disable-auto-cleanup -hosts left:1,right:1 -np 2"
    assert f"{MPIRUN} {options} {sys.executable}" in done.errors


TRAINING = f"{sys.executable} train.py"  # mpirun's command begins otherwise


def weights_file(run: Path) -> Path:
    return run / "checkpoints" / "last" / "model.safetensors"


def read_weights(run: Path) -> bytes:
    return weights_file(run).read_bytes()


def test_training_on_two_hosts_ends_with_the_weights_of_one_host(
    debian_hosts: TwoHosts, tmp_path: Path, mpirun: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}"]
    alone = ended(start_on_one(*train, "run.name=one"))
    both = ended(start_on_both(debian_hosts, *train, "run.name=two", mpirun=mpirun))
    assert (alone.code, both.code) == (0, 0), alone.errors + both.errors
    assert both.output.count(f"finished after {STEPS} steps") == 1
    assert "left" in both.output and "right" in both.output
    family = identify(mpirun).family
    library = {"mpich": "MPICH 5", "intel-mpi": "Intel MPI 2021", "open-mpi": "Open MPI 5"}[family]
    reason = f"gradients by mpi (auto: started by {family}'s mpirun, library {library}"
    assert reason in " ".join(both.output.split())
    assert len(read_records(tmp_path / "two", kind="step")) == STEPS
    assert read_weights(tmp_path / "two") == read_weights(tmp_path / "one")


FROZEN = [  # Norms of batches would amplify what another order of sums rounds differently.
    "model.norm=frozen",
    "training.optimizer=sgd",
    "training.learning_rate=1e-3",
    "training.max_steps=20",
    "data.scenes.train=80",
    "launch.pin=false",
]
AS_ONE_HOST = 1e-5
"""Largest difference of a weight, of sums in another order than on one host."""


def largest_difference(run: Path, other: Path) -> float:
    weights, others = map(load_file, map(weights_file, (run, other)))
    # A run with norms of batches has counters besides, which frozen ones lack.
    assert weights.keys() <= others.keys()
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


@pytest.mark.exhaustive
def test_twenty_steps_of_two_ranks_on_each_host_end_with_the_weights_of_one_host(
    debian_hosts: TwoHosts, tmp_path: Path, mpirun: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}"]
    start = ended(start_on_one(*train, "run.name=start"))
    assert start.code == 0, start.errors
    train += [*FROZEN, f"model.weights={tmp_path / 'start'}"]
    alone = ended(start_on_one(*train, "run.name=one", ranks=4))
    both = ended(start_on_both(debian_hosts, *train, "run.name=two", ranks=4, mpirun=mpirun))
    assert (alone.code, both.code) == (0, 0), alone.errors + both.errors
    assert "shared memory, between hosts by mpi" in " ".join(both.output.split())
    # Ranks compare their weights at the end of an epoch.
    assert "weights differed" not in both.output
    assert largest_difference(tmp_path / "one", tmp_path / "start") > 100 * AS_ONE_HOST
    assert largest_difference(tmp_path / "two", tmp_path / "one") <= AS_ONE_HOST


def start_by_torchrun(hosts: TwoHosts, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start two ranks on each host."""
    program = [str(Path(sys.executable).with_name("torchrun")), "--nnodes=2", "--nproc-per-node=2"]
    program += ["--master-addr=left", f"--master-port={PORT}"]
    return [
        hosts.start_on(host, [*program, f"--node-rank={host}", *arguments], environment=os.environ)
        for host in (0, 1)
    ]


def start_by_variables(hosts: TwoHosts, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start one rank on each host, with the variables that a script would set."""
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "left", "MASTER_PORT": PORT}
    return [
        hosts.start_on(
            host,
            [sys.executable, *arguments],
            environment={**os.environ, **variables, "RANK": str(host)},
        )
        for host in (0, 1)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("start", "ranks", "gradients"),
    [
        (start_by_torchrun, 4, "shared memory, between hosts by gloo (auto: started by torchrun,"),
        (start_by_variables, 2, "gloo (auto: started by RANK and WORLD_SIZE,"),
    ],
)
def test_ranks_without_mpi_average_by_gloo_and_end_with_the_weights_of_mpi(
    start: Callable[..., list[subprocess.Popen[str]]],
    ranks: int,
    gradients: str,
    debian_hosts: TwoHosts,
    tmp_path: Path,
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", "launch.pin=false"]
    train += ["data.scenes.train=16", "training.max_steps=4"]
    by_mpi = ended(start_on_both(debian_hosts, *train, "run.name=mpi", ranks=ranks))
    assert by_mpi.code == 0, by_mpi.errors
    first, other = map(ended, start(debian_hosts, *train, "run.name=gloo"))
    assert (first.code, other.code, other.output) == (0, 0, ""), first.errors + other.errors
    way = f"gradients by {gradients} not by an MPI's mpirun)"
    assert way in " ".join(first.output.split())
    assert "weights differed" not in first.output
    assert read_weights(tmp_path / "gloo") == read_weights(tmp_path / "mpi")


def groups_of_steps(run: Path) -> list[int]:
    return [record["group"] for record in read_records(run, kind="step")]


@pytest.mark.exhaustive
def test_compute_groups_survive_the_loss_of_a_host(
    debian_hosts: TwoHosts, tmp_path: Path, mpirun: Path
) -> None:
    run = tmp_path / "groups"
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", f"run.name={run.name}"]
    train += ["data.scenes.train=40", "training.max_steps=40", "distributed.timeout_s=10"]
    job = start_on_both(debian_hosts, *train, "distributed.groups=2", mpirun=mpirun)
    wait_for_steps(run, job, count=8)
    debian_hosts.cut()
    end = time.monotonic() + 60
    while '"evaluation"' not in (run / "metrics.jsonl").read_text():
        assert time.monotonic() < end and job.poll() is None
        time.sleep(0.1)
    assert set(groups_of_steps(run)) == {0, 1}
    assert set(groups_of_steps(run)[-4:]) == {0}
    cut = ended(job)  # 30 s later, since mpirun waits for the other host
    assert "rank 1 on right sent no heartbeat for 8 s" in cut.errors
    wait_until_gone(f"run.name={run.name}")


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_is_named_although_mpi_ends_the_job(
    debian_hosts: TwoHosts, tmp_path: Path, victim: int, mpirun: Path
) -> None:
    case, mark = f"killed in an exchange of mpi: {victim}", f"mark={tmp_path}"
    done = ended(start_on_both(debian_hosts, PROGRAM, case, "60", mark, mpirun=mpirun))
    assert done.code not in (0, 75)
    name = ("left", "right")[victim]
    assert f"error: rank {victim} on {name} ended without a message" in done.errors, done.errors
    wait_until_gone(mark)


@pytest.mark.slow
def test_error_on_two_ranks_of_each_host_ends_all_with_its_status(
    debian_hosts: TwoHosts, mpirun: Path
) -> None:
    error = (PROGRAM, "input of all", "60")
    done = ended(start_on_both(debian_hosts, *error, ranks=4, mpirun=mpirun))
    assert done.code == 2, done.errors
    assert done.errors.count("error: a.json: field: wrong") == 1


@pytest.mark.exhaustive
def test_run_by_mpi_resumes_bit_for_bit_after_a_rank_was_killed(
    debian_hosts: TwoHosts, tmp_path: Path, mpirun: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", "launch.pin=false", "data.workers=0"]
    train += ["distributed.compress=bf16", "checkpoint.every=1 steps", "training.epochs=1000"]
    # 4 ranks: the sums of two, rounded, go between the hosts.
    steps = "training.max_steps=8"
    whole = ended(
        start_on_both(debian_hosts, *train, steps, "run.name=whole", ranks=4, mpirun=mpirun)
    )
    assert whole.code == 0, whole.errors
    assert "shared memory, between hosts by mpi in bf16" in " ".join(whole.output.split())
    job = start_on_both(debian_hosts, *train, steps, "run.name=killed", ranks=4, mpirun=mpirun)
    wait_for_steps(tmp_path / "killed", job, count=3)
    os.kill(rank_processes("run.name=killed", 2, begin=TRAINING)[0], signal.SIGKILL)
    killed = ended(job)
    assert "error: rank 2 on right ended without a message" in killed.errors, killed.errors
    resume = (*train, steps, "run.name=killed", "--resume")
    resumed = ended(start_on_both(debian_hosts, *resume, ranks=4, mpirun=mpirun))
    assert resumed.code == 0, resumed.errors
    assert read_weights(tmp_path / "killed") == read_weights(tmp_path / "whole")


@pytest.mark.exhaustive
def test_suspended_rank_and_lost_packets_are_named_by_mpi_jobs(
    debian_hosts: TwoHosts, tmp_path: Path, mpirun: Path
) -> None:
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", "training.epochs=1000"]
    train += ["training.max_steps=1000", "data.workers=0", "distributed.timeout_s=5"]
    several = (*train, "run.name=suspended", "launch.pin=false")
    job = start_on_both(debian_hosts, *several, ranks=4, mpirun=mpirun)
    wait_for_steps(tmp_path / "suspended", job, count=2)
    os.kill(rank_processes("run.name=suspended", 3, begin=TRAINING)[0], signal.SIGSTOP)
    done = ended(job)
    assert done.code not in (0, 75)
    assert "error: rank 3 on right sent no heartbeat for 4 s" in done.errors, done.errors
    wait_until_gone("run.name=suspended")

    job = start_on_both(debian_hosts, *train, "run.name=lost", mpirun=mpirun)
    wait_for_steps(tmp_path / "lost", job, count=2)
    debian_hosts.drop_everything()
    wait_until_gone("run.name=lost", seconds=15, begin=TRAINING)
    lost = ended(job)  # up to 30 s later, if mpirun waits for the other host
    assert lost.code not in (0, 75)
    # Only the packets of the first host are lost: which side notices first is open.
    silent = re.search("error: rank (1 on right|0 on left) sent no heartbeat for 4 s", lost.errors)
    assert silent, lost.errors


@pytest.mark.exhaustive
def test_signal_and_cut_cable_end_both_hosts_and_one_host_resumes(
    debian_hosts: TwoHosts, tmp_path: Path, mpirun: Path
) -> None:
    run = tmp_path / "moved"
    train = ["train.py", *SETTINGS, f"run.root={tmp_path}", f"run.name={run.name}"]
    train += ["training.epochs=1000"]
    many = "training.max_steps=1000"
    job = start_on_both(debian_hosts, *train, many, mpirun=mpirun)
    wait_for_steps(run, job, count=2)
    job.send_signal(signal.SIGTERM)
    stopped = ended(job)
    assert stopped.code == 75, stopped.errors
    assert stopped.output.count(": checkpoint written") == 1  # SIGUSR1 with Open MPI
    assert "with retinanet launch run" not in stopped.output

    steps = len(read_records(run, kind="step"))
    changes = ["distributed.timeout_s=5", "checkpoint.every=1 steps"]
    job = start_on_both(debian_hosts, *train, many, *changes, "--resume", mpirun=mpirun)
    wait_for_steps(run, job, count=steps + 3)
    debian_hosts.cut()
    wait_until_gone(f"run.name={run.name}", seconds=15, begin=TRAINING)
    cut = ended(job)  # 30 s later, since mpirun waits for the other host
    assert cut.code == 1
    assert "error: the ranks of this host ended 30 s ago, but mpirun waits" in cut.errors
    assert cut.errors.count("error: rank 1 on right sent no heartbeat for 4 s") == 1, cut.errors

    done = len(read_records(run, kind="step"))
    limit = f"training.max_steps={done + 1}"
    resumed = ended(start_on_one(*train, limit, "--resume"))
    assert resumed.code == 0, resumed.errors
    assert len(read_records(run, kind="step")) == done + 1
