import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from launch.mpirun import (
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


@pytest.mark.parametrize(
    ("family", "hosts", "expected"),
    [
        ("mpich", (), "-bind-to none -np 8 train.py x=1"),
        ("mpich", EVEN, "-bind-to none -disable-auto-cleanup -hosts a:4,b:4 -np 8 train.py x=1"),
        ("mpich", UNEVEN, "-bind-to none -disable-auto-cleanup -hosts a:4,b:2 -np 6 train.py x=1"),
        ("intel-mpi", (), "-genv I_MPI_PIN off -disable-auto-cleanup -np 8 train.py x=1"),
        (
            "intel-mpi",
            EVEN,
            "-genv I_MPI_PIN off -disable-auto-cleanup -hosts a,b -ppn 4 -np 8 train.py x=1",
        ),
        (
            "intel-mpi",
            UNEVEN,
            "-genv I_MPI_PIN off -disable-auto-cleanup -host a -n 4 train.py x=1 "
            ": -host b -n 2 train.py x=1",
        ),
        ("open-mpi", (), "--bind-to none --map-by slot -np 8 train.py x=1"),
        ("open-mpi", EVEN, "--bind-to none --map-by slot --host a:4,b:4 -np 8 train.py x=1"),
        ("open-mpi", UNEVEN, "--bind-to none --map-by slot --host a:4,b:2 -np 6 train.py x=1"),
    ],
)
def test_options_of_each_family(
    family: Family, hosts: tuple[tuple[str, int], ...], expected: str
) -> None:
    assert command_line(family, hosts) == f"/opt/mpirun {expected}"


def test_only_open_mpi_needs_an_option_for_root() -> None:
    assert command_line("open-mpi", (), is_root=True).startswith("/opt/mpirun --allow-run-as-root ")
    assert "root" not in command_line("open-mpi", ())
    assert "root" not in command_line("mpich", (), is_root=True) + command_line(
        "intel-mpi", (), is_root=True
    )


def test_open_mpi_passes_variables_to_other_hosts() -> None:
    environment = {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "eth1", "HOME": "/root"}
    several = command_line("open-mpi", EVEN, environment=environment)
    assert "-x GLOO_SOCKET_IFNAME -x OMP_NUM_THREADS -np" in several and "HOME" not in several
    assert "-x" not in command_line("open-mpi", (), environment=environment)
    assert "-x" not in command_line("mpich", EVEN, environment=environment)


@pytest.mark.parametrize("batch_system", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"])
def test_hosts_of_a_batch_system_are_other_hosts_too(batch_system: str) -> None:
    environment = {"UCX_NET_DEVICES": "mlx5_0:1", batch_system: "7"}
    mpich = command_line("mpich", (), environment=environment)
    assert mpich == "/opt/mpirun -bind-to none -disable-auto-cleanup -np 8 train.py x=1"
    assert "-x UCX_NET_DEVICES -np" in command_line("open-mpi", (), environment=environment)


def test_open_mpi_passes_the_choice_of_the_fabric() -> None:
    names = ("FI_PROVIDER", "I_MPI_OFI_PROVIDER", "PSM3_MULTIRAIL", "UCX_NET_DEVICES")
    several = command_line("open-mpi", EVEN, environment=dict.fromkeys(names, "x"))
    assert " ".join(f"-x {name}" for name in names) in several


def test_open_mpi_without_a_terminal_disables_it_for_ranks() -> None:
    assert " -x TTY_COMPATIBLE=0 -np 8" in command_line("open-mpi", (), is_terminal=False)
    assert "TTY" not in command_line("open-mpi", ()) + command_line("mpich", (), is_terminal=False)


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
