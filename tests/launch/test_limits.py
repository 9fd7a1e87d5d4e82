"""Resources of a process: CPUs, CPU quota, memory, and the binding of its launcher."""

import os
from pathlib import Path

import pytest

from common.errors import InputError
from launch.limits import (
    FreeMemory,
    Part,
    checked_part,
    cpus_of_job,
    free_memory,
    given_part,
    host_cpus,
    read_allowance,
    slurm_affinities,
)
from launch.ranks import Ranks
from tests.launch.topologies import TWO_SOCKETS

GIB = 1 << 30


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


NESTED_V2 = {
    "proc/cgroup": "0::/jobs/mine/step\n",
    "cgroup/jobs/cpu.max": "800000 100000\n",
    "cgroup/jobs/mine/cpu.max": "150000 100000\n",
    "cgroup/jobs/mine/step/cpu.max": "max 100000\n",
}


def v2_group(path: str, quota: str) -> dict[str, str]:
    """A control group that is mounted at the root, as inside a container."""
    return {"proc/cgroup": f"0::{path}\n", "cgroup/cpu.max": quota}


def v1_groups(controllers: str) -> dict[str, str]:
    group = f"cgroup/{controllers}/jobs"
    return {
        "proc/cgroup": f"9:cpuset:/\n4:{controllers}:/jobs/mine\n0::/\n",
        f"{group}/cpu.cfs_quota_us": "300000\n",
        f"{group}/cpu.cfs_period_us": "100000\n",
        f"{group}/mine/cpu.cfs_quota_us": "-1\n",
        f"{group}/mine/cpu.cfs_period_us": "100000\n",
    }


SHORT_NAME_V1 = {
    "proc/cgroup": "4:cpu,cpuacct:/docker/box\n",
    "cgroup/cpu/cpu.cfs_quota_us": "75000\n",
    "cgroup/cpu/cpu.cfs_period_us": "50000\n",
}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        (NESTED_V2, 1.5),  # the lowest quota up to the root
        (v2_group("/kubepods/pod1/box", "250000 100000\n"), 2.5),
        (v2_group("/", "50000 100000\n"), 0.5),
        (v2_group("/../outside", "50000 100000\n"), 0.5),  # a private namespace
        *((v1_groups(names), 3.0) for names in ("cpu,cpuacct", "cpuacct,cpu", "cpu")),
        (SHORT_NAME_V1, 1.5),
        *((v2_group("/", text), None) for text in ("max 100000\n", "", "nonsense\n", "0 100000\n")),
        ({}, None),
    ],
)
def test_cpu_quota_of_control_groups(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    write_files(tmp_path, files)
    allowance = read_allowance(process=tmp_path / "proc", cgroups=tmp_path / "cgroup")
    assert (allowance.quota, allowance.memory_nodes) == (quota, frozenset())


def test_memory_nodes_and_cpus_of_the_process(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/status": "Name:\tpython\nMems_allowed_list:\t0,2\n"})
    allowance = read_allowance(process=tmp_path / "proc", cgroups=tmp_path / "cgroup")
    assert allowance.memory_nodes == {0, 2}
    assert read_allowance().cpus == os.sched_getaffinity(0)


def read_free_memory(folder: Path, files: dict[str, str]) -> FreeMemory | None:
    write_files(folder, {"meminfo": "MemAvailable: 16777216 kB\n", **files})
    return free_memory(
        process=folder / "proc", cgroups=folder / "cgroup", meminfo=folder / "meminfo"
    )


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (
            {
                "proc/cgroup": "0::/jobs/mine\n",
                "cgroup/jobs/memory.max": f"{4 * GIB}\n",  # the tightest group up to the root
                "cgroup/jobs/memory.current": f"{3 * GIB}\n",
                "cgroup/jobs/mine/memory.max": "max\n",
                "cgroup/jobs/mine/memory.current": f"{GIB}\n",
            },
            GIB,
        ),
        (
            {
                "proc/cgroup": "0::/\n",
                "cgroup/memory.max": f"{2 * GIB}\n",
                "cgroup/memory.current": f"{2 * GIB}\n",
                "cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
            },
            GIB,  # idle page cache
        ),
        (
            {
                "proc/cgroup": "4:memory:/box\n0::/\n",
                "cgroup/memory/box/memory.limit_in_bytes": f"{GIB}\n",
                "cgroup/memory/box/memory.usage_in_bytes": f"{GIB // 4}\n",
                "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",  # none
                "cgroup/memory/memory.usage_in_bytes": "1\n",
            },
            GIB - GIB // 4,
        ),
    ],
)
def test_free_memory_of_control_groups(tmp_path: Path, files: dict[str, str], free: int) -> None:
    memory = read_free_memory(tmp_path, files)
    assert memory is not None and memory.size == free
    assert memory.of.startswith(f"the control group {tmp_path / 'cgroup'}")


