"""Charts and tables: one look for all charts, and one model for all tables.

matplotlib is loaded when a figure is made, not when this module is imported. A module that draws
charts imports `Axes` and `Figure` under TYPE_CHECKING only.

Tables: columns are described once, rows are plain values; console, CSV, JSON and page follow.

    columns = (text_column("kind"), Column("ms", ",.1f", name="total_ms"), Column("share", ".1%"))
    table = Table("time by kind", columns, [("reorder", 12.34, 0.5), ("sum", None, 0.5)])
    console.print(table.for_console())
    write_atomically(file, table.csv())
    json.dumps(table.records())  # [{"kind": "reorder", "total_ms": 12.34, "share": 0.5}, …

A value of a row is a number, which its column formats; a text, which stays as it is; None, which is
empty; or a `Cell`, a value with a text of its own. A page shows the lines of a text after the first
in a smaller type.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich import table as rich_table
from rich.text import Text

from common.errors import printable
from common.files import as_csv, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#3c8ddc", "#f08c00", "#2f9e44", "#e6194b"
PURPLE, TEAL, OLIVE, GREY = "#9c36b5", "#0c8599", "#5c940d", "#868e96"
DARK, PALE = "#495057", "#ced4da"
"""For lines and remainders; for what is not measured in detail."""
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, OLIVE, GREY)
"""In the order in which series that have no colour of their own get one."""

Colour = str | tuple[str, float]  # such as `#3c8ddc`; with its opacity, 0 to 1, for a paler one


def new_figure(*, width: float = 10.0, height: float) -> "Figure":
    """Return a figure without a window, `width` x `height` inches at 110 dots an inch."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["text.parse_math"] = False  # a name in a log may hold a $
    # Not pyplot, which keeps each figure until it is closed and may open a window system's backend.
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar, of a length in the unit of the axis; its label is in its middle."""

    value: float
    colour: Colour
    label: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of pieces from left to right, between its name and a note."""

    name: str
    pieces: Sequence[Piece]
    note: str = ""


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

    `bars_a_row` successive bars share a row, with the name of the first; `thickness` is that of
    all of them together. `rows` is the height of the axes in rows if that is more. `room` is the
    length of the axis for the notes, in lengths of the longest bar.
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
                          color=text_colour_on(piece.colour), fontsize=fontsize)  # fmt: skip
            end += piece.value
        if bar.note:
            # The white box keeps it legible where a vertical line of the chart crosses it.
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
            axes.annotate(bar.note, (end, middle), xytext=(6, 0), textcoords="offset points",
                          va="center", fontsize=fontsize, bbox=box, zorder=3)  # fmt: skip
        longest = max(longest, end)
    names = [bar.name for bar in bars[::bars_a_row]]
    axes.set_yticks(range(count), names, fontsize=name_size)
    # The limits are in reverse order, so that row 0 is on top.
    axes.set_ylim(max(count, rows) - 0.5, -0.6)
    # matplotlib warns about limits that are equal, as those of empty bars would be.
    axes.set_xlim(0, room * longest or 1.0)
    axes.spines[["top", "right"]].set_visible(False)


def text_colour_on(colour: Colour) -> str:
    """Return black or white, whichever can be read on a colour."""
    from matplotlib.colors import to_rgba

    red, green, blue, opacity = to_rgba(colour)
    # Luma with the weights of ITU-R BT.601 (0.299, 0.587, 0.114), blended with a white page.
    brightness = 1 - opacity * (1 - (0.3 * red + 0.59 * green + 0.11 * blue))
    return "black" if brightness > 0.7 else "white"


def colour_legend(
    target: "Axes | Figure", colours: Mapping[str, Colour], *, columns: int = 1, **options: Any
) -> None:
    """Add a legend with a patch for each name; `columns` names stand side by side.

    The target may be a figure, for a legend beside all its axes (`loc="outside lower center"`).
    `options` are those of matplotlib's `legend`.
    """
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    target.legend(handles=handles, ncols=columns, **options)


def write_in_place_of_chart(axes: "Axes", text: str) -> None:
    """Write a text in the middle of axes that have nothing to show."""
    axes.text(0.5, 0.5, text, ha="center", transform=axes.transAxes)
    axes.set_axis_off()


def shortened(text: str, most: int) -> str:
    """Return the text, shortened with an ellipsis to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def as_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG."""
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def as_svg(figure: "Figure") -> str:
    """Return the figure as SVG whose text is text, equal for equal figures."""
    import matplotlib as mpl

    # By default matplotlib draws text as outlines. It also writes ids with a random salt and the
    # time, which would differ between equal figures.
    svg = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "profiling"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def save_chart(figure: "Figure", *files: Path) -> None:
    """Write the figure as SVG or PNG, by each file's suffix; raise InputError if it cannot."""
    for file in files:
        write_atomically(file, as_svg(figure) if file.suffix == ".svg" else as_png(figure))


