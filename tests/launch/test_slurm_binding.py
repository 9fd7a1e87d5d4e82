import pytest

from common.errors import InputError
from launch.limits import cpus_of_job, slurm_affinities
from launch.ranks import Ranks


def bound(environment: dict[str, str], own: set[int]) -> list[set[int]] | None:
    ranks = Ranks(rank=1, size=4, local_rank=1, local_size=4, launcher="slurm")
    found = slurm_affinities(environment, ranks, own=frozenset(own))
    return None if found is None else [set(cpus) for cpus in found]


def masks(text: str) -> dict[str, str]:
    return {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": text}


def test_masks_of_all_tasks_of_the_host() -> None:
    found = bound(masks("0x1,0x6,0x10000000000000000,0xF0"), {1, 2})
    assert found == [{0}, {1, 2}, {64}, {4, 5, 6, 7}]


def test_a_short_list_starts_over() -> None:
    assert bound(masks("0x3,0xC"), {2, 3}) == [{0, 1}, {2, 3}, {0, 1}, {2, 3}]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_CPU_BIND_TYPE": "none", "SLURM_CPU_BIND_LIST": ""},
        {"SLURM_CPU_BIND_TYPE": "mask_cpu:"},
        masks(""),
        masks("0x1,cores"),
        masks("0x1,0x2"),  # this task has other CPUs
    ],
)
def test_what_slurm_does_not_say_or_not_rightly_is_not_known(environment: dict[str, str]) -> None:
    assert bound(environment, {2, 3}) is None


def test_the_least_of_the_jobs_cpus_on_a_host() -> None:
    assert cpus_of_job({"SLURM_JOB_CPUS_PER_NODE": "64(x2),32"}) == 32
    assert cpus_of_job({"SLURM_JOB_CPUS_PER_NODE": ""}) is None
    with pytest.raises(InputError, match=r"^SLURM_JOB_CPUS_PER_NODE=many: expected"):
        cpus_of_job({"SLURM_JOB_CPUS_PER_NODE": "many"})
