"""A run's efficiency as a person reads it on a terminal.

TODO-DOC A run's efficiency for programs: rows of `efficiency.csv`, and JSON.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.console import say, significant
from common.errors import printable
from profiling.efficiency.analysis import (
    Efficiency,
    NotReplayed,
    Part,
    ProblemEfficiency,
    Projection,
    cold_ratio,
    hot_ratio,
    kind_and_direction,
    readable,
)
from profiling.onednn_log.work import Problem

WORST = 3
REASONS = 5
ALMOST_ALL = 0.9995
"""More is shown as 100.0%."""
FASTER_THAN_ALONE = 1.1
ABOVE_1 = (
    "well above 1: the replay ran under worse conditions than the run: other work beside it, other "
    "threads or cores, another oneDNN, or memory from elsewhere"
)

MEANING = """\
ratio: the replay's time over the measured, 1.00 where primitives ran in training as fast as alone
  hot: run again and again, with data in the caches; cold: with caches emptied before each run
lost: measured time beyond the hot replay's; only what was replayed is in ratios and lost times"""


def print_efficiency(console: Console, found: Efficiency) -> None:
    """The replay, the ratio, its parts, what was not replayed, what loses most."""
    describe_replay(console, found)
    if not found.total.measured_ms:
        say(console, "nothing could be replayed: there is no ratio")
    else:
        say(console, headline(found))
        console.print(parts_table(found.parts, found.total))
        say(console, MEANING)
        share = found.total.cold_measured_ms / found.total.measured_ms
        if (hot_ratio(found.total) or 0) > FASTER_THAN_ALONE:
            say(console, ABOVE_1)
        if 0 < share < ALMOST_ALL:
            say(console, f"cold ratios are of the {share:.1%} of the time that were run cold")
    print_not_replayed(console, found)
    worst = [one for one in found.problems if one.lost_ms > 0][:WORST]
    if worst:
        console.print(worst_table(worst))


def describe_replay(console: Console, found: Efficiency) -> None:
    """Who replayed what, and what was otherwise than in the run."""
    replay = found.replay
    threads = replay.conditions.threads
    say(
        console,
        f"replayed {len(found.problems)} of {len(found.problems) + len(found.not_replayed)} "
        f"problems through {replay.runner}, oneDNN {replay.version or 'of unknown version'}, "
        f"{threads} thread{'s' if threads > 1 else ''}",
    )
    if found.outside_ms > 0:
        say(console, f"left out: {found.outside_ms:,.1f} ms that ran outside of whole steps")


def headline(found: Efficiency) -> str:
    """The ratio of the run, and of how much of it."""
    cold = cold_ratio(found.total)
    also = "" if cold is None else f", {cold:.2f} cold"
    share = 1 - found.not_replayed_share
    return (
        f"efficiency: {number(hot_ratio(found.total))} hot{also}; "
        f"{share:.1%} of oneDNN's time was replayed"
    )


def number(ratio: float | None) -> str:
    """With two decimals; empty where there is none."""
    return "" if ratio is None else f"{ratio:.2f}"


def parts_table(parts: Sequence[Part], total: Part) -> Table:
    """A row for each kind and direction, and one for all."""
    table = Table("kind and direction", title="efficiency by kind", title_justify="left")
    for heading in ("calls", "measured ms", "hot ms", "cold ms", "hot", "cold", "lost ms"):
        table.add_column(heading, justify="right")
    for part in (*parts, total):
        if part is total:
            table.add_section()
        name = "all" if part is total else printable(kind_and_direction(part.kind, part.direction))
        table.add_row(Text(name), f"{part.calls:,}", *numbers(part))
    return table


def numbers(one: Part | ProblemEfficiency) -> tuple[str, ...]:
    """Times, ratios and the loss."""
    return (
        f"{one.measured_ms:,.1f}",
        f"{one.hot_ms:,.1f}",
        "" if one.cold_ms is None else f"{one.cold_ms:,.1f}",
        number(hot_ratio(one)),
        number(cold_ratio(one)),
        f"{one.lost_ms:,.1f}",
    )