def chart_names(*names: str) -> list[str]:
    """Return the names of a chart's files, `NAME.png` and `NAME.svg`, for each chart."""
    return [f"{name}.{ending}" for name in names for ending in ("png", "svg")]


def chart_files(folder: Path, *names: str) -> list[Path]:
    """Return the files of charts with such names in the folder; see `chart_names`."""
    return [folder / name for name in chart_names(*names)]


class Cell(NamedTuple):
    """A value with a text for people."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers, or of texts (`text_column`); `\\n` in its heading begins a new line."""

    heading: str
    format: str | Callable[[Any], str] = ""
    """The display format of numbers: as in `format(number, ",.1f")`, or a function."""
    _: KW_ONLY
    name: str = ""
    """The field in CSV and JSON, and the attribute that `table_rows` reads; empty: the heading."""
    unit: str = ""  # follows each number for people, such as ` s`
    is_number: bool = True  # aligned right, and sorted as numbers on a page
    meaning: str = ""  # a sentence for the page where the heading is not enough
    no_wrap: bool = False  # keep a text on one line of the console

    @property
    def field(self) -> str:
        """The name in CSV and JSON."""
        return self.name or self.heading

    def text(self, value: object) -> str:
        """Return a value of this column, formatted for people."""
        if value is None or isinstance(value, str):
            return value or ""
        if isinstance(value, Cell):
            return value.text
        number = self.format(value) if callable(self.format) else format(value, self.format)
        return f"{number}{self.unit}"


def text_column(
    heading: str, *, name: str = "", meaning: str = "", no_wrap: bool = False
) -> Column:
    """Return a column of texts, aligned left."""
    return Column(heading, name=name, is_number=False, meaning=meaning, no_wrap=no_wrap)


def plain(value: object) -> object:
    """Return the plain value of a cell, for programs."""
    return value.value if isinstance(value, Cell) else value


def table_rows(columns: Iterable[Column], objects: Iterable[object]) -> list[tuple[object, ...]]:
    """Return a row for each object: its attributes that have the names of the columns."""
    getters = [attrgetter(column.field) for column in columns]
    return [tuple(getter(item) for getter in getters) for item in objects]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings, `totals` apart at the end, `notes` below (page and Markdown only)."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    _: KW_ONLY
    totals: Sequence[Sequence[object]] = ()
    notes: Sequence[str] = ()

    def for_console(
        self, *, show_lines: bool = False, vertical: Literal["top", "bottom"] = "top"
    ) -> rich_table.Table:
        """Return a rich table without markup; `vertical` aligns cells of a single line."""
        title = printable(self.title) or None
        table = rich_table.Table(title=title, title_justify="left", show_lines=show_lines)
        for column in self.columns:
            table.add_column(
                shown(column.heading),
                justify="right" if column.is_number else "left",
                vertical=vertical,
                overflow="ellipsis" if column.is_number else "fold",
                no_wrap=column.no_wrap,
            )
        for place, row in enumerate((*self.rows, *self.totals)):
            if place and place == len(self.rows):
                table.add_section()
            table.add_row(*map(shown, self.texts(row)))
        return table

    def csv(self) -> str:
        """Return field names and rows as CSV, without totals."""
        return as_csv([column.field for column in self.columns], (map(plain, r) for r in self.rows))

    def records(self) -> list[dict[str, object]]:
        """Return the rows for JSON, without totals."""
        names = [column.field for column in self.columns]
        return [dict(zip(names, map(plain, row), strict=True)) for row in self.rows]

    def markdown(self) -> str:
        """Return rows and totals in GitHub's notation."""
        rows = [self.texts(row) for row in (*self.rows, *self.totals)]
        return markdown_table([column.heading for column in self.columns], rows)

    def texts(self, row: Sequence[object]) -> list[str]:
        """Return a row, formatted for people."""
        return [column.text(value) for column, value in zip(self.columns, row, strict=True)]

    def without_empty_columns(self) -> "Table":
        """Return the table without columns in which no row has a text."""
        texts = [self.texts(row) for row in self.rows]
        used = [place for place in range(len(self.columns)) if any(row[place] for row in texts)]
        return replace(
            self,
            columns=[self.columns[place] for place in used],
            rows=[[row[place] for place in used] for row in self.rows],
            totals=[[row[place] for place in used] for row in self.totals],
        )

    @property
    def has_details(self) -> bool:
        """Whether a page shows smaller lines below names."""
        return any("\n" in self.columns[0].text(row[0]) for row in self.rows)

    @property
    def has_filter(self) -> bool:
        """Whether a page shows a search field for the table."""
        return len(self.rows) > 12


def shown(text: str) -> Text:
    """Return a text for the console, its lines without control characters."""
    # A `Text` has no markup. In a plain string of a table rich may read `[red]` as a style.
    return Text("\n".join(map(printable, text.split("\n"))))


def markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in GitHub's notation; cells are on one line and hold any character."""
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row]
             for row in (headings, *rows)]  # fmt: skip
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
