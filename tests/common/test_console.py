"""Printable output, progress and numbers."""

import io
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.table import Table

import common.console
from common.console import clock, make_console, progress, significant


class Clock:
    """A clock that the test sets, so that it does not wait."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    replaced = Clock()
    monkeypatch.setattr(common.console, "time", replaced)
    yield replaced


def test_first_and_last_line_are_shown(time: Clock) -> None:
    console = Console(file=io.StringIO(), width=120)
    with progress(console, "steps", total=100) as advance:
        for done in range(1, 101):
            advance(done, f"loss {done}")
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "steps 1/100  0:00:00 left  loss 1",
        "steps 100/100  0:00:00 left  loss 100",
    ]


def test_no_time_is_left_before_the_first_is_done(time: Clock) -> None:
    console = Console(file=io.StringIO(), width=120)
    with progress(console, "pictures", total=2) as advance:
        advance(0, "tile 8 of 49")
    assert console.file.getvalue() == "pictures 0/2  tile 8 of 49\n"  # type: ignore[attr-defined]


def test_line_every_15_seconds(time: Clock) -> None:
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


def test_plain_lines_have_no_control_characters() -> None:
    console = Console(file=io.StringIO(), width=20)
    with progress(console, "a title longer than the console is wide", total=1) as advance:
        advance(1, "3.20 images/s")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text and text.count("\n") == 1


def test_progress_bar_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress(console, "steps", total=3, start=1) as advance:
        advance(2, "loss 0.5")
        advance(3, "loss 0.4")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3/3" in text and "loss 0.4" in text


def test_progress_bar_ends_after_an_error() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with pytest.raises(ZeroDivisionError), progress(console, "steps", total=3):
        raise ZeroDivisionError
    assert console.file.getvalue().endswith("\x1b[?25h")  # type: ignore[attr-defined]


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3725)] == [
        "0:00:00",
        "0:01:00",
        "0:01:01",
        "1:02:05",
    ]


HOSTILE = "\x1b[2J[red]dog[/red]\x07 :dog: \udc80"


def test_markup_and_control_characters_are_printed_literally(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = make_console()
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    for printed in (HOSTILE, table):
        console.print(printed)
    output = capsys.readouterr().out
    assert output.count("�[2J[red]dog[/red]") == 4 and output.count(":dog:") == 4
    assert all(letter.isprintable() or letter == "\n" for letter in output)


def test_terminal_gets_no_foreign_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console = make_console()
    console.print(HOSTILE, style="bold")
    assert capsys.readouterr().out == "\x1b[1m�[2J[red]dog[/red] :dog: �\x1b[0m\n"
    with progress(console, HOSTILE, total=2) as advance:
        advance(1, HOSTILE)
        console.print(HOSTILE)
    output = capsys.readouterr().out
    assert "[red]dog[/red]" in output and "\x1b[2J" not in output and "\x07" not in output


def test_console_width_and_streams(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_console().width == 120 and make_console(pipe_width=140).width == 140
    make_console(stderr=True).print("aside")
    make_console(quiet=True).print("nothing")
    assert capsys.readouterr() == ("", "aside\n")


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (10130.4, 4, "10,130"),
        (9999.7, 4, "10,000"),
        (1_234_567, 6, "1,234,567"),
        (1234.56, 6, "1,234.56"),
        (99.996, 4, "100"),
        (0.25, 4, "0.25"),
        (0.005825, 3, "0.00583"),
        (0.000123456, 4, "0.0001235"),
        (1.2e-7, 4, "1.2e-07"),
        (-10130.4, 4, "-10,130"),
        (0, 4, "0"),
        (float("inf"), 4, "inf"),
        (float("nan"), 4, "nan"),
    ],
)
def test_significant_digits(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text
