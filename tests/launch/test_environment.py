"""Environment of a rank: variables, preloaded allocators, and the kernel's memory policy."""

import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from launch import environment
from launch.environment import (
    ALLOCATORS,
    BINDING_VARIABLES,
    STARTED_AGAIN,
    find,
    has_ccl,
    prefer_memory,
    preloading,
    rank_environment,
    use_environment,
)
from launch.shares import Share
from tests.launch.denied_calls import DENY
from tests.launch.ranks import REPOSITORY, run_python
from tests.support.commands import start_program
from tests.support.fast_precision import FAST_PRECISION

BOUND = Share(
    socket=0,
    nodes=(0,),
    cpus=(4, 5, 8),
    comm_cpus=(9, 10),
    loader_cpus=(11, 27),
    threads=3,
    floating=False,
)
FLOATING = replace(BOUND, cpus=(0, 1, 2, 3), comm_cpus=(), loader_cpus=(), threads=2, floating=True)


def variables(share: Share, *, openmp: str = "gnu", backend: str = "gloo") -> dict[str, str]:
    return rank_environment(share, openmp=openmp, backend=backend, local_rank=1, local_ranks=3)


INTEL = {"KMP_AFFINITY": "granularity=fine,explicit,proclist=[4,5,8]", "KMP_BLOCKTIME": "1"}
GNU = {"OMP_NUM_THREADS": "3", "GOMP_CPU_AFFINITY": "4 5 8"}
UNBOUND = {"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "false"}
CCL = {"CCL_PROCESS_LAUNCHER": "none", "CCL_LOCAL_RANK": "1", "CCL_LOCAL_SIZE": "3"}
TWO_WORKERS = {"CCL_WORKER_COUNT": "2", "CCL_WORKER_AFFINITY": "9,10,9,10,9,10"}
LAST_CORE = {"CCL_WORKER_COUNT": "1", "CCL_WORKER_AFFINITY": "3,3,3"}  # for each local rank


@pytest.mark.parametrize(
    ("share", "openmp", "backend", "expected"),
    [
        (BOUND, "gnu", "gloo", GNU),
        (BOUND, "intel", "gloo", {"OMP_NUM_THREADS": "3", **INTEL}),
        (FLOATING, "gnu", "gloo", UNBOUND),
        (FLOATING, "intel", "gloo", UNBOUND | {"KMP_BLOCKTIME": "1"}),
        (BOUND, "gnu", "ccl", GNU | CCL | TWO_WORKERS),
        (FLOATING, "gnu", "ccl", UNBOUND | CCL | LAST_CORE),
    ],
)
def test_variables_of_a_rank(
    share: Share, openmp: str, backend: str, expected: dict[str, str]
) -> None:
    assert variables(share, openmp=openmp, backend=backend) == expected


@pytest.mark.parametrize(
    ("library", "is_loaded", "openmp"),
    [(None, False, "gnu"), ("libiomp5.so", False, "intel"), (None, True, "intel")],
)
def test_intel_openmp_is_used_if_installed_or_preloaded(
    library: str | None,
    is_loaded: bool,
    openmp: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "lib").mkdir()
    if library:
        (tmp_path / "lib" / library).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(environment, "intel_is_loaded", lambda: is_loaded)
    assert environment.installed_openmp() == openmp


def test_bindings_of_ccl_are_found_without_loading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "oneccl_bindings_for_pytorch.py").write_text("raise ImportError('not now')")
    assert has_ccl()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*BINDING_VARIABLES, *variables(BOUND, openmp="intel", backend="ccl")):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("clean_environment")
