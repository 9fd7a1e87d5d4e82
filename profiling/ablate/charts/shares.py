"""Parts of a whole: which primitives a step consists of."""

from itertools import cycle
from statistics import median

from matplotlib.axes import Axes

from profiling.ablate.ablation import Ablation
from profiling.ablate.charts.colours import LINES, PRIMITIVES
from profiling.ablate.result import Result

SMALLEST = 0.01
"""Parts that are less everywhere are `others`."""
LABELLED = 0.06


def draw_shares(axes: Axes, ablation: Ablation, result: Result) -> None:
    """A bar of 100 % for each variant, the first on top."""
    names = list(result.definition["variants"])
    shares = {name: shares_of(result, name, ablation.chart.of) for name in names}
    kinds = sorted(
        {kind for found in shares.values() for kind in found},
        key=lambda kind: (order(kind), -max(found.get(kind, 0) for found in shares.values())),
    )
    colours = colours_of(kinds)
    for place, name in enumerate(names):
        start = 0.0
        for kind in kinds:
            share = shares[name].get(kind, 0.0)
            axes.barh(place, share, left=start, color=colours[kind], height=0.66)
            if share >= LABELLED:
                axes.text(
                    start + share / 2, place, f"{share:.0%}", ha="center", va="center", fontsize=8
                )
            start += share
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of forward and backward pass")
    handles = [axes.barh(0, 0, color=colours[kind], label=kind) for kind in kinds]
    axes.figure.legend(
        handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    axes.spines[["top", "right"]].set_visible(False)


def shares_of(result: Result, name: str, prefix: str) -> dict[str, float]:
    """Medians of a variant's parts, over their sum; small ones together."""
    keys = {key for of_round in result.rounds for key in of_round[name].details}
    parts = {
        key.removeprefix(prefix): median(result.values(name, key))
        for key in sorted(keys)
        if key.startswith(prefix)
    }
    whole = sum(parts.values())
    found: dict[str, float] = {}
    for kind, seconds in parts.items():
        called = kind if seconds / whole >= SMALLEST or kind in PRIMITIVES else "others"
        found[called] = found.get(called, 0.0) + seconds / whole
    return {kind: share for kind, share in found.items() if share}


def order(kind: str) -> int:
    """Convolutions, products, the rest, and last what happens elsewhere."""
    known = list(PRIMITIVES)
    if kind == "elsewhere":
        return len(known) + 1
    return known.index(kind) if kind in known else len(known)


def colours_of(kinds: list[str]) -> dict[str, str]:
    """A colour for each kind."""
    left = cycle(colour for colour in reversed(LINES) if colour not in PRIMITIVES.values())
    return {kind: PRIMITIVES.get(kind) or next(left) for kind in kinds}
