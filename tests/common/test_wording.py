"""Counts and lists in messages."""

from common.wording import counted, listed


def test_counts_have_their_noun() -> None:
    assert [counted(number, "core") for number in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
    assert counted(1, "box", "boxes") == "1 box"
    assert counted(1200, "box", "boxes") == "1,200 boxes"


def test_lists_end_with_the_number_of_what_is_not_shown() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert listed(["a", "b"], 2, count=1002) == "a, b and 1,000 more"
