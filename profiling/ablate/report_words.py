"""Sentences of the report."""

from profiling.ablate.outcome import Outcome, shown, shown_interval
from profiling.ablate.statistics import ALIKE, HOLDS, NOTHING
from profiling.ablate.study import Row, Study

METHOD = (
    "Each variant is a process of its own, with its own memory policy and a core for each thread, "
    "and they run in turn, A B A B, one at a time: when the machine is slower for a while, it is "
    "so for all. Weights, images and boxes come from one seed. After the warm-up every run counts.",
    "A ratio is taken round by round, and the median counts. Its interval is the range between "
    "two of these ratios in which the true median lies with at least 90 % confidence, by the sign "
    "test, which assumes nothing of how times scatter; with fewer than five rounds it is the "
    "lowest and the highest.",
    f"Ours and the paper's are called about the same within a factor of {ALIKE:g}. What scatters "
    "so much that it could be the paper's figure as well as none at all is called neither. A "
    f"difference of less than {NOTHING:.0%}, or one whose interval holds 1, is called none.",
    "A conclusion holds where a second run has the same sign and lies within a factor of "
    f"{HOLDS:g}; where neither finds a difference, the factor alone counts.",
    "The paper gives ratios only, of other processors (Cooper Lake, 28 cores a socket) and other "
    "versions; nothing here is scaled to them.",
)


def summary(study: Study) -> list[str]:
    """What there is, for who reads no further."""
    outcomes = study.outcomes
    measured = [one for one in outcomes if one.ratio]
    beside = [one.beside_paper for one in measured if one.beside_paper]
    unsure = "unsure" in beside
    lines = [
        f"{sum(row.is_measured for row in study.rows)} of {len(study.rows)} ablations and "
        f"{len(measured)} of {len(outcomes)} comparisons were measured. "
        f"Of {len(beside)} that the paper has a figure for, {beside.count('alike')} come out about "
        f"the same here, {beside.count('more')} larger and {beside.count('less')} smaller"
        + (f"; of {beside.count('unsure')} the rounds scatter too much." if unsure else ".")
    ]
    second = [one.holds for one in measured if one.holds is not None]
    if second:
        lines.append(
            f"A second run bears out {sum(second)} of {len(second)} conclusions, by sign and size."
        )
    unfinished = [row.name for row in study.rows if row.state]
    if unfinished:
        lines.append(f"Not finished: {', '.join(unfinished)}.")
    return lines


def verdict(one: Outcome) -> str:
    """A comparison in a sentence."""
    if one.ratio is None:
        return f"{one.what}: {one.missing}."
    kind = one.comparison.ratio
    interval = shown_interval(one.ratio, kind)
    words = {"times as fast": " as fast", "times as much": " as much", "share": ""}[kind]
    found = f"{one.what}: {shown(one.ratio.median, kind)}{words}"
    found += f" ({interval})" if interval else ""
    if kind != "share" and one.ratio.rounds > 1 and not one.ratio.is_clear:
        found += ", no difference"
    if one.comparison.paper:
        relation = {"alike": "about", "more": "more than", "less": "less than"}
        words = relation.get(one.beside_paper, "beside")
        found += f", {words} the paper's {shown(one.comparison.paper, kind)}"
    return f"{found}. {one.why}".strip()


def holding(one: Outcome) -> str:
    """`yes` or `no`; empty without a second run."""
    return {True: "yes", False: "no", None: ""}[one.holds]


def remarks(row: Row) -> list[str]:
    """What else there is to say of an ablation."""
    found = [row.ablation.remark] if row.ablation.remark else []
    if row.state:
        found.append(f"Incomplete: {row.state}.")
    if row.has_other_again:
        found.append("The second run is of another definition, and is left out.")
    if row.result and row.result.busy_cores and max(row.result.busy_cores) > 0.1:
        cores = max(row.result.busy_cores)
        found.append(f"Other work kept {cores:.2f} cores busy meanwhile.")
    return found


def calls_sentence(row: Row) -> str:
    """What comparing two logs has found; empty where none were compared."""
    calls = row.result.calls if row.result else None
    if not calls:
        return ""
    kinds = [one for one in calls["kinds"] if one["first_calls"] != one["second_calls"]]
    words = [
        f"{one['first_calls'] - one['second_calls']:+.0f} {one['kind']} "
        f"({one['first_calls']:.0f} against {one['second_calls']:.0f}, "
        f"{one['first_ms'] - one['second_ms']:+.0f} ms)"
        for one in kinds
    ]
    return (
        f"`profiling compare` of one step's logs finds, {calls['first']} against "
        f"{calls['second']}: {', '.join(words) or 'as many calls of every kind'}."
    )
