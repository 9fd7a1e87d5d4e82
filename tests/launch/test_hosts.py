import pytest

from common.errors import InputError
from launch.hosts import expand_hosts, hosts_with_ranks


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
def test_lists_are_expanded_in_their_order(text: str, names: list[str]) -> None:
    assert list(expand_hosts(text)) == names


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a name is missing"),
        ("a,,b", "a name is missing"),
        ("n[1-2", "expected a list such as a,b or node[01-04,07]"),
        ("n1]", "expected a list such as a,b or node[01-04,07]"),
        ("n[]", "expected a list such as a,b or node[01-04,07]"),
        ("n[2-1]", "expected a list such as a,b or node[01-04,07]"),
        ("n[1-a]", "expected a list such as a,b or node[01-04,07]"),
        ("n[1-999][1-999]", "expected a list such as a,b or node[01-04,07]"),
        ("a b", "expected a list such as a,b or node[01-04,07]"),
        ("n[1-3],n2", "n2 is named twice"),
    ],
)
def test_what_is_no_list_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        expand_hosts(text)
    assert str(caught.value).startswith(f"hosts {text!r}: {problem}")


def test_hosts_share_ranks_evenly() -> None:
    assert hosts_with_ranks("a,b", ranks=8) == (("a", 4), ("b", 4))


def test_counts_say_how_many_ranks_each_host_has() -> None:
    assert hosts_with_ranks("n[1-2]:4,big:8", ranks=None) == (("n1", 4), ("n2", 4), ("big", 8))
    assert hosts_with_ranks("a:1,b:2", ranks=3) == (("a", 1), ("b", 2))


@pytest.mark.parametrize(
    ("text", "ranks", "message"),
    [
        (
            "a,b",
            3,
            "--np 3: does not divide evenly among 2 hosts; use 2 or 4, or counts such as a:2",
        ),
        ("a,b", 1, "--np 1: does not divide evenly among 2 hosts; use 2, or counts such as a:1"),
        ("a,b", None, "--hosts: how many ranks? add --np N, or counts such as a:4"),
        ("a:4,b:4", 6, "--np 6: the hosts' counts add up to 8; use --np 8"),
        ("a:4,b", 8, "--hosts: b: expected HOST:RANKS, as for the others: b:4"),
        ("a:4,b:0", 4, "--hosts: b:0: expected HOST:RANKS, as for the others: b:4"),
        ("a:4,b:x", 4, "--hosts: b:x: expected HOST:RANKS, as for the others: b:4"),
        ("a:4,a:4", 8, "hosts 'a,a': a is named twice; give each host once"),
    ],
)
def test_ranks_that_do_not_fit_the_hosts_are_refused(
    text: str, ranks: int | None, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        hosts_with_ranks(text, ranks=ranks)
    assert str(caught.value) == message
