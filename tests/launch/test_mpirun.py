import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import InputError
from launch.mpirun import (
    STARTED_BY_US,
    Family,
    Mpirun,
    by_this_python,
    choose_mpirun,
    launcher_command,
    mpirun_command,
)
from launch.ranks import Ranks, launcher_named
from tests.support.commands import error_message, write_program

ENVIRONMENT = Path(sys.prefix) / "bin"

HYDRA = """\
HYDRA build details:
    Version:                                 4.1.2
    Process Manager:                         pmi
"""
INTEL = """\
Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)
Copyright 2003-2026, Intel Corporation.
"""
OPEN_MPI = """\
mpirun (Open MPI) 5.0.11

Report bugs to https://www.open-mpi.org/community/help/
"""
PRRTE = "prterun (PRRTE) 3.0.13\n"


def program(path: Path, version: str, *, status: int = 0) -> Path:
    """Write a program with the output of a real mpirun for --version."""
    return write_program(path, f"cat <<'END'\n{version}END\nexit {status}")


@pytest.mark.parametrize(
    ("version", "family"),
    [(HYDRA, "mpich"), (INTEL, "intel-mpi"), (OPEN_MPI, "open-mpi"), (PRRTE, "open-mpi")],
)
def test_family_is_read_from_the_version(version: str, family: str, tmp_path: Path) -> None:
    mpirun = program(tmp_path / "mpirun", version)
    mpirun_ = choose_mpirun(mpirun)
    assert (mpirun_.path, mpirun_.family) == (mpirun, family)


def test_mpirun_of_this_environment_is_mpich(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    mpirun_ = choose_mpirun(None)
    assert (mpirun_.path, mpirun_.family) == (ENVIRONMENT / "mpirun", "mpich")


def test_mpirun_of_the_cluster_has_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = program(tmp_path / "cluster" / "mpiexec", OPEN_MPI)
    monkeypatch.setenv("PATH", f"{ENVIRONMENT}:{tmp_path / 'empty'}:{other.parent}:/usr/bin:/bin")
    mpirun_ = choose_mpirun(None)
    assert (mpirun_.path, mpirun_.family) == (other, "open-mpi")


def test_unknown_mpirun_is_refused_with_its_version(tmp_path: Path) -> None:
    stranger = program(tmp_path / "mpirun", "mpiexec.hydra: not found\nmore\n", status=127)
    message = error_message(choose_mpirun, stranger)
    assert message.startswith(f"{stranger}: ") and "'mpiexec.hydra: not found'" in message
    assert "--mpirun PATH" in message


def test_path_that_is_not_executable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^--mpirun: {tmp_path}"):
        choose_mpirun(tmp_path)


def test_missing_mpirun_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(InputError, match=r"^mpirun: .*make setup.* --mpirun PATH$"):
        choose_mpirun(None)


EVEN = (("a", 4), ("b", 4))
UNEVEN = (("a", 4), ("b", 2))


def command_line(
    family: Family,
    hosts: tuple[tuple[str, int], ...],
    *,
    environment: dict[str, str] | None = None,
    is_root: bool = False,
    is_terminal: bool = True,
) -> str:
    ranks = sum(count for _, count in hosts) if hosts else 8
    arguments = mpirun_command(
        Mpirun(Path("/opt/mpirun"), family),
        ["train.py", "x=1"],
        ranks=ranks,
        hosts=hosts,
        environment=environment or {},
        is_root=is_root,
        is_terminal=is_terminal,
    )
    return " ".join(arguments)


OPEN_MPI_OPTIONS = "--bind-to none --map-by slot"
FABRIC = dict.fromkeys(("FI_PROVIDER", "I_MPI_OFI_PROVIDER", "PSM3_MULTIRAIL", "UCX_NET_DEVICES"))
TO_OTHERS = {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "eth1", "HOME": "/root"}
BATCH_SYSTEMS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")  # Their hosts are other hosts too


@pytest.mark.parametrize(
    ("family", "hosts", "given", "expected"),
    [
        ("mpich", (), {}, "-bind-to none"),
        ("mpich", EVEN, {}, "-bind-to none -disable-auto-cleanup -hosts a:4,b:4"),
        ("mpich", UNEVEN, {}, "-bind-to none -disable-auto-cleanup -hosts a:4,b:2"),
        ("intel-mpi", (), {}, "-genv I_MPI_PIN off -disable-auto-cleanup"),
        ("intel-mpi", EVEN, {}, "-genv I_MPI_PIN off -disable-auto-cleanup -hosts a,b -ppn 4"),
        ("open-mpi", (), {}, OPEN_MPI_OPTIONS),
        ("open-mpi", EVEN, {}, f"{OPEN_MPI_OPTIONS} --host a:4,b:4"),
        ("open-mpi", UNEVEN, {}, f"{OPEN_MPI_OPTIONS} --host a:4,b:2"),
        # Only Open MPI has options for root, for variables, and against its pseudo-terminals.
        ("open-mpi", (), {"is_root": True}, f"--allow-run-as-root {OPEN_MPI_OPTIONS}"),
        ("open-mpi", (), {"is_terminal": False}, f"{OPEN_MPI_OPTIONS} -x TTY_COMPATIBLE=0"),
        (
            "mpich",
            EVEN,
            {"is_root": True, "is_terminal": False, "environment": TO_OTHERS},
            "-bind-to none -disable-auto-cleanup -hosts a:4,b:4",
        ),
        ("intel-mpi", (), {"is_root": True}, "-genv I_MPI_PIN off -disable-auto-cleanup"),
        ("open-mpi", (), {"environment": TO_OTHERS}, OPEN_MPI_OPTIONS),
        (
            "open-mpi",
            EVEN,
            {"environment": TO_OTHERS | FABRIC},
            f"{OPEN_MPI_OPTIONS} --host a:4,b:4 -x FI_PROVIDER -x GLOO_SOCKET_IFNAME "
            "-x I_MPI_OFI_PROVIDER -x OMP_NUM_THREADS -x PSM3_MULTIRAIL -x UCX_NET_DEVICES",
        ),
        *(
            (family, (), {"environment": {"UCX_TLS": "tcp", name: "7"}}, options)
            for name in BATCH_SYSTEMS
            for family, options in (
                ("mpich", "-bind-to none -disable-auto-cleanup"),
                ("open-mpi", f"{OPEN_MPI_OPTIONS} -x UCX_TLS"),
            )
        ),
    ],
)
def test_options_of_each_family(
    family: Family, hosts: tuple[tuple[str, int], ...], given: dict[str, Any], expected: str
) -> None:
    ranks = sum(count for _, count in hosts) or 8
    line = command_line(family, hosts, **given)
    assert line == f"/opt/mpirun {expected} -np {ranks} train.py x=1"


def test_intel_mpi_has_a_command_for_each_host_of_another_number_of_ranks() -> None:
    assert command_line("intel-mpi", UNEVEN) == (
        "/opt/mpirun -genv I_MPI_PIN off -disable-auto-cleanup -host a -n 4 train.py x=1 "
        ": -host b -n 2 train.py x=1"
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["train.py", "--resume"], [sys.executable, "train.py", "--resume"]),
        (["python", "-m", "profiling"], [sys.executable, "-m", "profiling"]),
        (["python3", "train.py"], [sys.executable, "train.py"]),
        (["/usr/bin/python3", "x.py"], ["/usr/bin/python3", "x.py"]),
        (["hostname"], ["hostname"]),
    ],
)
def test_scripts_run_with_this_python(command: list[str], expected: list[str]) -> None:
    assert by_this_python(command) == expected


