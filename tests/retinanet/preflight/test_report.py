import io

from rich.console import Console

from retinanet.preflight.findings import failure, merged, ok, print_findings, warning


def test_what_is_well_on_all_hosts_is_told_once() -> None:
    hosts = [("a", [ok("memory", "9 GB")]), ("b", [ok("memory", "8 GB")])]
    assert merged(hosts) == [ok("memory", "9 GB")]


def test_hosts_that_differ_are_named_and_those_alike_are_together() -> None:
    bad = failure("/dev/shm", "not there", fix="mount it")
    hosts = [("a", [ok("/dev/shm", "fine")]), ("b", [bad]), ("c", [bad])]
    [row] = merged(hosts)
    assert (row.found, row.level) == ("b, c: not there", "failure")


def test_one_host_is_not_named() -> None:
    rows = [ok("placement", "1 rank"), warning("placement", "a core is idle", fix="see plan")]
    assert merged([("a", rows)]) == rows


def test_the_table_names_failures_and_fixes_and_counts_them() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, highlight=False)
    rows = [ok("writing", "[yes]"), failure("data", "no file", fix="give one")]
    print_findings(rows, seconds=1.24, console=console)
    shown = text.getvalue()
    assert "[yes]" in shown and "→ give one" in shown  # brackets are no markup
    assert "the run cannot work: 1 failure (checked in 1.2 s)" in shown
