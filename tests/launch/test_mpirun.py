import sys
from pathlib import Path

import pytest

from common.errors import InputError
from launch.mpirun import choose_mpirun

OURS = Path(sys.prefix) / "bin"

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


def program(path: Path, says: str, *, status: int = 0) -> Path:
    """A program that answers --version; the words are those of the real ones."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "family"),
    [
        (HYDRA, "mpich"),
        (INTEL, "intel-mpi"),
        (OPEN_MPI, "open-mpi"),
        (PRRTE, "open-mpi"),
    ],
)
def test_the_family_is_read_from_its_version(says: str, family: str, tmp_path: Path) -> None:
    mpirun = program(tmp_path / "mpirun", says)
    found = choose_mpirun(mpirun)
    assert (found.path, found.family) == (mpirun, family)


def test_the_one_of_this_environment_is_mpich(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = choose_mpirun(None)
    assert (found.path, found.family) == (OURS / "mpirun", "mpich")


def test_the_clusters_own_goes_first_though_this_environment_is_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = program(tmp_path / "cluster" / "mpiexec", OPEN_MPI)
    monkeypatch.setenv("PATH", f"{OURS}:{tmp_path / 'empty'}:{other.parent}:/usr/bin:/bin")
    found = choose_mpirun(None)
    assert (found.path, found.family) == (other, "open-mpi")


def test_a_stranger_is_named_with_what_it_says(tmp_path: Path) -> None:
    stranger = program(tmp_path / "mpirun", "mpiexec.hydra: not found\nmore\n", status=127)
    with pytest.raises(InputError) as caught:
        choose_mpirun(stranger)
    assert str(caught.value) == (
        f"{stranger} --version says 'mpiexec.hydra: not found': not MPICH, Intel MPI or Open MPI; "
        "give another with --mpirun PATH"
    )


def test_a_path_that_is_no_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"--mpirun: {tmp_path} is not a program"):
        choose_mpirun(tmp_path)


def test_no_mpirun_at_all_is_one_line_with_three_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(InputError, match=r"no mpirun: .*requirements\.txt.* --mpirun PATH$"):
        choose_mpirun(None)
