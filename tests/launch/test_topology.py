import os
import shutil
import subprocess
from pathlib import Path

import pytest

from common.errors import InputError
from launch.topology import Cpu, Topology, read_this_machine, read_topology
from tests.launch.hosts_by_hand import TWO_SOCKETS

ASKED = "# CPU,Core,Socket,Node\n"
COMMAND = "lscpu -p=CPU,CORE,SOCKET,NODE"


def described(folder: Path, text: str) -> Topology:
    file = folder / "host.txt"
    file.write_text(text, encoding="utf-8")
    return read_topology(file)


def write_sysfs(system: Path, *, online: str, cores: dict[int, tuple[int, int, int]]) -> None:
    """CPUs with (socket, die, core id) below a folder such as /sys/devices/system."""
    for cpu, (socket, die, core) in cores.items():
        folder = system / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n", encoding="utf-8")
        (folder / "die_id").write_text(f"{die}\n", encoding="utf-8")
        (folder / "core_id").write_text(f"{core}\n", encoding="utf-8")
    (system / "cpu" / "online").write_text(f"{online}\n", encoding="utf-8")


def write_nodes(system: Path, *lists: str) -> None:
    for node, cpus in enumerate(lists):
        folder = system / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n", encoding="utf-8")


def test_lscpu_of_two_sockets_with_hyperthreads(tmp_path: Path) -> None:
    text = ASKED + "0,0,0,0\n1,1,0,0\n2,2,1,1\n3,3,1,1\n4,0,0,0\n5,1,0,0\n6,2,1,1\n7,3,1,1\n"
    assert described(tmp_path, text).cpus == (
        Cpu(0, core=0, socket=0, node=0),
        Cpu(1, core=1, socket=0, node=0),
        Cpu(2, core=2, socket=1, node=1),
        Cpu(3, core=3, socket=1, node=1),
        Cpu(4, core=0, socket=0, node=0),
        Cpu(5, core=1, socket=0, node=0),
        Cpu(6, core=2, socket=1, node=1),
        Cpu(7, core=3, socket=1, node=1),
    )


def test_core_ids_that_repeat_over_sockets_are_different_cores(tmp_path: Path) -> None:
    cpus = described(tmp_path, ASKED + "0,0,0,0\n1,0,1,1\n2,4,0,0\n3,4,1,1\n").cpus
    assert [cpu.core for cpu in cpus] == [0, 1, 2, 3]


def test_an_empty_node_is_node_0(tmp_path: Path) -> None:
    cpus = described(tmp_path, ASKED + "0,0,0,\n1,1,0,\n").cpus
    assert [cpu.node for cpu in cpus] == [0, 0]


def test_cpus_that_are_offline_are_left_out(tmp_path: Path) -> None:
    cpus = described(tmp_path, ASKED + "0,0,0,0\n1,,,\n2,1,0,0\n").cpus
    assert [cpu.cpu for cpu in cpus] == [0, 2]


def test_plain_lscpu_p_has_the_columns_too(tmp_path: Path) -> None:
    text = "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n1,1,0,1,,1,1,1,0\n"
    assert described(tmp_path, text).cpus == (
        Cpu(0, core=0, socket=0, node=0),
        Cpu(1, core=1, socket=0, node=1),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Architecture:  x86_64\n", f":1: expected the output of: {COMMAND}"),
        ("# CPU,Core\n0,0\n", f":2: expected the output of: {COMMAND}"),
        ("", f": expected the output of: {COMMAND}"),
        (ASKED + "0,0,0,0\n1,0\n", f":3: has 2 fields, fewer than its header; use: {COMMAND}"),
        (ASKED + "0,0,x,0\n", f":2: socket: expected a number, found 'x'; use: {COMMAND}"),
        (ASKED + "0,0,0,0\n0,1,0,0\n", ":3: CPU 0 is listed twice; give one host's output"),
    ],
)
def test_what_is_not_lscpus_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        described(tmp_path, text)
    assert str(caught.value) == f"{tmp_path / 'host.txt'}{message}"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    message = r"none\.txt: cannot be read: No such file.*; .*: lscpu -p=.* > none\.txt"
    with pytest.raises(InputError, match=message):
        read_topology(tmp_path / "none.txt")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "host.xml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"host\.xml: expected the output of: lscpu"):
        read_topology(file)


