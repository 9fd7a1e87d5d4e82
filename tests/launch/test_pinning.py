import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from launch.compute_threads import calling_thread_on
from launch.environment import ALLOCATORS, find, intel_is_loaded
from launch.limits import read_allowance
from launch.pinning import pin
from launch.ranks import Ranks
from launch.shares import CoreRequest
from launch.topology import read_topology
from tests.launch.denied_calls import DENY
from tests.launch.ranks import REPOSITORY

BIN = Path(sys.executable).parent
CPUS = sorted(os.sched_getaffinity(0))
CORES = read_topology().restricted(CPUS).core_count
HALF = json.dumps({"request": {"threads": CORES // 2}})

pytestmark = [
    pytest.mark.whole_machine,
    pytest.mark.skipif(CORES < 2, reason="one core leaves nothing to bind to"),
    pytest.mark.skipif(
        read_allowance().quota is not None, reason="under a CPU quota ranks are not bound"
    ),
    pytest.mark.skipif(intel_is_loaded(), reason="the tests themselves run under libiomp5"),
]

# A rank starts like train.py: set_allocator, pin, import torch, check. It prints its resources.
RANK = """
import json, os, subprocess, sys, threading
if "STARTS" in os.environ:
    os.write(int(os.environ["STARTS"]), b"s")
from launch.environment import set_allocator
from launch.pinning import check_cores, pin
from launch.limits import thread_affinities
from launch.ranks import read_ranks
from launch.shares import CoreRequest
ranks = read_ranks(os.environ)
set_allocator(os.environ.get("POLICY", "system"), with_openmp=True)
affinities = None
if ranks.launcher == "mpich":
    from mpi4py import MPI
    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    affinities = host.allgather(frozenset(os.sched_getaffinity(0)))
options = json.loads(os.environ.get("OPTIONS", "{}"))
request = CoreRequest(**options.pop("request", {}))
pinned = pin(ranks, affinities=affinities, request=request, backend="gloo", **options)
exec(os.environ.get("BEFORE_CHECK", ""))
corrected = check_cores(pinned.share, openmp=pinned.openmp, bound=pinned.enabled)
import torch
inherited = {}
thread = threading.Thread(target=lambda: inherited.update(thread=sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
child = "import os, torch; print(sorted(os.sched_getaffinity(0)))"
if "CHILD" in os.environ:
    inherited["process"] = json.loads(subprocess.check_output([sys.executable, "-c", child]))
answer = {
    "rank": ranks.rank, "cpus": pinned.share.cpus, "notes": pinned.notes, "openmp": pinned.openmp,
    "threads": [pinned.share.threads, torch.get_num_threads()], "inherited": inherited,
    "environment": dict(pinned.environment), "variables": dict(os.environ),
    "corrected": corrected, "main": sorted(os.sched_getaffinity(0)),
    "compute": sorted(sorted(c) for t, c in thread_affinities().items() if t != os.getpid()),
}
os.write(1, (json.dumps(answer) + "\\n").encode())
"""


def start(
    *command: str, text: str = RANK, files: tuple[int, ...] = (), **variables: str
) -> list[dict[str, Any]]:
    """Start ranks by a launcher; return their resources in order of rank."""
    clean = {name: value for name, value in os.environ.items() if "OMP" not in name}
    done = subprocess.run(
        [*command, sys.executable, "-c", text], cwd=REPOSITORY, env={**clean, **variables},
        capture_output=True, text=True, check=False, pass_fds=files,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(answers, key=lambda answer: int(answer["rank"]))


def mpirun() -> str:
    if not (BIN / "mpirun").exists():
        pytest.skip("MPICH is not installed in this environment")
    return str(BIN / "mpirun")


def test_compute_threads_have_one_core_each_and_children_all() -> None:
    (answer,) = start(
        CHILD="1",
        OMP_NUM_THREADS="77",
        GOMP_CPU_AFFINITY="0",
        OMP_PROC_BIND="close",
        KMP_BLOCKTIME="5",
    )
    cpus = answer["cpus"]
    assert answer["threads"] == [len(cpus), len(cpus)]
    assert [[cpu] for cpu in cpus[1:]] == [mask for mask in answer["compute"] if len(mask) == 1]
    assert answer["environment"]["GOMP_CPU_AFFINITY"].split() == [str(cpu) for cpu in cpus]
    assert (answer["main"], answer["corrected"]) == (cpus, [])
    assert answer["inherited"] == {"thread": cpus, "process": cpus}
    assert "GOMP_CPU_AFFINITY" not in answer["variables"]
    # What the user had set is noted: GOMP_CPU_AFFINITY counted, not OMP_PROC_BIND.
    starts = ["OMP_PROC_BIND=close", "GOMP_CPU_AFFINITY=0", "OMP_NUM_THREADS=77"]
    for note, variable in zip(answer["notes"][-3:], starts, strict=True):
        assert note.startswith(f"{variable} in the environment is ignored; ")
    assert answer["variables"]["KMP_BLOCKTIME"] == "5"


def test_two_ranks_share_the_host_without_overlap() -> None:
    answers = start(mpirun(), "-np", "2", CHILD="1", OPTIONS=HALF)
    first, second = (set(answer["cpus"]) for answer in answers)
    assert not first & second and first | second <= set(CPUS)
    for answer in answers:
        assert answer["main"] == answer["cpus"] == answer["inherited"]["process"]
        assert answer["threads"] == [len(answer["cpus"])] * 2
        assert answer["corrected"] == []


@pytest.mark.exhaustive
def test_two_ranks_of_torchrun_share_the_host() -> None:
    torchrun = [str(BIN / "torchrun"), "--nproc-per-node=2", "--no-python"]
    first, second = start(*torchrun, OPTIONS=HALF)
    assert len(first["cpus"]) == len(second["cpus"]) == CORES // 2
    assert not set(first["cpus"]) & set(second["cpus"])
    assert first["variables"]["OMP_NUM_THREADS"] == str(CORES // 2)


def test_stray_thread_is_moved_to_the_cores_of_the_rank() -> None:
    (answer,) = start(
        OPTIONS='{"request": {"threads": 1}}',
        BEFORE_CHECK=f"""
def stray():
    os.sched_setaffinity(0, {CPUS})
    ready.set()
    threading.Event().wait()
ready = threading.Event()
threading.Thread(target=stray, daemon=True).start()
ready.wait()
""",
    )
    assert answer["threads"] == [1, 1]
    assert answer["main"] == answer["cpus"] and len(answer["cpus"]) == 1
    [note] = answer["corrected"]
    assert note.startswith("1 threads ran") and "moved back" in note
    assert all(set(mask) <= set(answer["cpus"]) for mask in answer["compute"])


def test_without_pinning_only_the_number_of_threads_is_set() -> None:
    (answer,) = start(OPTIONS='{"enabled": false}', OMP_PROC_BIND="false")
    assert answer["main"] == CPUS
    assert all(mask == CPUS for mask in answer["compute"])
    assert answer["environment"] == {"OMP_NUM_THREADS": str(answer["threads"][0])}
    assert answer["variables"]["OMP_PROC_BIND"] == "false"
    assert (answer["notes"], answer["corrected"]) == ([], [])


@pytest.mark.exhaustive
def test_two_ranks_without_pinning_share_the_number_of_cores() -> None:
    first, second = start(mpirun(), "-np", "2", OPTIONS='{"enabled": false}')
    assert first["main"] == second["main"] == CPUS
    assert 1 <= first["threads"][0] == second["threads"][1] <= len(CPUS) // 2


def test_number_and_cores_of_threads_are_corrected() -> None:
    changes = "os.environ['OMP_NUM_THREADS'] = '1'; del os.environ['GOMP_CPU_AFFINITY']"
    (answer,) = start(BEFORE_CHECK=changes)
    threads = len(answer["cpus"])
    assert answer["threads"] == [threads, threads]
    count, cores = answer["corrected"]
    assert f"1 compute threads instead of {threads}" in count
    assert cores.startswith("the compute threads ran on CPUs ")
    bound = [mask for mask in answer["compute"] if len(mask) == 1]
    assert bound == [[cpu] for cpu in answer["cpus"][1:]]


SCHED_SETAFFINITY = {"x86_64": 203, "aarch64": 122}


def test_container_that_does_not_permit_binding_gives_a_note() -> None:
    (answer,) = start(text=f"{DENY}deny({SCHED_SETAFFINITY[platform.machine()]})\n{RANK}")
    (note,) = [note for note in answer["notes"] if "cannot be bound" in note]
    assert "(Operation not permitted)" in note
    assert answer["main"] == answer["cpus"] == CPUS
    assert answer["threads"][0] == answer["threads"][1] > 1
    assert answer["environment"]["OMP_PROC_BIND"] == "false"  # else libgomp ends the process


def test_threads_float_under_a_cpu_quota() -> None:
    quota = "import launch.limits; launch.limits.read_quota = lambda **paths: 1.5\n"
    (answer,) = start(text=quota + RANK)
    assert answer["threads"] == [1, 1]
    assert answer["environment"] == {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}
    assert len(answer["main"]) > 1
    assert answer["main"] == answer["cpus"]
    assert answer["corrected"] == []


def test_pinning_after_torch_is_a_bug() -> None:
    import torch  # noqa: F401

    ranks = Ranks(rank=0, size=1, local_rank=0, local_size=1, launcher="none")
    with pytest.raises(AssertionError, match="torch has made its threads already"):
        pin(ranks, affinities=None, request=CoreRequest(), backend="gloo")


@pytest.fixture
def with_intel_openmp(tmp_path: Path) -> str:
    """Return Python code that replaces the environment by a folder with a libiomp5.

    It is an empty library: the linker accepts it, and torch still uses libgomp.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a library with")
    (tmp_path / "lib").mkdir()
    library = str(tmp_path / "lib" / "libiomp5.so")
    command = [compiler, "-shared", "-x", "c", "/dev/null", "-o", library]
    subprocess.run(command, check=True)
    return f"import sys; sys.prefix = {str(tmp_path)!r}\n"


def count_starts(text: str, *command: str, **variables: str) -> tuple[list[dict[str, Any]], int]:
    read, write = os.pipe()
    answers = start(*command, text=text, files=(write,), STARTS=str(write), **variables)
    os.close(write)
    return answers, len(os.read(read, 100))


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_allocator_and_openmp_are_preloaded_by_one_restart(
    with_intel_openmp: str, ranks: int
) -> None:
    policy = next((name for name in ALLOCATORS if find(ALLOCATORS[name])), "system")
    launcher = [mpirun(), "-np", "2"] if ranks == 2 else []
    libmpi = {"MPI4PY_LIBMPI": str(next((BIN.parent / "lib").glob("libmpi.so.*"), "libmpi.so"))}
    answers, starts = count_starts(
        with_intel_openmp + RANK, *launcher, POLICY=policy, OPTIONS=HALF, **libmpi
    )
    assert starts == 2 * ranks
    for answer in answers:
        assert answer["openmp"] == "intel"
        assert answer["environment"]["KMP_BLOCKTIME"] == "1"
        preloaded = answer["variables"]["LD_PRELOAD"].split(":")
        assert preloaded[-1].endswith("/lib/libiomp5.so")
        assert len(preloaded) == (2 if policy in ALLOCATORS else 1)


@pytest.mark.exhaustive
def test_openmp_library_that_the_linker_refuses_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").write_text("no library")
    text = f"import sys; sys.prefix = {str(tmp_path)!r}\n{RANK}"
    (answer,), starts = count_starts(text)
    assert starts == 2
    assert answer["openmp"] == "gnu"
    assert answer["corrected"] == []


def test_threads_start_on_the_cpus_of_their_context() -> None:
    seen = {}

    def record(name: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            seen[name] = pool.submit(os.sched_getaffinity, 0).result()

    def run() -> None:
        with calling_thread_on((CPUS[-1],)):
            record("within")
        record("after")
        with calling_thread_on(()):
            record("none")

    with ThreadPoolExecutor(1) as pool:  # the affinity of the main thread is not touched
        pool.submit(run).result()
    assert seen == {"within": {CPUS[-1]}, "after": set(CPUS), "none": set(CPUS)}