def print_not_replayed(console: Console, found: Efficiency) -> None:
    """How much has no replay, and why."""
    if not found.not_replayed:
        return
    say(
        console,
        f"not replayed: {len(found.not_replayed)} problem{'s' if found.not_replayed[1:] else ''}, "
        f"{found.not_replayed_ms:,.1f} ms, "
        f"{found.not_replayed_share:.1%} of the time; left out of both sides of every ratio",
    )
    for why, some in by_reason(found.not_replayed)[:REASONS]:
        milliseconds = sum(one.measured_ms for one in some)
        example = printable(readable(some[0].problem))
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        say(console, f"  {milliseconds:,.1f} ms: {example}{more}: {printable(why)}")
    rest = len(by_reason(found.not_replayed)) - REASONS
    if rest > 0:
        say(console, f"  and for {rest} other reasons; --out and --json have them all")


def by_reason(not_replayed: Sequence[NotReplayed]) -> list[tuple[str, list[NotReplayed]]]:
    """Problems of the same kind and reason together, the costliest first."""
    reasons: dict[tuple[str, str], list[NotReplayed]] = {}
    for one in not_replayed:
        reasons.setdefault((one.problem.kind, one.why), []).append(one)
    groups = [(why, some) for (_, why), some in reasons.items()]
    return sorted(groups, key=lambda group: -sum(one.measured_ms for one in group[1]))


def worst_table(worst: Sequence[ProblemEfficiency]) -> Table:
    """The problems in which most time is lost."""
    title = f"the {len(worst)} problems that lose most" if len(worst) > 1 else "what loses most"
    table = Table("problem", title=title, title_justify="left", show_lines=True)
    for heading in ("calls", "measured ms", "hot ms", "cold ms", "hot", "cold", "lost ms"):
        table.add_column(heading, justify="right")
    for one in worst:
        name = Text(printable(readable(one.problem)), overflow="fold")
        table.add_row(name, f"{one.calls:,}", *numbers(one))
    return table


def print_projection(console: Console, found: Efficiency, projection: Projection | None) -> None:
    """A step at each speed, and what the numbers leave out."""
    if projection is None:
        say(console, "no projection: the log marks no steps; --steps N says how many it is of")
        return
    console.print(projection_table(projection))
    if projection.elsewhere_s is None:
        say(console, "only oneDNN's time is projected: the log does not tell what else a step does")
    else:
        say(console, "elsewhere: all but oneDNN's primitives, our own kernels too; kept as it was")
        if projection.images is None:
            say(console, "images/s: the log does not tell; --images-a-step N says how many")
    if 0 < projection.roofline_share < ALMOST_ALL:
        say(
            console,
            f"at the roofline: {projection.roofline_share:.1%} of oneDNN's time; the rest as "
            "measured",
        )
    steps = found.steps
    if steps.ranks_of_run is not None and steps.ranks_of_run > steps.ranks:
        say(console, f"images/s are of {steps.ranks} of the run's {steps.ranks_of_run} ranks")


