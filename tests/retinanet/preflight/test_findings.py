import io

from rich.console import Console

from retinanet.preflight.findings import failure, merged, ok, print_findings, warning


def test_findings_of_several_hosts_are_merged() -> None:
    assert merged([("a", [ok("memory", "9 GB")]), ("b", [ok("memory", "8 GB")])]) == [
        ok("memory", "9 GB")
    ]
    bad = failure("/dev/shm", "missing", fix="mount it")
    [row] = merged([("a", [ok("/dev/shm", "fine")]), ("b", [bad]), ("c", [bad])])
    assert (row.detail, row.level) == ("b, c: missing", "failure")


def test_a_single_host_is_not_named() -> None:
    rows = [ok("placement", "1 rank"), warning("placement", "a core is idle", fix="see plan")]
    assert merged([("a", rows)]) == rows


def test_table_shows_fixes_and_counts_failures() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, highlight=False)
    rows = [ok("writing", "[yes]"), failure("data", "no file", fix="give one")]
    print_findings(rows, seconds=1.24, console=console)
    output = text.getvalue()
    assert "[yes]" in output and "→ give one" in output  # brackets are not markup
    assert "cannot start: 1 failure (checked in 1.2 s)" in output
