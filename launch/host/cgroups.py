"""The CPU quota of a process's control groups, of version 1 and 2.

A group may use no more than its parent, so the least quota on the way up to the root counts.
https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files and
https://docs.kernel.org/scheduler/sched-bwc.html describe the files.
"""

import re
from pathlib import Path

from launch.host.proc_files import read_text

MICROSECONDS = re.compile("[1-9][0-9]{0,17}")


def read_quota(*, process: Path, cgroups: Path) -> float | None:
    """CPUs' worth of time that a process may use; None: no limit, or none that can be read.

    Args:
        process: Its folder in /proc.
        cgroups: Where control groups are mounted, usually /sys/fs/cgroup.
    """
    quotas = [
        quota
        for mount, path in cpu_groups(read_text(process / "cgroup"), cgroups)
        for folder in group_and_ancestors(mount, path)
        if (quota := quota_of(folder)) is not None
    ]
    return min(quotas, default=None)


def cpu_groups(membership: str, cgroups: Path) -> list[tuple[Path, str]]:
    """Mount and path of each group that may hold a CPU quota.

    A line is `NUMBER:CONTROLLERS:PATH`, with no controllers in version 2. Version 1 is mounted in a
    folder that its controllers name, version 2 at the top, or in `unified` where both are in use.
    """
    found = []
    for line in membership.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            found += [(cgroups, path), (cgroups / "unified", path)]
        elif "cpu" in controllers.split(","):
            mounts = [cgroups / controllers, cgroups / "cpu"]
            found += [(mount, path) for mount in mounts if mount.is_dir()][:1]
    return found


def group_and_ancestors(mount: Path, path: str) -> list[Path]:
    """The folders of a group and of those above it, up to the mount.

    A container often sees its own group as the mount itself, under a path that only the host has.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not mount.joinpath(*parts).is_dir():
        return [mount]
    return [mount.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]


def quota_of(group: Path) -> float | None:
    """The group's own quota: time over period, in CPUs."""
    words = read_text(group / "cpu.max").split()
    if not words:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [word for name in names for word in read_text(group / name).split()]
    if len(words) != 2 or not all(map(MICROSECONDS.fullmatch, words)):
        return None  # `max` in version 2 and -1 in version 1 are no limit
    return int(words[0]) / int(words[1])
