import pytest
from rich.table import Table

from common.console import make_console, progress

HOSTILE = "\x1b[2J[red]dog[/red]\x07 :dog: \udc80"


def test_what_comes_from_files_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    for printed in (HOSTILE, table):
        console.print(printed)
    said = capsys.readouterr().out
    assert said.count("�[2J[red]dog[/red]") == 4 and said.count(":dog:") == 4
    assert all(letter.isprintable() or letter == "\n" for letter in said)


def test_a_terminal_gets_our_own_colours_and_no_others(
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
    said = capsys.readouterr().out
    assert "[red]dog[/red]" in said and "\x1b[2J" not in said and "\x07" not in said


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_console().width == 120 and make_console(pipe_width=140).width == 140
    make_console(stderr=True).print("aside")
    make_console(quiet=True).print("nothing")
    assert capsys.readouterr() == ("", "aside\n")