def test_option_that_sets_the_number_of_ranks() -> None:
    assert "--nproc-per-node" in launcher_named("torchrun").ranks_option
    assert "srun" in launcher_named("slurm").ranks_option
    assert "mpirun -np" in launcher_named("mpich").ranks_option


def test_command_of_srun_keeps_its_options() -> None:
    ranks = Ranks(rank=0, size=4, local_rank=0, local_size=2, launcher="slurm")
    assert launcher_command(ranks, {}) == ["srun", "-n", "4"]
    ours = "retinanet launch run --np 4 --hostfile 'my hosts' --"
    assert shlex.join(launcher_command(ranks, {STARTED_BY_US: ours})) == ours
    variables = {"SLURM_STEP_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "14"}
    variables["SLURM_CPU_BIND_TYPE"] = "none"
    assert shlex.join(launcher_command(ranks, variables)) == (
        "srun -n 4 --nodes=2 --cpus-per-task=14 --cpu-bind=none"
    )


def test_command_of_torchrun_on_several_hosts_names_them() -> None:
    ranks = Ranks(rank=0, size=4, local_rank=0, local_size=2, launcher="torchrun")
    variables = {"GROUP_RANK": "0", "MASTER_ADDR": "left", "MASTER_PORT": "29500"}
    assert launcher_command(ranks, variables) == []  # of a script, which sets them again
    variables["TORCHELASTIC_RUN_ID"] = "none"
    assert shlex.join(launcher_command(ranks, variables)) == (
        "torchrun --nnodes=2 --node-rank=0 --master-addr=left --master-port=29500 "
        "--nproc-per-node=2"
    )
    here = replace(ranks, size=2)
    assert launcher_command(here, variables) == ["torchrun", "--nproc-per-node=2"]
