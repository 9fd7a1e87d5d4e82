from pathlib import Path

from launch.limits import MemoryLeft, memory_left

GIB = 1 << 30


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def left_in(folder: Path, *, meminfo: str = "MemAvailable: 16777216 kB\n") -> MemoryLeft | None:
    write(folder / "meminfo", meminfo)
    return memory_left(
        process=folder / "proc", cgroups=folder / "cgroup", meminfo=folder / "meminfo"
    )


def test_the_tightest_group_on_the_way_up_counts_in_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/cgroup", "0::/jobs/mine\n")
    write(tmp_path / "cgroup/jobs/memory.max", f"{4 * GIB}\n")
    write(tmp_path / "cgroup/jobs/memory.current", f"{3 * GIB}\n")
    write(tmp_path / "cgroup/jobs/mine/memory.max", "max\n")
    write(tmp_path / "cgroup/jobs/mine/memory.current", f"{GIB}\n")
    left = left_in(tmp_path)
    assert left is not None and left.size == GIB
    assert left.of == f"the control group {tmp_path / 'cgroup/jobs'} (limit 4.3 GB)"


def test_pages_of_files_that_nobody_uses_are_given_back(tmp_path: Path) -> None:
    write(tmp_path / "proc/cgroup", "0::/\n")
    write(tmp_path / "cgroup/memory.max", f"{2 * GIB}\n")
    write(tmp_path / "cgroup/memory.current", f"{2 * GIB}\n")
    write(tmp_path / "cgroup/memory.stat", f"anon 5\ninactive_file {GIB}\nactive_file 7\n")
    left = left_in(tmp_path)
    assert left is not None and left.size == GIB


def test_version_1_has_other_names_and_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "proc/cgroup", "4:memory:/box\n0::/\n")
    group = tmp_path / "cgroup/memory"
    write(group / "box/memory.limit_in_bytes", f"{GIB}\n")
    write(group / "box/memory.usage_in_bytes", f"{GIB // 4}\n")
    write(group / "memory.limit_in_bytes", "9223372036854771712\n")
    write(group / "memory.usage_in_bytes", "1\n")
    left = left_in(tmp_path)
    assert left is not None and left.size == GIB - GIB // 4


def test_without_a_limit_it_is_what_the_host_has(tmp_path: Path) -> None:
    meminfo = "MemTotal: 9 kB\nMemAvailable: 1024 kB\nSwapFree: 2 kB\n"
    left = left_in(tmp_path, meminfo=meminfo)
    assert left == MemoryLeft(size=1024 * 1024, of="this host", swap=2048)
    assert left_in(tmp_path, meminfo="") is None


def test_this_process_may_take_some_memory() -> None:
    left = memory_left()
    assert left is not None and left.size > 10_000_000
