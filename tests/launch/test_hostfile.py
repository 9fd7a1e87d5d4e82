from pathlib import Path

import pytest

from common.errors import InputError
from launch.hosts import Host, ranks_of_hosts, read_hostfile


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1\nnode2\n", (Host("node1", None), Host("node2", None))),
        ("# the left rack\nnode1:8  # new\n\n\tnode2:4\r\n", (Host("node1", 8), Host("node2", 4))),
        ("node1 slots=8\nnode2 slots = 4 max_slots=4\n", (Host("node1", 8), Host("node2", 4))),
        ("10.0.0.1:2", (Host("10.0.0.1", 2),)),
        ("b\nb\na\nb\n", (Host("b", 3), Host("a", 1))),  # a line for each place
    ],
)
def test_both_ways_of_writing_hosts_are_read(
    text: str, hosts: tuple[Host, ...], hostfile: Path
) -> None:
    hostfile.write_text(text)
    assert read_hostfile(hostfile) == hosts


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("node1\nnode2 8\n", "hosts:2: found 'node2 8', expected HOST, HOST:SLOTS or HOST slots=N"),
        ("node1:0\n", "hosts:1: found 'node1:0'"),
        ("node1:\n", "hosts:1: found 'node1:'"),
        ("node1,node2\n", "hosts:1: found 'node1,node2'"),
        ("node1 slots=2 cores=8\n", "hosts:1: found 'node1 slots=2 cores=8'"),
        ("# nothing\n\n", "names no host; write one host a line"),
        ("node1:8\nnode2\n", "node2 has no number of slots and others have"),
    ],
)
def test_a_line_that_is_no_host_is_named(text: str, named: str, hostfile: Path) -> None:
    hostfile.write_text(text)
    with pytest.raises(InputError) as caught:
        read_hostfile(hostfile)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_hostfile_is_named(hostfile: Path) -> None:
    with pytest.raises(InputError, match=r"--hostfile: .*hosts: No such file or directory; give a"):
        read_hostfile(hostfile)


def test_a_file_that_is_no_text_is_told(hostfile: Path) -> None:
    hostfile.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="hosts: is not text"):
        read_hostfile(hostfile)


@pytest.mark.parametrize(
    ("slots", "ranks", "expected"),
    [
        ((None, None), 8, (4, 4)),
        ((8, 4), 12, (8, 4)),  # all slots
        ((8, 8), 8, (4, 4)),  # half of them, on each
        ((8, 4), 6, (3, 3)),
    ],
)
def test_slots_are_filled_or_shared_evenly(
    slots: tuple[int | None, ...], ranks: int, expected: tuple[int, ...]
) -> None:
    hosts = tuple(Host(f"node{number}", count) for number, count in enumerate(slots, start=1))
    names = [f"node{number}" for number in range(1, len(slots) + 1)]
    found = ranks_of_hosts(hosts, ranks=ranks)
    assert found == tuple(zip(names, expected, strict=True))


@pytest.mark.parametrize(
    ("slots", "ranks", "named"),
    [
        # Even ones are 2, 4, 6 and 8, and all 12 slots.
        ((8, 4), 7, r"--np 7: does not fit the 12 slots of the hosts \(2\); use --np 4, 6 or 8"),
        ((8, 4), 20, "use --np 6, 8 or 12"),
        ((1,), 2, r"the 1 slots of the hosts \(1\); use --np 1$"),
        ((None, None), 3, "--np 3: does not divide evenly among 2 hosts; use 2 or 4"),
    ],
)
def test_ranks_that_do_not_fit_are_answered_with_numbers_that_do(
    slots: tuple[int | None, ...], ranks: int, named: str
) -> None:
    hosts = tuple(Host(f"node{number}", count) for number, count in enumerate(slots, start=1))
    with pytest.raises(InputError, match=named):
        ranks_of_hosts(hosts, ranks=ranks)
