"""How ranks find each other before torch is loaded, and how early errors end them."""

import os
import re
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from launch import rendezvous
from launch.ranks import Ranks
from launch.rendezvous import (
    host_addresses,
    interface_addresses,
    interface_towards,
    interface_with,
    make_rendezvous,
    reachable,
)
from tests.launch.ranks import MPIRUNS, REPOSITORY, free_port, run_python, run_ranks
from tests.support.commands import run_program

PROGRAM = str(Path(__file__).with_name("failing_ranks.py"))


def second_of_two(launcher: str) -> Ranks:
    return Ranks(rank=1, size=2, local_rank=0, local_size=1, launcher=launcher)


SLURM = {
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_JOB_NODELIST": "node[01-08]",
    "SLURM_JOB_ID": "4100",
    "SLURM_STEP_ID": "2",
}


MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
PET = {f"PET_{name}": value for name, value in MASTER.items()}  # torchrun's options


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [("torchrun", MASTER), ("mpich", MASTER), ("slurm", SLURM | MASTER), ("trainjob", PET)],
)
def test_address_of_variables_has_priority(launcher: str, variables: dict[str, str]) -> None:
    rendezvous = make_rendezvous(second_of_two(launcher), variables)
    assert (rendezvous.address, rendezvous.port) == ("10.0.0.1", 29500)
    assert rendezvous.affinities is None


