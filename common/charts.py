"""Charts: one look for all, PNG to look at, SVG to zoom into and for pages.

matplotlib is loaded when a figure is made, not when this module is imported, so that a module can
have the functions that draw its charts beside those that print its tables. Such a module imports
`Axes` and `Figure` under TYPE_CHECKING only.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#3c8ddc", "#f08c00", "#2f9e44", "#e6194b"
PURPLE, TEAL, OLIVE, GREY = "#9c36b5", "#0c8599", "#5c940d", "#868e96"
DARK, PALE = "#495057", "#ced4da"
"""For lines and remainders; for what is not measured in detail."""
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, OLIVE, GREY)
"""In the order in which series that have no colour of their own get one."""

Colour = str | tuple[str, float]
"""Such as `#3c8ddc`; with its opacity, 0 to 1, for a paler one."""


def new_figure(*, width: float = 10.0, height: float) -> "Figure":
    """Return a figure without a window, `width` x `height` inches at 110 dots an inch."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["text.parse_math"] = False  # a name in a log may hold a $
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar, of a length in the unit of the axis."""

    value: float
    colour: Colour
    label: str = ""
    """Written in its middle."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of one or several pieces, from left to right."""

    name: str
    """Written left of it."""
    pieces: Sequence[Piece]
    note: str = ""
    """Written right of its end."""


def horizontal_bars(
    axes: "Axes",
    bars: Sequence[Bar],
    *,
    bars_a_row: int = 1,
    rows: int = 0,
    room: float = 1.2,
    thickness: float = 0.7,
    fontsize: float = 9,
    name_size: float | None = None,
) -> None:
    """Draw bars one below the other, the first on top, from 0 to the right.

    Args:
        axes: Where; its limits are set.
        bars: What to draw. The name of a row is that of its first bar.
        bars_a_row: So many successive bars share a row.
        rows: Height of the axes in rows, where it is more than there are.
        room: The axis beyond the longest bar, for the notes: 1 is no room.
        thickness: Of all bars of a row together, in rows.
        fontsize: Of labels and notes.
        name_size: Of names; None: matplotlib's.
    """
    count = -(-len(bars) // bars_a_row)
    height = thickness / bars_a_row
    longest = 0.0
    for place, bar in enumerate(bars):
        middle = place // bars_a_row + (place % bars_a_row - (bars_a_row - 1) / 2) * height
        end = 0.0
        for piece in bar.pieces:
            axes.barh(middle, piece.value, left=end, color=piece.colour, height=height)
            if piece.label:
                axes.text(end + piece.value / 2, middle, piece.label, ha="center", va="center",
                          color=ink_on(piece.colour), fontsize=fontsize)  # fmt: skip
            end += piece.value
        if bar.note:
            axes.text(end, middle, f"  {bar.note}", va="center", fontsize=fontsize)
        longest = max(longest, end)
    names = [bar.name for bar in bars[::bars_a_row]]
    axes.set_yticks(range(count), names, fontsize=name_size)
    axes.set_ylim(max(count, rows) - 0.5, -0.6)
    axes.set_xlim(0, room * longest or 1.0)
    axes.spines[["top", "right"]].set_visible(False)


def ink_on(colour: Colour) -> str:
    """Return a colour of text that can be read on another colour."""
    from matplotlib.colors import to_rgba

    red, green, blue, opacity = to_rgba(colour)
    brightness = 1 - opacity * (1 - (0.3 * red + 0.59 * green + 0.11 * blue))
    return "black" if brightness > 0.7 else "white"


def colour_legend(
    target: "Axes | Figure", colours: Mapping[str, Colour], *, columns: int = 1, **options: Any
) -> None:
    """Add a legend with a patch for each name.

    Args:
        target: Axes, or a figure for a legend beside all its axes (`loc="outside lower center"`).
        colours: By name, in order.
        columns: Names that stand side by side.
        options: Of matplotlib's `legend`, such as `loc`.
    """
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    target.legend(handles=handles, ncols=columns, **options)


def write_in_place_of_chart(axes: "Axes", text: str) -> None:
    """Write a text in the middle of axes that have nothing to show."""
    axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
    axes.set_axis_off()


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many characters, with an ellipsis if its end is left out."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG."""
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def as_svg(figure: "Figure") -> str:
    """Return the figure as SVG whose text is text, equal for equal figures."""
    import matplotlib as mpl

    svg = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "profiling"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def save_chart(figure: "Figure", *files: Path) -> None:
    """Write the figure to files, each as SVG or PNG by the end of its name.

    Raises:
        InputError: They cannot be written.
    """
    for file in files:
        write_whole(file, as_svg(figure) if file.suffix == ".svg" else as_png(figure))


def chart_files(folder: Path, *names: str) -> list[Path]:
    """Return the files of charts with such names: `NAME.png` and `NAME.svg` in the folder."""
    return [folder / f"{name}.{ending}" for name in names for ending in ("png", "svg")]
