"""Findings for a person: a table, told once for hosts that are alike."""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from retinanet.preflight.finding import Finding, Level
from retinanet.terminal import make_console

HostFindings = tuple[str, list[Finding]]
"""A host's name, and what was found there."""

STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}
PIPED_WIDTH = 160
"""A log has room for it, and few cells need a second line."""


def merged(hosts: Sequence[HostFindings]) -> list[Finding]:
    """Findings of all hosts, by subject in the order of the first host's.

    What is well everywhere is told by the first host. Else each host that has something to say is
    named, those that say the same together.
    """
    several = len(hosts) > 1
    subjects = dict.fromkeys(one.subject for _, findings in hosts for one in findings)
    rows: list[Finding] = []
    for subject in subjects:
        told = [(name, one) for name, found in hosts for one in found if one.subject == subject]
        if all(one.level == "ok" for _, one in told):
            first = told[0][0]
            rows += [one for name, one in told if name == first]
            continue
        by_finding: dict[Finding, list[str]] = {}
        for name, one in told:
            if one.level != "ok" or not several:
                by_finding.setdefault(one, []).append(name)
        rows += [
            replace(one, found=f"{', '.join(names)}: {one.found}" if several else one.found)
            for one, names in by_finding.items()
        ]
    return rows


def print_findings(
    findings: Sequence[Finding], *, seconds: float, console: Console | None = None
) -> None:
    """Print the table and a last line that says whether the run can work."""
    console = console or make_console(pipe_width=PIPED_WIDTH)
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("looked at", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for one in findings:
        found = Text(one.found)
        if one.fix:
            found.append(f"\n→ {one.fix}", style="bold")
        table.add_row(Text(one.subject), Text(one.level, style=STYLES[one.level]), found)
    console.print(table)
    console.print(verdict(findings, seconds=seconds))


def verdict(findings: Sequence[Finding], *, seconds: float) -> str:
    """Such as `the run can work, with 1 warning (checked in 1.3 s)`."""
    failures = sum(one.level == "failure" for one in findings)
    warnings = sum(one.level == "warning" for one in findings)
    words = f"the run cannot work: {counted(failures, 'failure')}"
    if not failures:
        words = "the run can work"
    if warnings:
        words += f"{' and' if failures else ', with'} {counted(warnings, 'warning')}"
    return f"{words} (checked in {seconds:.1f} s)"


def counted(number: int, what: str) -> str:
    """`1 failure`, `2 failures`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
