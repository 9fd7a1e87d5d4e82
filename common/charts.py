"""Charts as files: the same colours everywhere, PNG to look at and SVG to zoom into."""

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from common.files import write_whole

mpl.rcParams["text.parse_math"] = False  # a name in a log may hold a $


def new_figure(width: float, height: float) -> Figure:
    """A figure without a window, `width` x `height` inches at 110 dots an inch."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def short(milliseconds: float) -> str:
    """Three digits that count, never fewer than are before the point."""
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def as_png(figure: Figure) -> bytes:
    """The figure as pixels."""
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def as_svg(figure: Figure) -> str:
    """The figure as SVG whose text is text, equal for equal figures."""
    picture = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "profiling"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


def write_picture(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; returns both.

    Raises:
        InputError: They cannot be written.
    """
    files = picture_files(stem)
    write_whole(files[0], as_png(figure))
    write_whole(files[1], as_svg(figure))
    return files


def picture_files(stem: Path) -> list[Path]:
    """What `write_picture` writes."""
    return [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "svg")]
