"""Messages of errors."""

import os
import pickle
import signal

import pytest

from common.errors import LONGEST, InputError, interrupted_by_sigterm, one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dog, 狗, ß × 3 – 4 …", "dog, 狗, ß × 3 – 4 …"),
        ("\x1b[31mred\x1b[0m", "�[31mred�[0m"),
        ("a\0b\x7f\x9b", "a�b��"),
        ("left\u202eright", "left�right"),
        ("half \udc80", "half �"),
    ],
)
def test_unprintable_characters_are_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_are_joined() -> None:
    assert one_line(" a.json: bad\r\n  name\tx\u2028y\n") == "a.json: bad name x y"


def test_long_line_keeps_beginning_and_end() -> None:
    line = one_line("file.json: " + "x" * 10**6 + "; give another")
    assert line.startswith("file.json: x") and line.endswith("x; give another")
    assert len(line) == LONGEST


def test_input_error_is_one_printable_line() -> None:
    error = InputError("/tmp/a\nb\x1b]0;title\x07.json: images: wrong")
    assert str(error) == "/tmp/a b�]0;title�.json: images: wrong"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_ignored_sigterm_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interrupted_by_sigterm():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
