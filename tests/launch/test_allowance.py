import os
from pathlib import Path

import pytest

from launch.limits import read_allowance


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def quota_of(folder: Path) -> float | None:
    return read_allowance(process=folder / "proc", cgroups=folder / "cgroup").quota


def test_the_least_quota_up_to_the_root_counts_in_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/cgroup", "0::/jobs/mine/step\n")
    write(tmp_path / "cgroup/jobs/cpu.max", "800000 100000\n")
    write(tmp_path / "cgroup/jobs/mine/cpu.max", "150000 100000\n")
    write(tmp_path / "cgroup/jobs/mine/step/cpu.max", "max 100000\n")
    assert quota_of(tmp_path) == 1.5


def test_a_container_sees_its_own_group_as_the_root_in_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/cgroup", "0::/kubepods/pod1/box\n")
    write(tmp_path / "cgroup/cpu.max", "250000 100000\n")
    assert quota_of(tmp_path) == 2.5


@pytest.mark.parametrize("path", ["/", "/../outside"])
def test_a_private_namespace_has_its_group_at_the_root(tmp_path: Path, path: str) -> None:
    write(tmp_path / "proc/cgroup", f"0::{path}\n")
    write(tmp_path / "cgroup/cpu.max", "50000 100000\n")
    assert quota_of(tmp_path) == 0.5


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpuacct,cpu", "cpu"])
def test_the_least_quota_up_to_the_root_counts_in_version_1(
    tmp_path: Path, controllers: str
) -> None:
    write(tmp_path / "proc/cgroup", f"9:cpuset:/\n4:{controllers}:/jobs/mine\n0::/\n")
    group = tmp_path / "cgroup" / controllers / "jobs"
    write(group / "cpu.cfs_quota_us", "300000\n")
    write(group / "cpu.cfs_period_us", "100000\n")
    write(group / "mine/cpu.cfs_quota_us", "-1\n")
    write(group / "mine/cpu.cfs_period_us", "100000\n")
    assert quota_of(tmp_path) == 3.0


def test_version_1_mounted_under_the_short_name(tmp_path: Path) -> None:
    write(tmp_path / "proc/cgroup", "4:cpu,cpuacct:/docker/box\n")
    write(tmp_path / "cgroup/cpu/cpu.cfs_quota_us", "75000\n")
    write(tmp_path / "cgroup/cpu/cpu.cfs_period_us", "50000\n")
    assert quota_of(tmp_path) == 1.5


@pytest.mark.parametrize("text", ["max 100000\n", "", "nonsense\n", "0 100000\n"])
def test_no_limit_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path / "proc/cgroup", "0::/\n")
    write(tmp_path / "cgroup/cpu.max", text)
    assert quota_of(tmp_path) is None


def test_without_control_groups_nothing_is_limited(tmp_path: Path) -> None:
    found = read_allowance(process=tmp_path / "proc", cgroups=tmp_path / "cgroup")
    assert (found.quota, found.memory_nodes) == (None, frozenset())


def test_memory_nodes_are_those_of_the_status(tmp_path: Path) -> None:
    write(tmp_path / "proc/status", "Name:\tpython\nMems_allowed:\t05\nMems_allowed_list:\t0,2\n")
    found = read_allowance(process=tmp_path / "proc", cgroups=tmp_path / "cgroup")
    assert found.memory_nodes == {0, 2}


def test_cpus_are_those_of_the_affinity() -> None:
    assert read_allowance().cpus == os.sched_getaffinity(0)