@pytest.mark.parametrize(
    ("launcher", "variables", "named"),
    [
        ("torchrun", {"MASTER_ADDR": "10.0.0.1"}, "MASTER_PORT: "),
        ("torchrun", {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": ""}, "MASTER_PORT: "),
        ("torchrun", {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT: 'x'"),
        ("torchrun", {"HOSTNAME": "a"}, "MASTER_ADDR: is not set"),
        ("flux", {"HOSTNAME": "a"}, "MASTER_ADDR: is not set, and flux does not tell"),
        ("trainjob", {"PET_MASTER_ADDR": "10.0.0.1"}, "MASTER_PORT: "),
        ("slurm", {"SLURM_STEP_NODELIST": "a"}, "SLURM_STEP_NODELIST, SLURM_JOB_ID: "),
        ("slurm", {"SLURM_JOB_ID": "4100"}, "SLURM_STEP_NODELIST, SLURM_JOB_ID: "),
    ],
)
def test_incomplete_addresses_are_refused(
    launcher: str, variables: dict[str, str], named: str
) -> None:
    with pytest.raises(InputError, match=f"^{named}"):
        make_rendezvous(second_of_two(launcher), variables)


def test_ranks_of_slurm_use_the_first_host_and_a_port_of_the_step() -> None:
    rendezvous = make_rendezvous(second_of_two("slurm"), SLURM)
    assert rendezvous.address == "node07"
    ports = {
        make_rendezvous(
            second_of_two("slurm"), {**SLURM, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step}
        ).port
        for job in ("4100", "4101", "4102")
        for step in ("0", "1", "2")
    }
    assert len(ports) == 9 and all(20_000 <= port < 30_000 for port in ports)


def test_interfaces_of_this_host() -> None:
    assert interface_addresses()["lo"] == "127.0.0.1"
    assert interface_with("127.0.0.1") == "lo"
    assert interface_with("192.0.2.200") is None
    assert interface_towards("127.0.0.1", free_port()) == "lo"
    assert not [address for address in host_addresses({}) if address.startswith("127.")]
    for names in ("lo", "lo,lo"):  # gloo takes several in turn
        addresses = ("127.0.0.1",) * len(names.split(","))
        assert host_addresses({"GLOO_SOCKET_IFNAME": names}) == addresses
    for names, unknown in (("ib7", "ib7"), ("lo,ib7", "ib7"), ("lo,", "")):
        with pytest.raises(InputError, match=rf"^GLOO_SOCKET_IFNAME={unknown}: no such .*\blo\b"):
            host_addresses({"GLOO_SOCKET_IFNAME": names})


def test_first_address_that_responds_is_used() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.3", port)):
        assert reachable(("127.0.0.2", "127.0.0.3", "127.0.0.4"), port) == "127.0.0.3"
    with pytest.raises(ConnectionError, match=r"port \d+ of 127\.0\.0\.2 .*127\.0\.0\.3"):
        reachable(("127.0.0.2", "127.0.0.3"), port)


def test_deadline_prints_a_note_and_ends_the_process() -> None:
    program = """
import time
from launch.waiting import Wait, deadline
with deadline(60, "rank 3 on b", Wait("nothing", advice="")):
    pass
with deadline(0.4, "rank 3 on b", Wait("rank 0", advice="check the network")):
    time.sleep(20)
"""
    done = run_python(program)
    note, error = done.errors.splitlines()
    assert done.code == 1
    assert note.startswith("note: rank 3 on b has waited 0.1 s for rank 0 (limit: 0.4 s)")
    assert error == "error: rank 3 on b waited 0.4 s for rank 0; check the network"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "ranks"), [("arguments", "0,1,2"), ("before", "1,2"), ("after", "0,1,2")]
)
def test_early_error_is_printed_once_and_ends_all_ranks(moment: str, ranks: str) -> None:
    job = run_ranks(3, PROGRAM, moment, ranks)
    assert (job.code, job.output) == (2, "")  # where mpirun would print which ranks it has killed
    assert job.errors.count("error: ") == 1
    *above, last = job.errors.splitlines()
    assert "error: " in last
    assert moment == "arguments" or above == []
    if ranks == "1,2":
        assert last.startswith("rank 1 on ") and last.endswith(": error: a.json: field: wrong")


LIBRARY = """
import os, sys
from launch.rendezvous import find_library
sys.prefix = "/nowhere" if "away" in sys.argv else sys.prefix
sys.stdout.write(f"{find_library(sys.argv[1], os.environ)}\\n")
"""


@pytest.mark.parametrize("by_shell", [False, True])
@pytest.mark.parametrize("family", ["mpich", "intel-mpi", "open-mpi"])
def test_library_is_that_of_the_mpirun(family: str, by_shell: bool) -> None:
    mpirun = MPIRUNS[family]
    if not mpirun.exists():
        pytest.skip(f"needs the mpirun of {family}: `make {family}`")
    command = [sys.executable, "-c", LIBRARY, family]
    command = ["sh", "-c", f"{shlex.join(command)}; true"] if by_shell else command
    root = ["--allow-run-as-root"] if family == "open-mpi" and os.getuid() == 0 else []
    path = f"{mpirun.parent}:{os.environ['PATH']}"
    done = run_program(mpirun, *root, "-np", "1", *command, PATH=path, PYTHONPATH=str(REPOSITORY))
    [found] = map(Path, done.stdout.split())
    assert found.parent.parent == mpirun.parent.parent and found.name.startswith("libmpi.so.")


@pytest.mark.parametrize("launcher", ["mpich", "intel-mpi"])
def test_library_without_an_mpirun_is_that_of_this_environment(launcher: str) -> None:
    assert run_python(LIBRARY, launcher).output == f"{sys.prefix}/lib/libmpi.so.12\n"
    assert run_python(LIBRARY, launcher, "away").output == "None\n"


def test_library_of_an_older_intel_mpi_is_in_a_folder_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib" / "release" / "libmpi.so.12"
    library.parent.mkdir(parents=True)
    library.touch()
    helper = tmp_path / "bin" / "hydra_pmi_proxy"
    monkeypatch.setattr(rendezvous, "parent_programs", lambda: iter([Path("/bin/sh"), helper]))
    assert rendezvous.find_library("intel-mpi", {}) == library


TRANSPORT = """
import os, sys
from launch.ranks import read_ranks
from launch.rendezvous import finalize_mpi, make_rendezvous, rank0_only_errors, settle_transport
ranks = read_ranks(os.environ)
with rank0_only_errors(ranks):
    rendezvous = make_rendezvous(ranks, os.environ)
    transport, notes = settle_transport(ranks, rendezvous, sys.argv[1])
from mpi4py import MPI
state = "finalized" if MPI.Is_finalized() else "initialized"
finalize_mpi()
chosen = f"{transport.name} ({transport.reason})"
sys.stdout.write(f"{chosen}, {state} {len(notes)}; {''.join(notes)}\\n")
"""


FUNNELED = {"MPI4PY_RC_THREAD_LEVEL": "funneled"}
LOW = r"MPI allows no calls by a second thread \(.* below SERIALIZED: MPICH Version.*\)"


@pytest.mark.parametrize(
    ("backend", "variables", "expected"),
    [
        ("auto", {}, r"none \(one host\), finalized 0; "),
        ("gloo", {}, r"none \(one host\), finalized 0; "),
        (
            "mpi",
            {},
            r"mpi \(started by mpich's mpirun, library MPICH [\d.]+\), initialized 0; ",
        ),
        ("mpi", FUNNELED, rf"none \(one host\), finalized 1; {LOW}; gradients go by gloo"),
    ],
)
def test_mpi_stays_initialized_only_if_it_carries_gradients(
    backend: str, variables: dict[str, Any], expected: str
) -> None:
    job = run_ranks(2, "-c", TRANSPORT, backend, **variables)
    assert job.code == 0, job.errors
    lines = job.output.splitlines()
    assert len(lines) == 2 and all(re.fullmatch(expected, line) for line in lines), lines


def test_mpi_is_refused_where_mpirun_is_not_to_meet_the_ranks() -> None:
    port = str(free_port())
    job = run_ranks(2, "-c", TRANSPORT, "mpi", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert job.code != 0
    assert "distributed.backend: mpi: MASTER_ADDR is set" in job.errors