def test_free_memory_of_the_host(tmp_path: Path) -> None:
    meminfo = "MemTotal: 9 kB\nMemAvailable: 1024 kB\nSwapFree: 2 kB\n"
    expected = FreeMemory(size=1024 * 1024, of="this host", swap=2048)
    assert read_free_memory(tmp_path, {"meminfo": meminfo}) == expected
    assert read_free_memory(tmp_path, {"meminfo": ""}) is None
    memory = free_memory()
    assert memory is not None and memory.size > 10_000_000


ALL = frozenset(range(112))
SOCKETS = [frozenset([*range(28), *range(56, 84)]), frozenset([*range(28, 56), *range(84, 112)])]
TASKS_ON_SOCKETS = [SOCKETS[0], SOCKETS[1], SOCKETS[0], SOCKETS[1]]
CORE = frozenset({0, 56})


def make_rank(place: int, count: int, launcher: str = "open-mpi") -> Ranks:
    return Ranks(rank=place, size=count, local_rank=place, local_size=count, launcher=launcher)


def connected_part(
    local_rank: int,
    affinities: list[frozenset[int]],
    host: frozenset[int] = ALL,
    launcher: str = "open-mpi",
) -> Part:
    """The part of a rank that has the affinities of the others."""
    ranks = make_rank(local_rank, len(affinities), launcher)
    affinity = affinities[local_rank]
    return checked_part(ranks, affinities, host, affinity=affinity, topology=TWO_SOCKETS)


def lone_part(
    affinity: frozenset[int],
    *,
    ranks: int,
    launcher: str = "torchrun",
    host: frozenset[int] = ALL,
    offered: int | None = None,
) -> Part:
    """The part of a rank that does not know the affinities of the others."""
    rank = make_rank(ranks - 1, ranks, launcher)
    return checked_part(rank, None, host, affinity=affinity, topology=TWO_SOCKETS, offered=offered)


def test_part_of_a_rank() -> None:
    unbound = connected_part(2, [ALL] * 4)
    assert unbound == Part(cpus=ALL, place=2, ranks=4)
    assert lone_part(ALL, ranks=4) == Part(cpus=ALL, place=3, ranks=4)
    assert connected_part(1, SOCKETS) == Part(cpus=SOCKETS[1], place=0, ranks=1)
    assert connected_part(2, TASKS_ON_SOCKETS) == Part(cpus=SOCKETS[0], place=1, ranks=2)
    assert connected_part(3, TASKS_ON_SOCKETS) == Part(cpus=SOCKETS[1], place=1, ranks=2)
    quarter = frozenset(range(14, 28))
    assert lone_part(quarter, ranks=4) == Part(cpus=quarter, place=0, ranks=1)
    # A launcher's process may be bound to less than its ranks.
    part = connected_part(1, SOCKETS, host=frozenset({0}))
    assert part == Part(cpus=SOCKETS[1], place=0, ranks=1)
    two = frozenset({3, 4})
    assert lone_part(two, ranks=1, launcher="none", host=two) == Part(cpus=two, place=0, ranks=1)
    masks = [frozenset({0}), frozenset({0, 1}), frozenset({0})]  # overlaps are not checked
    part = given_part(make_rank(2, 3), masks, ALL, affinity=frozenset({0}))
    assert part == Part(cpus=frozenset({0}), place=1, ranks=2)


@pytest.mark.parametrize(
    ("launcher", "option"),
    [
        ("open-mpi", "mpirun --bind-to none"),
        ("intel-mpi", "mpirun -genv I_MPI_PIN=off"),
        ("mpich", "mpirun -bind-to none"),
    ],
)
def test_few_bound_cores_are_refused_with_the_option(launcher: str, option: str) -> None:
    expected = f"^{launcher}: .* 2 of the 56 cores .* start with {option}"
    with pytest.raises(InputError, match=expected) as caught:
        connected_part(0, [CORE, frozenset({1, 57})], launcher=launcher)
    assert "\n" not in str(caught.value)


def test_cores_of_a_slurm_job() -> None:
    with pytest.raises(InputError, match=r"2 of the 56 cores .* srun --cpus-per-task=56"):
        lone_part(CORE, ranks=2, launcher="slurm", offered=112)
    part = lone_part(CORE, ranks=2, launcher="slurm", offered=4)  # the job has no more
    assert part == Part(cpus=CORE, place=0, ranks=1)
    with pytest.raises(InputError, match=r"1 of the 56 cores .* srun --cpus-per-task=112"):
        lone_part(CORE, ranks=1, launcher="slurm", host=CORE, offered=112)
    part = lone_part(ALL, ranks=2, launcher="slurm", offered=16)
    [note] = part.notes
    assert part.ranks == 2 and note.endswith("start with srun --cpus-per-task=8")
    assert "56 cores, but the job has 8" in note


def test_half_of_the_cores_is_enough() -> None:
    [note] = connected_part(0, [frozenset(range(14)), frozenset(range(28, 42))]).notes
    assert "28 of the 56 cores" in note and "mpirun --bind-to none" in note
    with pytest.raises(InputError, match="bound to 27 of the 56 cores"):
        connected_part(0, [frozenset(range(14)), frozenset(range(28, 41))])
    assert connected_part(0, [frozenset(range(56))]).notes == ()  # one hyperthread of each core


