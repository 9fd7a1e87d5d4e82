import os
import sys
from pathlib import Path

import pytest

from launch import environment
from launch.environment import (
    BINDING_VARIABLES,
    installed_backend,
    rank_environment,
    use_environment,
)
from launch.shares import Share

SHARE = Share(
    socket=0,
    nodes=(0,),
    cpus=(4, 5, 8),
    comm_cpus=(9, 10),
    loader_cpus=(11, 27),
    threads=3,
    floating=False,
)
FLOATING = Share(
    socket=0, nodes=(0,), cpus=(0, 1, 2, 3), comm_cpus=(), loader_cpus=(), threads=2, floating=True
)


def variables(share: Share, *, openmp: str = "gnu", backend: str = "gloo") -> dict[str, str]:
    return rank_environment(share, openmp=openmp, backend=backend, local_rank=1, local_ranks=3)


def test_gnu_threads_have_one_core_each() -> None:
    assert variables(SHARE) == {"OMP_NUM_THREADS": "3", "GOMP_CPU_AFFINITY": "4 5 8"}


def test_intel_threads_have_one_core_each_and_sleep_early() -> None:
    assert variables(SHARE, openmp="intel") == {
        "OMP_NUM_THREADS": "3",
        "KMP_AFFINITY": "granularity=fine,explicit,proclist=[4,5,8]",
        "KMP_BLOCKTIME": "1",
    }


def test_floating_threads_are_bound_by_neither_library() -> None:
    assert variables(FLOATING) == {"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "false"}
    assert variables(FLOATING, openmp="intel") == {
        "OMP_NUM_THREADS": "2",
        "OMP_PROC_BIND": "false",
        "KMP_BLOCKTIME": "1",
    }


def test_ccl_worker_cores_are_repeated_for_each_local_rank() -> None:
    ccl = variables(SHARE, backend="ccl")
    assert ccl["CCL_WORKER_COUNT"] == "2"
    workers = ccl["CCL_WORKER_AFFINITY"].split(",")
    assert workers == ["9", "10", "9", "10", "9", "10"]  # 3 local ranks × 2 workers
    assert (ccl["CCL_PROCESS_LAUNCHER"], ccl["CCL_LOCAL_RANK"]) == ("none", "1")
    assert ccl["CCL_LOCAL_SIZE"] == "3"
    assert ccl["GOMP_CPU_AFFINITY"] == "4 5 8"


def test_ccl_without_reserved_cores_uses_the_last_core() -> None:
    ccl = variables(FLOATING, backend="ccl")
    assert (ccl["CCL_WORKER_COUNT"], ccl["CCL_WORKER_AFFINITY"]) == ("1", "3,3,3")


@pytest.mark.parametrize(
    ("library", "preloaded", "openmp"),
    [
        ("", "", "gnu"),
        ("libiomp5.so", "", "intel"),
        ("", "/lib/absent/libiomp5.so", "intel"),
        ("", "/lib/absent/libtcmalloc.so", "gnu"),
    ],
)
def test_intel_openmp_is_used_if_installed_or_preloaded(
    library: str, preloaded: str, openmp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    if library:
        (tmp_path / "lib" / library).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(environment, "intel_is_loaded", lambda: False)
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    assert environment.installed_openmp() == openmp


def test_backend_is_ccl_if_its_bindings_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "oneccl_bindings_for_pytorch.py").write_text("raise ImportError('not now')")
    assert installed_backend() == "ccl"


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*BINDING_VARIABLES, *variables(SHARE, openmp="intel", backend="ccl")):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("clean_environment")
def test_default_of_torchrun_is_replaced_without_note(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher, value, notes in (("torchrun", "1", 0), ("torchrun", "2", 1), ("mpich", "1", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        lines = use_environment(variables(SHARE), bound=True, launcher=launcher)
        assert len(lines) == notes
        assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.usefixtures("clean_environment")
def test_variables_of_the_user_that_bind_nothing_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMP_BLOCKTIME", "200")
    monkeypatch.setenv("CCL_PROCESS_LAUNCHER", "hydra")
    monkeypatch.setenv("CCL_WORKER_COUNT", "4")
    planned = variables(SHARE, openmp="intel", backend="ccl")
    [note] = use_environment(planned, bound=True, launcher="mpich")
    assert "CCL_WORKER_COUNT=4" in note and "launch.comm_cores" in note
    assert os.environ["KMP_BLOCKTIME"] == "200"
    assert os.environ["CCL_PROCESS_LAUNCHER"] == "hydra"
    assert os.environ["CCL_WORKER_COUNT"] == "2"
    assert os.environ["CCL_LOCAL_SIZE"] == "3"


@pytest.mark.usefixtures("clean_environment")
def test_unbound_rank_keeps_the_users_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    assert use_environment({"OMP_NUM_THREADS": "2"}, bound=False, launcher="none") == []
    assert (os.environ["KMP_AFFINITY"], os.environ["OMP_NUM_THREADS"]) == ("compact", "2")