@pytest.mark.parametrize("place", ["sys/devices/system", "devices/system", "system", "."])
def test_a_copy_of_sysfs_is_found_however_much_was_copied(tmp_path: Path, place: str) -> None:
    system = tmp_path / place
    write_sysfs(system, online="0-3", cores={n: (n // 2, 0, n % 2) for n in range(4)})
    write_nodes(system, "0-1", "2-3")
    assert read_topology(tmp_path).cpus == (
        Cpu(0, core=0, socket=0, node=0),
        Cpu(1, core=1, socket=0, node=0),
        Cpu(2, core=2, socket=1, node=1),
        Cpu(3, core=3, socket=1, node=1),
    )


def test_sysfs_without_nodes_has_node_0_and_dies_have_cores_of_their_own(tmp_path: Path) -> None:
    cores = {0: (0, 0, 0), 1: (0, 1, 0), 2: (0, 0, 0), 3: (0, 1, 0)}
    write_sysfs(tmp_path, online="0-3", cores=cores)
    cpus = read_topology(tmp_path).cpus
    assert [(cpu.core, cpu.node) for cpu in cpus] == [(0, 0), (1, 0), (0, 0), (1, 0)]


def test_sysfs_lists_cpus_that_are_online(tmp_path: Path) -> None:
    write_sysfs(tmp_path, online="0,2", cores={0: (0, 0, 0), 2: (0, 0, 1)})
    (tmp_path / "cpu" / "cpu1").mkdir()
    assert [cpu.cpu for cpu in read_topology(tmp_path).cpus] == [0, 2]


def test_memory_nodes_without_cpus_are_passed_over(tmp_path: Path) -> None:
    write_sysfs(tmp_path, online="0-1", cores={0: (0, 0, 0), 1: (0, 0, 1)})
    write_nodes(tmp_path, "0-1", "")
    assert [cpu.node for cpu in read_topology(tmp_path).cpus] == [0, 0]


def test_cores_and_sockets_unknown_to_the_kernel_are_a_core_a_cpu(tmp_path: Path) -> None:
    write_sysfs(tmp_path, online="0-1", cores={0: (-1, -1, -1), 1: (-1, -1, -1)})
    assert [(cpu.core, cpu.socket) for cpu in read_topology(tmp_path).cpus] == [(0, 0), (1, 0)]


def test_an_incomplete_copy_is_refused(tmp_path: Path) -> None:
    write_sysfs(tmp_path, online="0-1", cores={0: (0, 0, 0)})
    expected = r"cpu1/topology/core_id: cannot be read: No such file or directory; copy it too"
    with pytest.raises(InputError, match=expected):
        read_topology(tmp_path)


def test_a_folder_without_cpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no devices/system/cpu below it; give a copy of /sys"):
        read_topology(tmp_path)


def test_a_sandbox_without_topology_has_a_core_a_cpu(tmp_path: Path) -> None:
    (tmp_path / "cpu" / "cpu0").mkdir(parents=True)
    assert read_this_machine(tmp_path).cpus == tuple(
        Cpu(cpu, core=cpu, socket=0, node=0) for cpu in sorted(os.sched_getaffinity(0))
    )


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="lscpu is not installed")
def test_this_machines_cores_are_those_that_lscpu_tells(tmp_path: Path) -> None:
    text = subprocess.run(COMMAND.split(), capture_output=True, text=True, check=True).stdout
    from_lscpu = described(tmp_path, text).cpus
    from_kernel = read_topology().cpus
    assert [(cpu.cpu, cpu.core, cpu.node) for cpu in from_kernel] == [
        (cpu.cpu, cpu.core, cpu.node) for cpu in from_lscpu
    ]


def test_restricted_keeps_the_numbers_of_cores() -> None:
    assert TWO_SOCKETS.restricted({3, 59, 400}).cpus == (
        Cpu(3, core=3, socket=0, node=0),
        Cpu(59, core=3, socket=0, node=0),
    )
