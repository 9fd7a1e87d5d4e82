"""What a check has found.

TODO-DOC Amounts of bytes for a person.

TODO-DOC Findings for a person: a table, told once for hosts that are alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.console import make_console

Level = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    """What it was, in a word or two, such as `disk space`."""
    level: Level
    """`failure`: the run cannot work. `warning`: it may not, or not as well as it could."""
    found: str
    """How it stands, with numbers."""
    fix: str = ""
    """What the user can do; empty where nothing needs to be done."""

    @property
    def line(self) -> str:
        """The finding and its fix in one line."""
        return "; ".join(filter(None, (f"{self.subject}: {self.found}", self.fix)))


def ok(subject: str, found: str) -> Finding:
    """Nothing is wrong there."""
    return Finding(subject=subject, level="ok", found=found)


def warning(subject: str, found: str, *, fix: str) -> Finding:
    """The run may go on, and this may end or slow it."""
    return Finding(subject=subject, level="warning", found=found, fix=fix)


def failure(subject: str, found: str, *, fix: str) -> Finding:
    """The run cannot work like this."""
    return Finding(subject=subject, level="failure", found=found, fix=fix)


UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def amount(size: float) -> str:
    """Such as `1.2 GB`, `413 MB`, `64 kB`. [bytes]"""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"
    return f"{size:.0f} bytes"


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
