import io
from collections.abc import Iterator

import pytest
from rich.console import Console

import common.console
from common.console import clock, progress


class Clock:
    """A clock that the test sets; the real one would make the test wait."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    replaced = Clock()
    monkeypatch.setattr(common.console, "time", replaced)
    yield replaced


def test_first_and_last_line_are_always_shown(time: Clock) -> None:
    console = Console(file=io.StringIO(), width=120)
    with progress(console, "steps", total=100) as advance:
        for done in range(1, 101):
            advance(done, f"loss {done}")
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "steps 1/100  0:00:00 left  loss 1",
        "steps 100/100  0:00:00 left  loss 100",
    ]


def test_a_line_every_15_seconds_with_the_time_left(time: Clock) -> None:
    console = Console(file=io.StringIO(), width=120)
    with progress(console, "steps", total=100, start=20) as advance:
        for done in range(21, 30):
            time.now += 5
            advance(done, "")
    # 5 seconds a step: 79 steps after the 21st, 76 after the 24th, 73 after the 27th
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "steps 21/100  0:06:35 left",
        "steps 24/100  0:06:20 left",
        "steps 27/100  0:06:05 left",
    ]


def test_plain_lines_hold_no_control_characters_and_keep_brackets() -> None:
    console = Console(file=io.StringIO(), width=20)
    with progress(console, "a title longer than the console is wide", total=1) as advance:
        advance(1, "3.20 images/s")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text and text.count("\n") == 1


def test_a_terminal_gets_a_bar() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress(console, "steps", total=3, start=1) as advance:
        advance(2, "loss 0.5")
        advance(3, "loss 0.4")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3/3" in text and "loss 0.4" in text


def test_the_bar_ends_when_the_work_fails() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with pytest.raises(ZeroDivisionError), progress(console, "steps", total=3):
        raise ZeroDivisionError
    assert console.file.getvalue().endswith("\x1b[?25h")  # type: ignore[attr-defined]


def test_clock_by_hand() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3725)] == [
        "0:00:00",
        "0:01:00",
        "0:01:01",
        "1:02:05",
    ]
