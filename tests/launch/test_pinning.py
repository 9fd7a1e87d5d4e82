import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.environment import ALLOCATORS, find, intel_is_loaded
from launch.limits import read_allowance
from launch.topology import read_topology

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
CPUS = sorted(os.sched_getaffinity(0))
CORES = len({cpu.core for cpu in read_topology().restricted(CPUS).cpus})
HALF = json.dumps({"request": {"threads": CORES // 2}})

pytestmark = [
    pytest.mark.whole_machine,
    pytest.mark.skipif(CORES < 2, reason="one core leaves nothing to bind to"),
    pytest.mark.skipif(
        read_allowance().quota is not None, reason="under a CPU quota ranks are not bound"
    ),
    pytest.mark.skipif(intel_is_loaded(), reason="the tests themselves run under libiomp5"),
]

# A rank as train.py is one: preloads, the meeting, pinning, torch, the check; then what it has.
RANK = """
import json, os, subprocess, sys, threading
if "STARTS" in os.environ:
    os.write(int(os.environ["STARTS"]), b"s")
from launch.pinning import check_pinning, pin, preload
from launch.limits import thread_affinities
from launch.ranks import read_ranks
from launch.shares import CoreRequest
ranks = read_ranks(os.environ)
preload(os.environ.get("POLICY", "system"))
affinities = None
if ranks.launcher == "mpich":
    from mpi4py import MPI
    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    affinities = host.allgather(frozenset(os.sched_getaffinity(0)))
options = json.loads(os.environ.get("OPTIONS", "{}"))
request = CoreRequest(**options.pop("request", {}))
pinned = pin(ranks, affinities=affinities, request=request, backend="gloo", **options)
exec(os.environ.get("MEANWHILE", ""))
found = check_pinning(pinned)
import torch
inherited = {}
thread = threading.Thread(target=lambda: inherited.update(thread=sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
ask = "import os, torch; print(sorted(os.sched_getaffinity(0)))"
if "ASK" in os.environ:
    inherited["process"] = json.loads(subprocess.check_output([sys.executable, "-c", ask]))
answer = {
    "rank": ranks.rank,
    "cpus": pinned.share.cpus,
    "threads": [pinned.share.threads, torch.get_num_threads()],
    "environment": dict(pinned.environment),
    "notes": pinned.notes,
    "openmp": pinned.openmp,
    "found": found,
    "main": sorted(os.sched_getaffinity(0)),
    "compute": sorted(sorted(c) for t, c in thread_affinities().items() if t != os.getpid()),
    "inherited": inherited,
    "variables": dict(os.environ),
}
os.write(1, (json.dumps(answer) + "\\n").encode())
"""


def start(
    *command: str,
    text: str = RANK,
    files: tuple[int, ...] = (),
    **variables: str,
) -> list[dict[str, Any]]:
    """What the ranks that a launcher starts say, in order of rank."""
    clean = {name: value for name, value in os.environ.items() if "OMP" not in name}
    done = subprocess.run(
        [*command, sys.executable, "-c", text],
        cwd=REPOSITORY,
        env={**clean, **variables},
        capture_output=True,
        text=True,
        check=False,
        pass_fds=files,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(answers, key=lambda answer: int(answer["rank"]))


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    (answer,) = start(ASK="1")
    return answer


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    return start(mpirun(), "-np", "2", ASK="1", OPTIONS=HALF)


def mpirun() -> str:
    if not (BIN / "mpirun").exists():
        pytest.skip("MPICH is not installed in this environment")
    return str(BIN / "mpirun")


def test_compute_threads_have_a_core_each(alone: dict[str, Any]) -> None:
    cpus = alone["cpus"]
    assert alone["threads"] == [len(cpus), len(cpus)]
    assert [[cpu] for cpu in cpus[1:]] == [mask for mask in alone["compute"] if len(mask) == 1]
    assert alone["found"] == []
    assert alone["environment"]["GOMP_CPU_AFFINITY"].split() == [str(cpu) for cpu in cpus]


def test_what_the_main_thread_starts_may_use_all_of_the_ranks_cores(alone: dict[str, Any]) -> None:
    assert alone["main"] == alone["cpus"]
    assert alone["inherited"] == {"thread": alone["cpus"], "process": alone["cpus"]}
    assert "GOMP_CPU_AFFINITY" not in alone["variables"]


def test_two_ranks_share_the_host_without_overlap(two_ranks: list[dict[str, Any]]) -> None:
    first, second = two_ranks
    assert not set(first["cpus"]) & set(second["cpus"])
    assert {*first["cpus"], *second["cpus"]} <= set(CPUS)
    for answer in two_ranks:
        assert answer["main"] == answer["cpus"] == answer["inherited"]["process"]
        assert answer["threads"] == [len(answer["cpus"])] * 2
        assert answer["found"] == []


def test_two_ranks_of_torchrun_share_the_host_too() -> None:
    torchrun = [str(BIN / "torchrun"), "--nproc-per-node=2", "--no-python"]
    first, second = start(*torchrun, OPTIONS=HALF)
    assert len(first["cpus"]) == len(second["cpus"]) == CORES // 2
    assert not set(first["cpus"]) & set(second["cpus"])
    assert first["variables"]["OMP_NUM_THREADS"] == str(CORES // 2)


def test_what_the_user_set_and_is_not_used_is_told() -> None:
    (answer,) = start(
        OMP_NUM_THREADS="77", GOMP_CPU_AFFINITY="0", OMP_PROC_BIND="close", KMP_BLOCKTIME="5"
    )
    assert answer["notes"][-3:] == [
        "OMP_PROC_BIND=close of the environment is not used; launch.pin=false leaves it in force",
        "GOMP_CPU_AFFINITY=0 of the environment is not used; launch.pin=false leaves it in force",
        "OMP_NUM_THREADS=77 of the environment is not used; launch.threads=77 asks for it",
    ]
    assert answer["found"] == []  # so GOMP_CPU_AFFINITY counted: OMP_PROC_BIND goes before it
    assert answer["variables"]["KMP_BLOCKTIME"] == "5"


def test_fewer_threads_are_bound_to_the_first_cores() -> None:
    (answer,) = start(OPTIONS=json.dumps({"request": {"threads": 1, "loader_cores": 1}}))
    assert answer["threads"] == [1, 1]
    assert answer["main"] == answer["cpus"]
    assert len(answer["cpus"]) == 1


def test_without_pinning_only_the_number_of_threads_is_set() -> None:
    (answer,) = start(OPTIONS='{"enabled": false}', OMP_PROC_BIND="false")
    assert answer["main"] == CPUS
    assert all(mask == CPUS for mask in answer["compute"])
    assert answer["environment"] == {"OMP_NUM_THREADS": str(answer["threads"][0])}
    assert answer["variables"]["OMP_PROC_BIND"] == "false"
    assert (answer["notes"], answer["found"]) == ([], [])


def test_two_ranks_without_pinning_share_the_number_of_cores() -> None:
    first, second = start(mpirun(), "-np", "2", OPTIONS='{"enabled": false}')
    assert first["main"] == second["main"] == CPUS
    assert 1 <= first["threads"][0] == second["threads"][1] <= len(CPUS) // 2


def test_a_number_of_threads_that_came_to_nothing_is_put_right() -> None:
    (answer,) = start(MEANWHILE="os.environ['OMP_NUM_THREADS'] = '1'")
    threads = len(answer["cpus"])
    assert answer["threads"] == [threads, threads]
    expected = f"torch made 1 compute threads, {threads} were planned: set to {threads}"
    assert answer["found"] == [expected]


def test_threads_that_were_not_bound_are_bound() -> None:
    (answer,) = start(MEANWHILE="del os.environ['GOMP_CPU_AFFINITY']")
    (found,) = answer["found"]
    assert found.startswith("the compute threads were on CPUs ") and found.endswith("to those")
    bound = [mask for mask in answer["compute"] if len(mask) == 1]
    assert bound == [[cpu] for cpu in answer["cpus"][1:]]


def test_a_thread_elsewhere_is_brought_back() -> None:
    (answer,) = start(
        OPTIONS='{"request": {"threads": 1}}',
        MEANWHILE=f"""
def stray():
    os.sched_setaffinity(0, {CPUS})
    ready.set()
    threading.Event().wait()
ready = threading.Event()
threading.Thread(target=stray, daemon=True).start()
ready.wait()
""",
    )
    assert answer["found"] == ["1 threads were not on this rank's CPUs: brought back"]
    assert [0] * len(answer["compute"]) == [
        len(set(mask) - set(answer["cpus"])) for mask in answer["compute"]
    ]


NO_BINDING = """
import ctypes, errno, os, platform, struct
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
call = {"x86_64": 203, "aarch64": 122}[platform.machine()]  # sched_setaffinity
steps = struct.pack(
    "HBBI" * 4,
    *(0x20, 0, 0, 0), *(0x15, 0, 1, call), *(0x06, 0, 0, 0x50001), *(0x06, 0, 0, 0x7FFF0000),
)
code = ctypes.create_string_buffer(steps)
program = Program(4, ctypes.cast(code, ctypes.c_void_p))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(program)) == 0
"""


def test_a_container_that_does_not_permit_binding_goes_on_and_says_so() -> None:
    (answer,) = start(text=NO_BINDING + RANK)
    (note,) = [note for note in answer["notes"] if "cannot be bound" in note]
    assert "(Operation not permitted)" in note
    assert answer["main"] == answer["cpus"] == CPUS
    assert answer["threads"][0] == answer["threads"][1] > 1
    assert answer["environment"]["OMP_PROC_BIND"] == "false"  # else libgomp ends the process


def test_under_a_cpu_quota_threads_float() -> None:
    quota = "import launch.limits; launch.limits.read_quota = lambda **paths: 1.5\n"
    (answer,) = start(text=quota + RANK)
    assert answer["threads"] == [1, 1]
    assert answer["environment"] == {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}
    assert len(answer["main"]) > 1
    assert answer["main"] == answer["cpus"]
    assert answer["found"] == []


def test_pinning_after_torch_is_our_own_mistake() -> None:
    text = RANK.replace("ranks = read_ranks", "import torch; ranks = read_ranks")
    with pytest.raises(AssertionError, match="torch has made its threads already"):
        start(text=text)


def test_pinning_loads_neither_torch_nor_numpy() -> None:
    text = "import sys, launch.pinning; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY, check=True)


@pytest.fixture
def with_intel_openmp(tmp_path: Path) -> str:
    """Python code that makes a folder this environment, in which a libiomp5 lies.

    It is an empty library of that name: the linker takes it, and torch goes on with libgomp.
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_allocator_and_openmp_are_preloaded_in_one_start(
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


def test_an_openmp_library_that_the_linker_refuses_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").write_text("no library")
    text = f"import sys; sys.prefix = {str(tmp_path)!r}\n{RANK}"
    (answer,), starts = count_starts(text)
    assert starts == 2
    assert answer["openmp"] == "gnu"
    assert answer["found"] == []


def test_threads_that_communicate_are_started_on_cores_of_their_own() -> None:
    text = f"""
import json, os, threading
from launch.compute_threads import calling_thread_on
found = dict(rank=0)
def note(name):
    look = lambda: found.update({{name: sorted(os.sched_getaffinity(0))}})
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
with calling_thread_on(({CPUS[-1]},)):
    note("within")
note("after")
with calling_thread_on(()):
    note("on none")
print(json.dumps(found))
"""
    (found,) = start(text=text)
    assert found == {"rank": 0, "within": CPUS[-1:], "after": CPUS, "on none": CPUS}