def test_default_of_torchrun_is_replaced_without_note(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher, value, notes in (("torchrun", "1", 0), ("torchrun", "2", 1), ("mpich", "1", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        lines = use_environment(variables(BOUND), bound=True, launcher=launcher)
        assert len(lines) == notes
        assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.usefixtures("clean_environment")
def test_variables_of_the_user_that_bind_nothing_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"KMP_BLOCKTIME": "200", "CCL_PROCESS_LAUNCHER": "hydra"}
    for name, value in (*users.items(), ("CCL_WORKER_COUNT", "4")):
        monkeypatch.setenv(name, value)
    planned = variables(BOUND, openmp="intel", backend="ccl")
    [note] = use_environment(planned, bound=True, launcher="mpich")
    assert "CCL_WORKER_COUNT=4" in note and "launch.comm_cores" in note
    assert (planned | users).items() <= os.environ.items()


@pytest.mark.usefixtures("clean_environment")
def test_unbound_rank_keeps_the_users_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    assert use_environment({"OMP_NUM_THREADS": "2"}, bound=False, launcher="none") == []
    assert (os.environ["KMP_AFFINITY"], os.environ["OMP_NUM_THREADS"]) == ("compact", "2")


FAULTS_OF_TEN_TENSORS = """
import sys
from launch.environment import set_allocator
from common.machine import page_faults
set_allocator(sys.argv[1])
import torch
torch.set_num_threads(1)
for _ in range(25):  # the heap takes four to eight rounds to grow as far as it has to
    torch.ones(10_000_000)
before = page_faults()
for _ in range(10):
    torch.ones(10_000_000)
print(page_faults() - before)
"""

PROCESS = """
import json, os, sys
from launch.environment import set_allocator
from common.cli import run_command
def main():
    set_allocator(sys.argv[1])
    maps = open("/proc/self/maps").read()
    print(json.dumps({
        "pid": os.getpid(),
        "arguments": sys.argv[1:],
        "flags": [sys.flags.utf8_mode, sys.warnoptions],
        "environment": dict(os.environ),
        "loaded": [name for name in ("tcmalloc", "jemalloc") if f"/lib{name}" in maps],
        "pipe": os.read(int(sys.argv[2]), 5).decode() if len(sys.argv) > 2 else None,
    }))
    return 0
sys.exit(run_command(main))
"""


def faults(policy: str) -> int:
    done = run_python(FAULTS_OF_TEN_TENSORS, policy)
    assert done.code == 0, done.errors
    return int(done.output)


@pytest.fixture(scope="module")
def faults_of_system() -> int:
    return faults("system")


@pytest.fixture(params=ALLOCATORS)
def allocator(request: pytest.FixtureRequest) -> str:
    """The name of an installed allocator; if it is not, check the error of the command."""
    name: str = request.param
    if find(ALLOCATORS[name]) is None:
        done = run_python(PROCESS, name)
        assert done.code == 2 and done.errors.count("\n") == 1, done.errors
        assert f"error: engine.allocator: {name}: its library is not installed" in done.errors
        assert f"apt-get install {ALLOCATORS[name].package}" in done.errors
        pytest.skip(f"{name} is not installed")
    return name


@pytest.mark.exhaustive
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the policy is glibc's")
def test_tuned_allocator_causes_few_page_faults(faults_of_system: int) -> None:
    assert faults("tuned") < faults_of_system / 20


@pytest.mark.slow
def test_preloaded_allocator_causes_few_page_faults(allocator: str, faults_of_system: int) -> None:
    assert faults(allocator) < faults_of_system / 20


def test_restarted_command_is_unchanged(allocator: str) -> None:
    read, write = os.pipe()
    os.write(write, b"hello")
    command = [sys.executable, "-X", "utf8", "-W", "error::UserWarning", "-c", PROCESS, allocator]
    command += [str(read), "a b", "--c=ü"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, pass_fds=[read])
    output, _ = process.communicate(timeout=60)
    result = json.loads(output)
    assert (result["loaded"], result["pid"]) == ([allocator], process.pid)
    assert result["arguments"] == [allocator, str(read), "a b", "--c=ü"]
    assert result["flags"] == [1, ["error::UserWarning"]]
    assert result["pipe"] == "hello"  # as mpirun's processes have one
    assert ALLOCATORS[allocator].settings.items() <= result["environment"].items()
    assert STARTED_AGAIN not in result["environment"]  # children would inherit it


def test_library_preloaded_by_the_user_is_kept(allocator: str) -> None:
    library = str(find(ALLOCATORS[allocator]))
    done = run_python(PROCESS, allocator, LD_PRELOAD=library)
    variables = json.loads(done.output)["environment"]
    assert variables["LD_PRELOAD"] == library
    assert not set(ALLOCATORS[allocator].settings) & set(variables)


def test_settings_of_the_user_have_priority() -> None:
    given = {"LD_PRELOAD": "/lib/other.so", "MALLOC_CONF": "narenas:1", "HOME": "/root"}
    settings = {"MALLOC_CONF": "thp:always", "MORE": "1"}
    assert preloading(given, "libjemalloc.so.2", settings) == {
        "LD_PRELOAD": "libjemalloc.so.2:/lib/other.so",
        "MALLOC_CONF": "narenas:1",
        "MORE": "1",
        "HOME": "/root",
    }


@pytest.mark.parametrize("name", ALLOCATORS)
def test_library_that_the_linker_refuses_is_an_error(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / f"lib{ALLOCATORS[name].libraries[0]}.so.9").write_text("no library")
    text = f"import sys; sys.prefix = {str(tmp_path)!r}\n{PROCESS}"
    done = run_python(text, name)
    assert done.code == 2, done.errors
    last = done.errors.splitlines()[-1]  # the linker complains first, in its own words
    assert last.startswith(f"error: engine.allocator: {name}: {folder}/lib")
    assert "cannot be preloaded; apt-get install" in last


def test_missing_library_is_an_error_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_library", lambda name: None)
    monkeypatch.setattr(environment, "is_loaded", lambda allocator: False)
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    with pytest.raises(InputError, match="apt-get install libjemalloc2") as caught:
        environment.set_allocator("jemalloc")
    assert "\n" not in str(caught.value)


def test_training_and_signals_under_a_preloaded_allocator(allocator: str, tmp_path: Path) -> None:
    overrides = ["data.scenes={train: 8, validation: 2}", "data.image_size=64"]
    overrides += ["training.batch_size=2", "training.epochs=1000", "evaluation.every=1000"]
    overrides += [f"engine.precision={FAST_PRECISION}", f"engine.allocator={allocator}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = (sys.executable, "train.py", *overrides, f"run.root={tmp_path}")
    process = start_program(*command, env=environment)
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("epoch"))  # the first step is done
    assert f"/lib{allocator}" in Path(f"/proc/{process.pid}/maps").read_text()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, "")
    shutil.rmtree(tmp_path)


def test_what_comes_before_torch_loads_neither_it_nor_numpy() -> None:
    text = "import sys, launch.pinning, launch.plan, launch.run; print({*sys.modules})"
    output = run_python(text).output
    assert "'launch.run'" in output and "'torch'" not in output and "'numpy'" not in output


PRINT_POLICY = """
import ctypes, os, platform
from launch.environment import MPOL_PREFERRED_MANY, SYSTEM_CALLS, set_policy
from launch.environment import prefer_memory as prefer
def policy():
    call = {"x86_64": 239, "aarch64": 236}[platform.machine()]
    mode, nodes = ctypes.c_int(), (ctypes.c_ulong * 16)()
    if ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(call), ctypes.byref(mode), nodes, ctypes.c_ulong(1024), None, ctypes.c_long(0)
    ):
        raise OSError(ctypes.get_errno())
    bits = sum(word << 64 * place for place, word in enumerate(nodes))
    return mode.value, [node for node in range(1024) if bits >> node & 1]
"""

CHILD = "print(prefer([0], allowed=[0, 1]), policy(), flush=True); os.fork() or print(policy())"
DENIED = f"{DENY}deny(SYSTEM_CALLS[platform.machine()])\nprint(prefer([0, 1], allowed=[0, 1, 2]))"
SINGLE = "print(prefer([0], allowed=[0]), prefer([0], allowed=[]), policy())"
UNKNOWN = "memory node 900: the memory policy cannot be set (Invalid argument)"


@pytest.mark.skipif(
    platform.machine() not in environment.SYSTEM_CALLS, reason="the call's number is not known"
)
@pytest.mark.parametrize(
    ("program", "output"),
    [
        (CHILD, "None (1, [0])\n(1, [0])"),  # MPOL_PREFERRED
        ("print(set_policy(MPOL_PREFERRED_MANY, [0]), policy())", "None (5, [0])"),
        (SINGLE, "None None (0, [])"),
        ("print(prefer([900], allowed=[0, 900]))", UNKNOWN),
        (DENIED, "memory nodes 0, 1: the memory policy is not permitted"),
    ],
    ids=["child", "several", "single", "unknown", "denied"],
)
def test_memory_policy_of_a_process(program: str, output: str) -> None:
    done = run_python(f"{PRINT_POLICY}{program}")
    assert done.code == 0, done.errors
    if done.output.startswith(str(errno.EINVAL)):
        pytest.skip("the kernel is older than 5.15")
    assert done.output.startswith(output)
    assert ("--cap-add SYS_NICE" in done.output) == (program == DENIED)


def test_nodes_that_are_not_allowed_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    preferred: list[list[int]] = []
    monkeypatch.setattr(environment, "set_policy", lambda mode, nodes: preferred.append(nodes))
    assert prefer_memory([2, 3], allowed=[0, 3, 4]) is None
    assert preferred == [[3]]
    note = prefer_memory([2], allowed=[0, 1])
    assert note is not None and note.startswith("memory node 2: not allowed")
    assert preferred == [[3]]
