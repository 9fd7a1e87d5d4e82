import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from common.errors import InputError
from launch.topology import (
    Cpu,
    Topology,
    format_cpu_list,
    parse_cpu_list,
    read_this_machine,
    read_topology,
)
from tests.launch.topologies import TWO_SOCKETS
from tests.support.commands import error_message, run_program

HEADER = "# CPU,Core,Socket,Node\n"
COMMAND = "lscpu -p=CPU,CORE,SOCKET,NODE"


def read_lscpu(folder: Path, text: str) -> Topology:
    file = folder / "host.txt"
    file.write_text(text, encoding="utf-8")
    return read_topology(file)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        (
            HEADER + "0,0,0,0\n1,1,0,0\n2,2,1,1\n3,3,1,1\n4,0,0,0\n5,1,0,0\n6,2,1,1\n7,3,1,1\n",
            [(n, n % 4, n % 4 // 2, n % 4 // 2) for n in range(8)],  # hyperthreads
        ),
        (
            HEADER + "0,0,0,0\n1,0,1,1\n2,4,0,0\n3,4,1,1\n",  # core ids repeat on each socket
            [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 0, 0), (3, 3, 1, 1)],
        ),
        (HEADER + "0,0,0,\n1,1,0,\n", [(0, 0, 0, 0), (1, 1, 0, 0)]),  # no memory nodes
        (HEADER + "0,0,0,0\n1,,,\n2,1,0,0\n", [(0, 0, 0, 0), (2, 1, 0, 0)]),  # CPU 1 is offline
        (
            "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n1,1,0,1,,1,1,1,0\n",
            [(0, 0, 0, 0), (1, 1, 0, 1)],  # plain `lscpu -p`
        ),
    ],
)
def test_output_of_lscpu(tmp_path: Path, text: str, cpus: list[tuple[int, int, int, int]]) -> None:
    assert read_lscpu(tmp_path, text).cpus == tuple(Cpu(*cpu) for cpu in cpus)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"Architecture:  x86_64\n", ":1: expected the output of: "),
        (b"# CPU,Core\n0,0\n", ":2: expected the output of: "),
        (b"", ": expected the output of: "),
        (HEADER.encode() + b"0,0,0,0\n1,0\n", ":3: has 2 fields"),
        (HEADER.encode() + b"0,0,x,0\n", ":2: socket: expected a number, found 'x'"),
        (HEADER.encode() + b"0,0,0,0\n0,1,0,0\n", ":3: CPU 0 is listed twice"),
        (b"\xff\xfe\x00", ": expected the output of: "),
        (None, ": cannot be read: No such file"),
    ],
)
def test_files_that_are_not_of_lscpu_are_refused(
    tmp_path: Path, content: bytes | None, named: str
) -> None:
    file = tmp_path / "host.txt"
    if content is not None:
        file.write_bytes(content)
    message = error_message(read_topology, file)
    assert message.startswith(f"{file}{named}")
    assert COMMAND in message or "one host's output" in message


