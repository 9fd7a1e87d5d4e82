"""The chart of where oneDNN's time goes (paper, Figure 2)."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from profiling.directions import DIRECTION_COLOURS, direction_name
from profiling.pictures import new_figure, short
from profiling.stats.rows import Part

BARS = 12
"""Kinds with a bar of their own; the others share one."""
SMALLEST_LABELLED = 0.06
"""Share from which a piece of a bar has its number in it."""


def draw_distribution(parts: Sequence[Part], *, title: str) -> Figure:
    """A bar for each kind of primitive, in pieces by direction; lengths are milliseconds."""
    by_kind: dict[str, dict[str, Part]] = {}
    for part in parts:
        by_kind.setdefault(part.kind, {})[part.direction] = part
    kinds = sorted(by_kind, key=lambda kind: -sum(p.total_ms for p in by_kind[kind].values()))
    rows: list[tuple[str, list[Part]]] = [
        (kind, list(by_kind[kind].values())) for kind in kinds[:BARS]
    ]
    if kinds[BARS:]:
        rest = [part for kind in kinds[BARS:] for part in by_kind[kind].values()]
        rows.append((f"{len(kinds) - BARS} other kinds", rest))
    figure = new_figure(10, 2.0 + 0.5 * len(rows))
    axes = figure.subplots()
    total = sum(part.total_ms for part in parts)
    for place, (_, pieces) in enumerate(rows):
        start = 0.0
        for part in sorted(pieces, key=lambda part: list(DIRECTION_COLOURS).index(name_of(part))):
            colour = DIRECTION_COLOURS[name_of(part)]
            axes.barh(place, part.total_ms, left=start, color=colour, height=0.7)
            if part.total_ms > SMALLEST_LABELLED * total:
                middle = start + part.total_ms / 2
                axes.text(middle, place, f"{part.share:.0%}", ha="center", va="center",
                          color="white", fontsize=9)  # fmt: skip
            start += part.total_ms
        axes.text(
            start, place, f"  {short(start)} ms, {start / total:.1%}", va="center", fontsize=9
        )
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds in all calls")
    axes.set_xlim(0, 1.18 * max(sum(part.total_ms for part in pieces) for _, pieces in rows))
    axes.spines[["top", "right"]].set_visible(False)
    names = dict.fromkeys(name_of(part) for part in parts)
    for name in sorted(names, key=list(DIRECTION_COLOURS).index):
        axes.bar(0, 0, color=DIRECTION_COLOURS[name], label=name or "no direction")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16 - 0.3 / len(rows)), ncol=5)
    figure.suptitle(title)
    return figure


def name_of(part: Part) -> str:
    """A direction that has a colour."""
    name = direction_name(part.direction)
    return name if name in DIRECTION_COLOURS else ""
