import os
from pathlib import Path

import pytest

from common.errors import InputError
from launch.limits import Part, host_cpus, my_cpus, whose_cpus
from launch.ranks import Ranks
from launch.topology import Cpu, Topology

# 2 sockets of 28 cores with 2 hyperthreads: n and n + 56 are one core.
HOST = Topology(
    tuple(Cpu(cpu, core=cpu % 56, socket=cpu % 56 // 28, node=cpu % 56 // 28) for cpu in range(112))
)
ALL = frozenset(range(112))
SOCKETS = [
    frozenset([*range(28), *range(56, 84)]),
    frozenset([*range(28, 56), *range(84, 112)]),
]
TASKS_ON_SOCKETS = [SOCKETS[0], SOCKETS[1], SOCKETS[0], SOCKETS[1]]


def a_rank(local_rank: int, local_size: int, launcher: str = "open-mpi") -> Ranks:
    return Ranks(
        rank=local_rank,
        size=local_size,
        local_rank=local_rank,
        local_size=local_size,
        launcher=launcher,
    )


def met(
    local_rank: int,
    affinities: list[frozenset[int]],
    host: frozenset[int] = ALL,
    launcher: str = "open-mpi",
) -> Part:
    ranks = a_rank(local_rank, len(affinities), launcher)
    return my_cpus(ranks, affinities, host, own=affinities[local_rank], topology=HOST)


def not_met(
    own: frozenset[int], *, ranks: int, launcher: str = "torchrun", offered: int | None = None
) -> Part:
    rank = a_rank(ranks - 1, ranks, launcher)
    return my_cpus(rank, None, ALL, own=own, topology=HOST, offered=offered)


def test_ranks_that_nobody_bound_share_the_host_in_order() -> None:
    assert met(2, [ALL] * 4) == Part(cpus=ALL, place=2, ranks=4)
    assert not_met(ALL, ranks=4) == Part(cpus=ALL, place=3, ranks=4)


def test_ranks_bound_to_a_socket_each_are_planned_within_it() -> None:
    assert met(1, SOCKETS) == Part(cpus=SOCKETS[1], place=0, ranks=1)


def test_ranks_with_equal_cpus_share_those() -> None:
    assert met(2, TASKS_ON_SOCKETS) == Part(cpus=SOCKETS[0], place=1, ranks=2)
    assert met(3, TASKS_ON_SOCKETS) == Part(cpus=SOCKETS[1], place=1, ranks=2)


def test_without_a_meeting_fewer_cpus_are_this_ranks_alone() -> None:
    own = frozenset(range(14, 28))
    assert not_met(own, ranks=4) == Part(cpus=own, place=0, ranks=1)


@pytest.mark.parametrize(
    ("launcher", "flag"),
    [
        ("open-mpi", "mpirun --bind-to none"),
        ("intel-mpi", "mpirun -genv I_MPI_PIN=off"),
        ("mpich", "mpirun -bind-to none"),
    ],
)
def test_two_ranks_on_a_core_each_of_56_are_refused_with_the_flag(launcher: str, flag: str) -> None:
    expected = f"{launcher}: the 2 ranks of this host are bound to 2 of the 56 cores"
    with pytest.raises(InputError, match=f"^{expected}.* start with {flag}, ") as caught:
        met(0, [frozenset({0, 56}), frozenset({1, 57})], launcher=launcher)
    assert "\n" not in str(caught.value)


def test_slurm_tasks_on_a_core_each_are_refused_unless_the_job_has_no_more() -> None:
    own = frozenset({0, 56})
    with pytest.raises(InputError, match=r"2 of the 56 cores .* srun --cpus-per-task=56, "):
        not_met(own, ranks=2, launcher="slurm", offered=112)
    part = not_met(own, ranks=2, launcher="slurm", offered=4)
    assert part == Part(cpus=own, place=0, ranks=1)


def test_a_slurm_step_that_was_given_a_core_of_the_jobs_56_is_refused() -> None:
    own = frozenset({0, 56})  # and its control group has no more
    with pytest.raises(InputError, match=r"1 of the 56 cores .* srun --cpus-per-task=112, "):
        my_cpus(a_rank(0, 1, "slurm"), None, own, own=own, topology=HOST, offered=112)


def test_a_slurm_job_that_may_run_on_the_cores_of_other_jobs_is_told() -> None:
    part = not_met(ALL, ranks=2, launcher="slurm", offered=16)
    assert part.ranks == 2
    (note,) = part.notes
    assert note.startswith("slurm: the 2 ranks of this host are bound to 56 cores, and the job has")
    assert note.endswith(
        "has 8: other jobs may compute on the rest; start with srun --cpus-per-task=8"
    )


def test_at_least_half_of_the_cores_is_a_note() -> None:
    part = met(0, [frozenset(range(14)), frozenset(range(28, 42))])
    assert part.notes == (
        "open-mpi: the 2 ranks of this host are bound to 28 of the 56 cores that this host offers; "
        "mpirun --bind-to none gives them all",
    )
    with pytest.raises(InputError, match="bound to 27 of the 56 cores"):
        met(0, [frozenset(range(14)), frozenset(range(28, 41))])


def test_one_hyperthread_of_each_core_leaves_no_core_idle() -> None:
    assert met(0, [frozenset(range(56))]).notes == ()


def test_cpus_that_overlap_in_part_are_refused() -> None:
    masks = [frozenset(range(30)), frozenset(range(28, 56))]
    expected = r"bound to CPUs that overlap \(this rank's are 28-55\); start with mpirun -bind-to"
    with pytest.raises(InputError, match=expected):
        met(1, masks, launcher="mpich")


def test_without_a_meeting_more_cpus_than_there_are_must_overlap() -> None:
    with pytest.raises(InputError, match=r"CPUs that overlap .*28-55,84-111\); start with srun"):
        not_met(SOCKETS[1], ranks=4, launcher="slurm")


def test_ranks_may_have_more_than_their_launchers_own_process() -> None:
    assert met(1, SOCKETS, host=frozenset({0})) == Part(cpus=SOCKETS[1], place=0, ranks=1)


def test_a_process_of_its_own_may_be_given_a_few_cores() -> None:
    own = frozenset({3, 4})
    part = my_cpus(a_rank(0, 1, "none"), None, own, own=own, topology=HOST)
    assert part == Part(cpus=own, place=0, ranks=1)


def test_whose_cpus_makes_no_demands() -> None:
    masks = [frozenset({0}), frozenset({0, 1}), frozenset({0})]
    part = whose_cpus(a_rank(2, 3), masks, ALL, own=frozenset({0}))
    assert part == Part(cpus=frozenset({0}), place=1, ranks=2)


def write_process(folder: Path, *, name: str, parent: int, cpus: str) -> None:
    folder.mkdir(parents=True)
    text = f"Name:\t{name}\nUmask:\t0022\nPPid:\t{parent}\nCpus_allowed_list:\t{cpus}\n"
    (folder / "status").write_text(text)


@pytest.fixture
def own() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def test_the_host_is_what_the_launchers_process_may_use(
    tmp_path: Path, own: frozenset[int]
) -> None:
    write_process(tmp_path / "self", name="python", parent=30, cpus="0")
    write_process(tmp_path / "30", name="bash", parent=20, cpus="0-3")  # a wrapper
    write_process(tmp_path / "20", name="hydra_pmi_proxy", parent=10, cpus="0-7")
    write_process(tmp_path / "10", name="mpirun", parent=1, cpus="0-111")
    found = host_cpus(a_rank(0, 2, "mpich"), processes=tmp_path)
    assert found == own | frozenset(range(8))


def test_the_launcher_may_be_the_first_process_of_a_container(
    tmp_path: Path, own: frozenset[int]
) -> None:
    write_process(tmp_path / "self", name="python", parent=1, cpus="0")
    write_process(tmp_path / "1", name="prterun", parent=0, cpus="0-7")
    assert host_cpus(a_rank(0, 2), processes=tmp_path) == own | frozenset(range(8))


def test_an_unseen_launcher_offers_what_this_process_has(
    tmp_path: Path, own: frozenset[int]
) -> None:
    write_process(tmp_path / "self", name="python", parent=0, cpus="0")
    assert host_cpus(a_rank(0, 2), processes=tmp_path) == own
    assert host_cpus(a_rank(0, 2), processes=tmp_path / "nowhere") == own


def test_no_launcher_is_looked_for_where_none_started_us(
    tmp_path: Path, own: frozenset[int]
) -> None:
    write_process(tmp_path / "self", name="python", parent=9, cpus="0")
    write_process(tmp_path / "9", name="slurmstepd", parent=1, cpus="0-111")
    assert host_cpus(a_rank(0, 1, "none"), processes=tmp_path) == own


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/job_12/step_0/task_0\n", "job_12/step_0/task_0/cpuset.cpus.effective"),
        ("3:cpuset:/slurm/job_12\n1:cpu:/\n0::/\n", "cpuset/slurm/job_12/cpuset.effective_cpus"),
    ],
)
def test_slurms_process_is_outside_of_the_jobs_control_group(
    tmp_path: Path, own: frozenset[int], membership: str, file: str
) -> None:
    write_process(tmp_path / "proc/self", name="python", parent=9, cpus="0")
    write_process(tmp_path / "proc/9", name="slurmstepd", parent=1, cpus="0-111")
    (tmp_path / "proc/self/cgroup").write_text(membership)
    group = tmp_path / "cgroup" / file
    group.parent.mkdir(parents=True)
    group.write_text("0-15\n")
    found = host_cpus(
        a_rank(0, 2, "slurm"), processes=tmp_path / "proc", cgroups=tmp_path / "cgroup"
    )
    assert found == own | frozenset(range(16))