def test_overlapping_cpus_are_refused() -> None:
    masks = [frozenset(range(30)), frozenset(range(28, 56))]
    with pytest.raises(InputError, match=r"overlap .*28-55\); start with mpirun -bind-to"):
        connected_part(1, masks, launcher="mpich")
    with pytest.raises(InputError, match=r"overlap .*28-55,84-111\); start with srun"):
        lone_part(SOCKETS[1], ranks=4, launcher="slurm")


def write_process(folder: Path, *, name: str, parent: int, cpus: str) -> None:
    text = f"Name:\t{name}\nUmask:\t0022\nPPid:\t{parent}\nCpus_allowed_list:\t{cpus}\n"
    write_files(folder, {"status": text})


@pytest.fixture
def affinity() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


BELOW_MPIRUN = "self python 30 0, 30 bash 20 0-3, 20 hydra_pmi_proxy 10 0-7, 10 mpirun 1 0-111"


@pytest.mark.parametrize(
    ("processes", "launcher", "cpus_of_launcher"),
    [
        (BELOW_MPIRUN, "mpich", 8),  # bash is a wrapper
        ("self python 1 0, 1 prterun 0 0-7", "open-mpi", 8),  # in a container
        ("self python 9 0, 9 flux-shell 1 0-7", "flux", 8),
        ("self python 0 0", "open-mpi", 0),  # hidden
        ("none python 0 0", "open-mpi", 0),
        ("self python 9 0, 9 slurmstepd 1 0-111", "none", 0),
    ],
)
def test_cpus_of_a_host_are_those_of_the_launcher_and_of_this_process(
    tmp_path: Path, affinity: frozenset[int], processes: str, launcher: str, cpus_of_launcher: int
) -> None:
    for process in processes.split(", "):
        folder, name, parent, cpus = process.split()
        write_process(tmp_path / folder, name=name, parent=int(parent), cpus=cpus)
    ranks = make_rank(0, 1 if launcher == "none" else 2, launcher)
    expected = affinity | frozenset(range(cpus_of_launcher))
    assert host_cpus(ranks, processes=tmp_path) == expected


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/job_12/step_0/task_0\n", "job_12/step_0/task_0/cpuset.cpus.effective"),
        ("3:cpuset:/slurm/job_12\n1:cpu:/\n0::/\n", "cpuset/slurm/job_12/cpuset.effective_cpus"),
    ],
)
def test_cpus_of_a_slurm_job_are_those_of_its_control_group(
    tmp_path: Path, affinity: frozenset[int], membership: str, file: str
) -> None:
    write_process(tmp_path / "proc/self", name="python", parent=9, cpus="0")
    write_process(tmp_path / "proc/9", name="slurmstepd", parent=1, cpus="0-111")
    write_files(tmp_path, {"proc/self/cgroup": membership, f"cgroup/{file}": "0-15\n"})
    ranks = make_rank(0, 2, "slurm")
    cpus = host_cpus(ranks, processes=tmp_path / "proc", cgroups=tmp_path / "cgroup")
    assert cpus == affinity | frozenset(range(16))


def srun_masks(text: str) -> dict[str, str]:
    return {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": text}


@pytest.mark.parametrize(
    ("environment", "affinity_", "expected"),
    [
        (srun_masks("0x1,0x6,0x10000000000000000,0xF0"), {1, 2}, [{0}, {1, 2}, {64}, {4, 5, 6, 7}]),
        (srun_masks("0x3,0xC"), {2, 3}, [{0, 1}, {2, 3}, {0, 1}, {2, 3}]),  # starts over
        ({}, {2, 3}, None),
        ({"SLURM_CPU_BIND_TYPE": "none", "SLURM_CPU_BIND_LIST": ""}, {2, 3}, None),
        ({"SLURM_CPU_BIND_TYPE": "mask_cpu:"}, {2, 3}, None),
        (srun_masks(""), {2, 3}, None),
        (srun_masks("0x1,cores"), {2, 3}, None),
        (srun_masks("0x1,0x2"), {2, 3}, None),  # this task has other CPUs
    ],
)
def test_cpu_masks_of_srun(
    environment: dict[str, str], affinity_: set[int], expected: list[set[int]] | None
) -> None:
    masks = slurm_affinities(environment, make_rank(1, 4, "slurm"), affinity=frozenset(affinity_))
    assert masks == expected


def test_fewest_cpus_of_the_job_on_a_host() -> None:
    assert cpus_of_job({"SLURM_JOB_CPUS_PER_NODE": "64(x2),32"}) == 32
    assert cpus_of_job({"SLURM_JOB_CPUS_PER_NODE": ""}) is None
    with pytest.raises(InputError, match=r"^SLURM_JOB_CPUS_PER_NODE=many: expected"):
        cpus_of_job({"SLURM_JOB_CPUS_PER_NODE": "many"})