def projection_table(projection: Projection) -> Table:
    """A row for each speed; columns that nobody fills are left out."""
    whole = projection.elsewhere_s is not None
    title = "a step" if whole else "oneDNN's part of a step"
    table = Table("", title=title, title_justify="left")
    headings = ["in oneDNN"]
    headings += ["elsewhere", "step"] if whole else []
    headings += ["images/s"] if projection.measured.images_per_s else []
    headings += ["times as fast"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for speed in projection.speeds:
        cells = [f"{significant(speed.onednn_s)} s"]
        before, after = projection.measured.onednn_s, speed.onednn_s
        if projection.elsewhere_s is not None and speed.step_s is not None:
            cells += [f"{significant(projection.elsewhere_s)} s", f"{significant(speed.step_s)} s"]
            before, after = projection.measured.step_s or 0.0, speed.step_s
        if speed.images_per_s:
            cells.append(f"{speed.images_per_s:.3g}")
        cells.append(f"{before / after:.2f}" if after else "")
        table.add_row(speed.name, *cells)
    return table


@dataclass(frozen=True, slots=True)
class Row:
    """One problem; the names of the fields are the columns. Empty: not measured."""

    kind: str
    direction: str
    types: str
    layouts: str
    attributes: str
    auxiliary: str
    shape: str
    implementation: str
    """In the run."""
    replay_implementation: str
    calls: int
    measured_ms: float
    """Of all calls."""
    measured_a_call_ms: float
    hot_a_call_ms: float | None
    cold_a_call_ms: float | None
    roofline_a_call_ms: float | None
    hot_ratio: float | None
    cold_ratio: float | None
    lost_ms: float | None
    replays: int | None
    """Runs of which the replay's times are medians."""
    why_not_replayed: str


COLUMNS = tuple(field.name for field in fields(Row))


def rows_of(found: Efficiency) -> list[Row]:
    """Replayed problems, those that lose most first; then the others."""
    return [*map(replayed_row, found.problems), *map(not_replayed_row, found.not_replayed)]


def replayed_row(one: ProblemEfficiency) -> Row:
    """A problem with a replay."""
    return Row(
        **identity(one.problem),
        replay_implementation=one.replayed.implementation,
        calls=one.calls,
        measured_ms=one.measured_ms,
        measured_a_call_ms=one.measured_ms / one.calls,
        hot_a_call_ms=one.replayed.hot_ms,
        cold_a_call_ms=one.replayed.cold_ms,
        roofline_a_call_ms=one.roofline_ms,
        hot_ratio=hot_ratio(one),
        cold_ratio=cold_ratio(one),
        lost_ms=one.lost_ms,
        replays=one.replayed.runs,
        why_not_replayed="",
    )


def not_replayed_row(one: NotReplayed) -> Row:
    """A problem without."""
    return Row(
        **identity(one.problem),
        replay_implementation="",
        calls=one.calls,
        measured_ms=one.measured_ms,
        measured_a_call_ms=one.measured_ms / one.calls,
        hot_a_call_ms=None,
        cold_a_call_ms=None,
        roofline_a_call_ms=None,
        hot_ratio=None,
        cold_ratio=None,
        lost_ms=None,
        replays=None,
        why_not_replayed=one.why,
    )


def identity(problem: Problem) -> dict[str, Any]:
    """The columns that tell a problem from others."""
    return {
        "kind": problem.kind,
        "direction": problem.direction,
        "types": problem.types,
        "layouts": problem.layouts,
        "attributes": problem.attributes,
        "auxiliary": problem.auxiliary,
        "shape": problem.shape,
        "implementation": problem.implementation,
    }


def as_json(
    found: Efficiency, projection: Projection | None, *, files: Sequence[str]
) -> dict[str, Any]:
    """Everything; milliseconds of all calls unless a name says otherwise, shares 0 to 1."""
    replay = found.replay
    return {
        "files": list(files),
        "replay": {
            "runner": replay.runner,
            "onednn": replay.version,
            "instruction_set": replay.instruction_set,
            "conditions": asdict(replay.conditions),
        },
        "not_as_in_the_run": list(found.cautions),
        "efficiency": part_json(found.total),
        "measured_ms": found.measured_ms,
        "not_replayed_ms": found.not_replayed_ms,
        "not_replayed_share": found.not_replayed_share,
        "outside_of_steps_ms": found.outside_ms,
        "parts": [part_json(part) for part in found.parts],
        "projection": projection_json(projection),
        "problems": [asdict(row) for row in rows_of(found)],
    }


def part_json(part: Part) -> dict[str, Any]:
    """A part with its ratios."""
    return {
        **asdict(part),
        "hot_ratio": hot_ratio(part),
        "cold_ratio": cold_ratio(part),
        "lost_ms": part.lost_ms,
    }


def projection_json(projection: Projection | None) -> dict[str, Any] | None:
    """A step at each speed; None where steps are not known."""
    if projection is None:
        return None
    return asdict(projection)
