"""What an analysis comes to, in a sentence or two."""

from profiling.trace.analysis import Analysis
from profiling.trace.categories import Category
from profiling.trace.pieces import Piece

DEGREES = ((0.25, "fragmented"), (0.10, "a little fragmented"), (0.0, "hardly fragmented"))
"""From which share of operator time in short pieces on we say so."""


def short_share(analysis: Analysis) -> float:
    """Of operator time, what is in pieces shorter than 0.1 ms."""
    short = analysis.pieces_ns[Piece.SHORT] + analysis.pieces_ns[Piece.CALLING]
    return short / analysis.operator_ns if analysis.operator_ns else 0.0


def gap_share(analysis: Analysis) -> float:
    """Of wall time, what is in gaps."""
    return sum(analysis.gaps_ns.values()) / analysis.wall_ns


def fragmentation_verdict(analysis: Analysis) -> str:
    """Whether operators should be merged."""
    share = short_share(analysis)
    degree = next(name for least, name in DEGREES if share >= least)
    text = f"{degree}: {share:.1%} of operator time is in pieces shorter than 0.1 ms"
    return f"{text}; in gaps, where no operator runs, is {gap_share(analysis):.1%} of the time"


def onednn_verdict(analysis: Analysis, log_ms: float | None = None) -> str:
    """How much is oneDNN's: as far as the trace can tell, and by its log if there is one.

    `log_ms`: oneDNN's own time of a step.
    """
    wall = analysis.wall_ns
    certain = analysis.category_ns(Category.ONEDNN) / wall
    text = f"operators that call oneDNN: {certain:.1%} of the time"
    if log_ms is not None:
        return f"oneDNN itself, by its log: {log_ms * 1e6 * analysis.count / wall:.1%}; {text}"
    products = analysis.category_ns(Category.PRODUCTS) / wall
    unknown = f"matrix products, by oneDNN or another library (--onednn-log tells): {products:.1%}"
    return f"{text}; {unknown}" if products else text