Host = dict[int, tuple[int, int, tuple[int, ...]]]
"""Socket, core id and thread siblings of each CPU."""
HYPERTHREADS: Host = {cpu: (cpu % 2, cpu // 2 % 4, (cpu % 8, cpu % 8 + 8)) for cpu in range(16)}
VMWARE: Host = {  # two core ids for the threads of a core, which repeat from socket to socket
    cpu: (cpu // 4, cpu % 4, (cpu // 2 * 2, cpu // 2 * 2 + 1)) for cpu in range(8)
}
CLUSTERS: Host = {cpu: (0, cpu % 4, (cpu,)) for cpu in range(64)}
SOCKETS_OF_ONE: Host = {cpu: (cpu, 0, (cpu,)) for cpu in range(8)}


def as_map(cpus: Iterable[int], *, of: int) -> str:
    """Return the CPUs as the kernel's map: a bit for each, in groups of 32."""
    digits = f"{sum(1 << cpu for cpu in cpus):0{of // 4}x}"
    groups = [digits[max(0, end - 8) : end] for end in range(len(digits), 0, -8)]
    return ",".join(reversed(groups))


def write_host(
    root: Path, host: Host, *, nodes: Sequence[range] = (), system: str = "sys/devices/system"
) -> None:
    """Write what lscpu reads of a host: sysfs and /proc/cpuinfo."""

    def write(name: str, text: str) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n", encoding="utf-8")

    cpus = f"{system}/cpu"
    for name in ("online", "possible", "present"):
        write(f"{cpus}/{name}", format_cpu_list(host))
    write(f"{cpus}/kernel_max", "63")
    write("proc/cpuinfo", "\n\n".join(f"processor\t: {cpu}\nmodel\t: 85" for cpu in host))
    for cpu, (socket, core, siblings) in host.items():
        neighbours = [other for other, (its_socket, *_) in host.items() if its_socket == socket]
        for name, value in (("thread_siblings", siblings), ("core_siblings", neighbours)):
            write(f"{cpus}/cpu{cpu}/topology/{name}", as_map(value, of=len(host)))
            write(f"{cpus}/cpu{cpu}/topology/{name}_list", format_cpu_list(value))
        write(f"{cpus}/cpu{cpu}/topology/physical_package_id", str(socket))
        write(f"{cpus}/cpu{cpu}/topology/core_id", str(core))
    for node, its_cpus in enumerate(nodes):
        write(f"{system}/node/node{node}/cpumap", as_map(its_cpus, of=len(host)))
        write(f"{system}/node/node{node}/cpulist", format_cpu_list(its_cpus))


@pytest.mark.parametrize("place", ["sys/devices/system", "devices/system", "system", "."])
def test_copy_of_sysfs_is_found_at_any_depth(tmp_path: Path, place: str) -> None:
    host: Host = {cpu: (cpu // 2, cpu % 2, (cpu,)) for cpu in range(4)}
    write_host(tmp_path, host, nodes=[range(2), range(2, 4)], system=place)
    assert read_topology(tmp_path).cpus == tuple(Cpu(n, n, n // 2, n // 2) for n in range(4))


@pytest.mark.parametrize(
    ("host", "nodes", "cpus"),
    [
        ({0: (0, 0, (0,)), 2: (0, 1, (2,))}, (), [(0, 0, 0, 0), (2, 1, 0, 0)]),  # 1 is offline
        ({0: (0, 0, (0,)), 1: (0, 1, (1,))}, (range(2), range(0)), [(0, 0, 0, 0), (1, 1, 0, 0)]),
        ({0: (-1, 0, (0, 1)), 1: (-1, 0, (0, 1))}, (), [(0, 0, 0, 0), (1, 0, 0, 0)]),
        ({0: (0, 0, (0,)), 1: (0, 1, (0,))}, (), [(0, 0, 0, 0), (1, 1, 0, 0)]),
    ],
    ids=["offline", "node without CPUs", "unknown socket", "not among its siblings"],
)
def test_cores_of_sysfs(
    tmp_path: Path, host: Host, nodes: Sequence[range], cpus: list[tuple[int, int, int, int]]
) -> None:
    write_host(tmp_path, host, nodes=nodes)
    assert read_topology(tmp_path).cpus == tuple(Cpu(*cpu) for cpu in cpus)


def test_incomplete_copy_of_sysfs_is_refused(tmp_path: Path) -> None:
    write_host(tmp_path, SOCKETS_OF_ONE)
    (tmp_path / "sys/devices/system/cpu/cpu1/topology/thread_siblings_list").unlink()
    expected = (
        r"^\S+/cpu1/topology/thread_siblings_list: cannot be read: No such file .*; copy it too"
    )
    with pytest.raises(InputError, match=expected):
        read_topology(tmp_path)


def test_folder_without_cpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no devices/system/cpu below it; give a copy of /sys"):
        read_topology(tmp_path)


def test_machine_without_sysfs_has_one_core_per_cpu(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "cpu0").mkdir(parents=True)
    assert read_this_machine(tmp_path).cpus == tuple(
        Cpu(cpu, core=cpu, socket=0, node=0) for cpu in sorted(os.sched_getaffinity(0))
    )


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="lscpu is not installed")
def test_cores_of_this_machine_equal_those_of_lscpu(tmp_path: Path) -> None:
    text = run_program(*COMMAND.split(), check=True).stdout
    from_lscpu = read_lscpu(tmp_path, text).cpus
    from_kernel = read_topology().cpus
    assert [(cpu.cpu, cpu.core, cpu.node) for cpu in from_kernel] == [
        (cpu.cpu, cpu.core, cpu.node) for cpu in from_lscpu
    ]


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="lscpu is not installed")
@pytest.mark.parametrize(
    ("host", "nodes", "cores"),
    [
        (HYPERTHREADS, [range(0, 16, 2), range(1, 16, 2)], 8),
        (VMWARE, [range(8)], 4),
        (CLUSTERS, [range(32), range(32, 64)], 64),
        (SOCKETS_OF_ONE, [range(8)], 8),
    ],
)
def test_cores_of_a_host_equal_those_of_lscpu(
    tmp_path: Path, host: Host, nodes: Sequence[range], cores: int
) -> None:
    write_host(tmp_path, host, nodes=nodes)
    text = run_program(*COMMAND.split(), "--sysroot", str(tmp_path), check=True).stdout
    topology = read_topology(tmp_path)
    assert topology == read_lscpu(tmp_path, text)
    assert topology.core_count == cores


SPEEDS = [5200, 5200, 5000, 5000, 3900, 3900, 2500, 2500]  # favoured cores are of the same kind
KINDS = [0, 0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("file", "values", "kinds"),
    [
        ("cpufreq/cpuinfo_max_freq", SPEEDS, KINDS),
        ("cpu_capacity", [1024, 1024, 1024, 1024, 446, 446, 446, 446], [0] * 4 + [1] * 4),
        ("cpu_capacity", [1024] * 8, [0] * 8),
        ("cpu_capacity", [1024, 0, 446, 446, 446, 446, 446, 446], [0] * 8),  # one is not known
        ("../../../cpu_atom/cpus", ["4-7"], [0] * 4 + [1] * 4),
    ],
)
def test_kinds_of_cores(
    tmp_path: Path, file: str, values: list[int | str], kinds: list[int]
) -> None:
    write_host(tmp_path, CLUSTERS, nodes=[range(64)])
    cpus = tmp_path / "sys/devices/system/cpu"
    (cpus / "online").write_text("0-7\n", encoding="utf-8")
    for cpu, value in enumerate(values):
        (cpus / f"cpu{cpu}" / file).parent.mkdir(parents=True, exist_ok=True)
        (cpus / f"cpu{cpu}" / file).write_text(f"{value}\n", encoding="utf-8")
    assert [cpu.kind for cpu in read_topology(tmp_path).cpus] == kinds


def test_kinds_of_cores_of_lscpu(tmp_path: Path) -> None:
    rows = [f"{cpu},{cpu},0,0,{speed}.0000" for cpu, speed in enumerate(SPEEDS)]
    topology = read_lscpu(tmp_path, "\n".join(("# CPU,Core,Socket,Node,MaxMHz", *rows)))
    assert [cpu.kind for cpu in topology.cpus] == KINDS
    assert [cpu.cpu for cpu in topology.slower] == [4, 5, 6, 7]


def test_restricted_topology_keeps_core_numbers() -> None:
    assert TWO_SOCKETS.restricted({3, 59, 400}).cpus == (
        Cpu(3, core=3, socket=0, node=0),
        Cpu(59, core=3, socket=0, node=0),
    )


def test_cpu_lists_are_read_and_written() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpu_list("7") == {7}
    assert parse_cpu_list("\n") == frozenset()
    assert format_cpu_list([11, 0, 2, 1, 8, 10]) == "0-2,8,10-11"
    assert format_cpu_list([]) == ""


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-3:2", "٣", "99999999"])
def test_invalid_cpu_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a list such as 0-3,8|ends before it begins"):
        parse_cpu_list(text)
