import pytest

from launch.topology import format_cpu_list, parse_cpu_list


def test_lists_are_read_as_the_kernel_writes_them() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpu_list("7") == {7}
    assert parse_cpu_list("\n") == frozenset()


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-3:2", "٣", "99999999"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a list such as 0-3,8|ends before it begins"):
        parse_cpu_list(text)


def test_lists_are_written_with_runs() -> None:
    assert format_cpu_list([11, 0, 2, 1, 8, 10]) == "0-2,8,10-11"
    assert format_cpu_list([]) == ""
