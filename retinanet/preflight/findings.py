"""The results of checks, and how they are printed: a table, then whether the run can start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.console import make_console
from common.wording import counted

Level = Literal["ok", "warning", "failure"]
HostFindings = tuple[str, list["Finding"]]
STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}
PIPED_WIDTH = 160  # A log has room for it, and few cells need a second line. [characters]
UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    subject: str  # The object of the check, in a word or two, such as `disk space`
    level: Level
    """`failure`: the run cannot start. `warning`: it may fail later, or be slow."""
    detail: str
    fix: str = ""  # For the user; empty where nothing needs to be done

    @property
    def line(self) -> str:
        """The finding and its fix in one line."""
        # The message of a bad setting begins with its name, such as `engine.name`.
        is_named = self.detail.startswith(f"{self.subject}.")
        text = self.detail if is_named else f"{self.subject}: {self.detail}"
        return f"{text}; {self.fix}" if self.fix else text


def ok(subject: str, detail: str) -> Finding:
    """Return the finding of a check that has passed."""
    return Finding(subject=subject, level="ok", detail=detail)


def warning(subject: str, detail: str, *, fix: str) -> Finding:
    """Return the finding of a problem that does not prevent a start."""
    return Finding(subject=subject, level="warning", detail=detail, fix=fix)


def failure(subject: str, detail: str, *, fix: str = "") -> Finding:
    """Return the finding of a problem that prevents a start."""
    return Finding(subject=subject, level="failure", detail=detail, fix=fix)


def amount(size: float) -> str:
    """Return bytes with a unit, such as `1.2 GB`, `413 MB`, `64 kB`."""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"
    return f"{size:.0f} bytes"


def merged(hosts: Sequence[HostFindings]) -> list[Finding]:
    """Return the findings of all hosts, by subject in the order of the first host's.

    If a check has passed on all hosts, the first host's finding is returned. Otherwise the hosts
    with a problem are named, those with the same finding together.
    """
    several = len(hosts) > 1
    subjects = dict.fromkeys(finding.subject for _, findings in hosts for finding in findings)
    rows: list[Finding] = []
    for subject in subjects:
        pairs = [(name, item) for name, items in hosts for item in items if item.subject == subject]
        if all(finding.level == "ok" for _, finding in pairs):
            # A check may have several findings of a host, such as the notes on a placement.
            rows += [finding for name, finding in pairs if name == pairs[0][0]]
            continue
        # Findings are frozen, hence valid keys: equal ones of several hosts share a row.
        names_by_finding: dict[Finding, list[str]] = {}
        for name, finding in pairs:
            if finding.level != "ok" or not several:
                names_by_finding.setdefault(finding, []).append(name)
        for finding, names in names_by_finding.items():
            where = f"{', '.join(names)}: " if several else ""
            rows.append(replace(finding, detail=f"{where}{finding.detail}"))
    return rows


def print_findings(
    findings: Sequence[Finding], *, seconds: float, console: Console | None = None
) -> None:
    """Print the table and a line such as `the run can start, with 1 warning (checked in 1.3 s)`."""
    console = console or make_console(pipe_width=PIPED_WIDTH)
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    # By default rich would cut a long path off with an ellipsis.
    table.add_column("details", overflow="fold")
    for finding in findings:
        text = Text(finding.detail)
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="bold")
        level = Text(finding.level, style=STYLES[finding.level])
        table.add_row(Text(finding.subject), level, text)
    console.print(table)
    levels = [finding.level for finding in findings]
    counts = [
        counted(count, level) for level in ("failure", "warning") if (count := levels.count(level))
    ]
    result = "the run can start"
    if "failure" in levels:
        result = f"the run cannot start: {' and '.join(counts)}"
    elif counts:
        result += f", with {counts[0]}"
    console.print(f"{result} (checked in {seconds:.1f} s)")
