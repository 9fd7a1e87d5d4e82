"""Charts of the toolkit as blocks of the page."""

import warnings
from collections.abc import Callable

import matplotlib as mpl
from matplotlib.figure import Figure

from profiling.report.blocks import Chart
from profiling.report.inline_svg import inline_svg


def chart(draw: Callable[[], Figure], *, name: str, label: str, caption: str) -> Chart:
    """Draw a figure and make it part of the page.

    Args:
        draw: Makes the figure.
        name: Of this chart alone.
        label: What a screen reader says of it.
        caption: Shown below it.
    """
    # A log's words are no formulas, and a letter that a font lacks is no news.
    with mpl.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        return Chart(inline_svg(draw(), name=name, label=label), caption=caption)
