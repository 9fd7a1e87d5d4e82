from pathlib import Path

import pytest

from launch.hosts import Host, expand_hosts, hosts_with_ranks, ranks_of_hosts, read_hostfile
from tests.support.commands import error_message


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login1", ["login1"]),
        ("a, b,c", ["a", "b", "c"]),
        ("node[01-03,07],login1", ["node01", "node02", "node03", "node07", "login1"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]x", ["n098x", "n099x", "n100x", "n101x"]),
        ("node2,node1.local", ["node2", "node1.local"]),
    ],
)
def test_lists_of_hosts_are_expanded_in_order(text: str, names: list[str]) -> None:
    assert list(expand_hosts(text)) == names


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a name is missing"),
        ("a,,b", "a name is missing"),
        *((text, "expected a list") for text in ("n[1-2", "n1]", "n[]", "n[2-1]", "n[1-a]", "a b")),
        ("n[1-999][1-999]", "expected a list"),
        ("n[1-3],n2", "n2 is named twice"),
    ],
)
def test_invalid_lists_of_hosts_are_refused(text: str, problem: str) -> None:
    assert error_message(expand_hosts, text).startswith(f"hosts {text!r}: {problem}")


@pytest.mark.parametrize(
    ("text", "ranks", "expected"),
    [
        ("a,b", 8, (("a", 4), ("b", 4))),
        ("n[1-2]:4,big:8", None, (("n1", 4), ("n2", 4), ("big", 8))),
        ("a:1,b:2", 3, (("a", 1), ("b", 2))),
    ],
)
def test_hosts_have_equal_or_given_numbers_of_ranks(
    text: str, ranks: int | None, expected: tuple[tuple[str, int], ...]
) -> None:
    assert hosts_with_ranks(text, ranks=ranks) == expected


@pytest.mark.parametrize(
    ("text", "ranks", "start", "fix"),
    [
        ("a,b", 3, "--np 3: ", "use 2 or 4, or counts such as a:2"),
        ("a,b", 1, "--np 1: ", "use 2, or counts such as a:1"),
        ("a,b", None, "--hosts: ", "add --np N, or counts such as a:4"),
        ("a:4,b:4", 6, "--np 6: ", "use --np 8"),
        ("a:4,b", 8, "--hosts: b: ", "such as b:4"),
        ("a:4,b:0", 4, "--hosts: b:0: ", "such as b:4"),
        ("a:4,b:x", 4, "--hosts: b:x: ", "such as b:4"),
        ("a:4,a:4", 8, "hosts 'a,a': a is named twice", "give each host once"),
    ],
)
def test_ranks_that_do_not_fit_the_hosts_are_refused(
    text: str, ranks: int | None, start: str, fix: str
) -> None:
    message = error_message(hosts_with_ranks, text, ranks=ranks)
    assert message.startswith(start) and message.endswith(fix)


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1\nnode2\n", (Host("node1", None), Host("node2", None))),
        ("# the left rack\nnode1:8  # new\n\n\tnode2:4\r\n", (Host("node1", 8), Host("node2", 4))),
        ("node1 slots=8\nnode2 slots = 4 max_slots=4\n", (Host("node1", 8), Host("node2", 4))),
        ("\ufeffnode1:8\nnode2:4\n", (Host("node1", 8), Host("node2", 4))),
        ("10.0.0.1:2", (Host("10.0.0.1", 2),)),
        ("b\nb\na\nb\n", (Host("b", 3), Host("a", 1))),  # one line per slot
    ],
)
def test_hostfiles_of_all_mpiruns_are_read(
    text: str, hosts: tuple[Host, ...], hostfile: Path
) -> None:
    hostfile.write_text(text)
    assert read_hostfile(hostfile) == hosts


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"node1\nnode2 8\n", "hosts:2: found 'node2 8'"),
        (b"node1:0\n", "hosts:1: found 'node1:0'"),
        (b"node1:\n", "hosts:1: found 'node1:'"),
        (b"node1,node2\n", "hosts:1: found 'node1,node2'"),
        (b"node1 slots=2 cores=8\n", "hosts:1: found 'node1 slots=2 cores=8'"),
        (b"# nothing\n\n", "no host; "),
        (b"node1:8\nnode2\n", "node2 has no number of slots"),
        (b"\xff\xfe\x00", "hosts: is not text"),
        (None, "hosts: No such file or directory"),
    ],
)
def test_invalid_hostfiles_are_refused(content: bytes | None, named: str, hostfile: Path) -> None:
    if content is not None:
        hostfile.write_bytes(content)
    message = error_message(read_hostfile, hostfile)
    assert message.startswith("--hostfile: ") and named in message


def numbered_hosts(slots: tuple[int | None, ...]) -> tuple[Host, ...]:
    return tuple(Host(f"node{number}", count) for number, count in enumerate(slots, start=1))


@pytest.mark.parametrize(
    ("slots", "ranks", "expected"),
    [
        ((None, None), 8, (4, 4)),
        ((8, 4), 12, (8, 4)),  # all slots
        ((8, 8), 8, (4, 4)),  # half of the slots of each host
        ((8, 4), 6, (3, 3)),
    ],
)
def test_slots_are_filled_or_shared_evenly(
    slots: tuple[int | None, ...], ranks: int, expected: tuple[int, ...]
) -> None:
    counts = ranks_of_hosts(numbered_hosts(slots), ranks=ranks)
    assert counts == (("node1", expected[0]), ("node2", expected[1]))


@pytest.mark.parametrize(
    ("slots", "ranks", "fix"),
    [
        ((8, 4), 7, "use --np 4, 6 or 8"),  # even numbers up to 8, and all 12 slots
        ((8, 4), 20, "use --np 6, 8 or 12"),
        ((1,), 2, "the 1 slots of the hosts (1); use --np 1"),
        ((None, None), 3, "use 2 or 4, or counts such as node1:2"),
    ],
)
def test_refused_ranks_come_with_numbers_that_fit(
    slots: tuple[int | None, ...], ranks: int, fix: str
) -> None:
    message = error_message(ranks_of_hosts, numbered_hosts(slots), ranks=ranks)
    assert message.startswith(f"--np {ranks}: ") and message.endswith(fix)
