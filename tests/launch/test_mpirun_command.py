import sys
from pathlib import Path

import pytest

from launch.mpirun import Family, Mpirun, by_this_python, mpirun_command

EVEN = (("a", 4), ("b", 4))
UNEVEN = (("a", 4), ("b", 2))


def words(
    family: Family,
    hosts: tuple[tuple[str, int], ...],
    *,
    environment: dict[str, str] | None = None,
    is_root: bool = False,
    is_terminal: bool = True,
) -> str:
    ranks = sum(count for _, count in hosts) if hosts else 8
    composed = mpirun_command(
        Mpirun(Path("/opt/mpirun"), family),
        ["train.py", "x=1"],
        ranks=ranks,
        hosts=hosts,
        environment=environment or {},
        is_root=is_root,
        is_terminal=is_terminal,
    )
    return " ".join(composed)


@pytest.mark.parametrize(
    ("family", "hosts", "expected"),
    [
        ("mpich", (), "-bind-to none -np 8 train.py x=1"),
        ("mpich", EVEN, "-bind-to none -hosts a:4,b:4 -np 8 train.py x=1"),
        ("mpich", UNEVEN, "-bind-to none -hosts a:4,b:2 -np 6 train.py x=1"),
        ("intel-mpi", (), "-genv I_MPI_PIN off -np 8 train.py x=1"),
        ("intel-mpi", EVEN, "-genv I_MPI_PIN off -hosts a,b -ppn 4 -np 8 train.py x=1"),
        (
            "intel-mpi",
            UNEVEN,
            "-genv I_MPI_PIN off -host a -n 4 train.py x=1 : -host b -n 2 train.py x=1",
        ),
        ("open-mpi", (), "--bind-to none --map-by slot -np 8 train.py x=1"),
        ("open-mpi", EVEN, "--bind-to none --map-by slot --host a:4,b:4 -np 8 train.py x=1"),
        ("open-mpi", UNEVEN, "--bind-to none --map-by slot --host a:4,b:2 -np 6 train.py x=1"),
    ],
)
def test_each_family_gets_its_own_flags_and_binds_nothing(
    family: Family, hosts: tuple[tuple[str, int], ...], expected: str
) -> None:
    assert words(family, hosts) == f"/opt/mpirun {expected}"


def test_only_open_mpi_asks_root_for_a_flag() -> None:
    assert words("open-mpi", (), is_root=True).startswith("/opt/mpirun --allow-run-as-root ")
    assert "root" not in words("open-mpi", ())
    assert "root" not in words("mpich", (), is_root=True) + words("intel-mpi", (), is_root=True)


def test_open_mpi_is_told_which_variables_other_hosts_need() -> None:
    environment = {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "eth1", "HOME": "/root"}
    several = words("open-mpi", EVEN, environment=environment)
    assert "-x GLOO_SOCKET_IFNAME -x OMP_NUM_THREADS -np" in several and "HOME" not in several
    assert "-x" not in words("open-mpi", (), environment=environment)
    assert "-x" not in words("mpich", EVEN, environment=environment)


def test_open_mpi_whose_ranks_see_a_terminal_is_told_when_there_is_none() -> None:
    assert " -x TTY_COMPATIBLE=0 -np 8" in words("open-mpi", (), is_terminal=False)
    assert "TTY" not in words("open-mpi", ()) + words("mpich", (), is_terminal=False)


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
def test_scripts_are_run_by_this_python(command: list[str], expected: list[str]) -> None:
    assert by_this_python(command) == expected
