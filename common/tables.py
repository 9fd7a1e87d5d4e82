"""Tables: columns are described once, rows are plain values; console, CSV, JSON and page follow.

    columns = (text_column("kind"), Column("ms", ",.1f", name="total_ms"), Column("share", ".1%"))
    table = Table("time by kind", columns, [("reorder", 12.34, 0.5), ("sum", None, 0.5)])
    console.print(table.for_console())
    write_whole(file, table.csv())
    json.dumps(table.records())  # [{"kind": "reorder", "total_ms": 12.34, "share": 0.5}, …

A value of a row is a number, which its column formats; a text, which stays as it is, in columns of
numbers too; None, which is empty; or a `Cell`, a value whose text its column cannot make.
Lines of a text after the first are details: the page has them smaller.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from rich import table as rich_table
from rich.text import Text

from common.errors import printable
from common.files import as_csv


class Cell(NamedTuple):
    """A value that has a text of its own."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers, or of texts (`text_column`)."""

    heading: str
    """For people; `\\n` begins a new line."""
    format: str | Callable[[Any], str] = ""
    """Of numbers for people: as in `format(number, ",.1f")`, or a function."""
    _: KW_ONLY
    name: str = ""
    """The field in CSV and JSON, and the attribute that `rows_of` reads; empty: the heading."""
    unit: str = ""
    """Follows each number for people, such as ` s`."""
    is_number: bool = True
    """Aligned right, and sorted as numbers on a page."""
    meaning: str = ""
    """A sentence for the page where the heading does not say it all."""
    no_wrap: bool = False
    """Whether a text stays on one line of the console."""

    @property
    def field(self) -> str:
        """Its name in CSV and JSON."""
        return self.name or self.heading

    def text(self, value: object) -> str:
        """Return a value of this column as people read it."""
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
    """Return a value for programs: that of a `Cell`, or the value itself."""
    return value.value if isinstance(value, Cell) else value


def rows_of(columns: Iterable[Column], objects: Iterable[object]) -> list[tuple[object, ...]]:
    """Return a row for each object: its attributes that have the names of the columns."""
    getters = [attrgetter(column.field) for column in columns]
    return [tuple(getter(item) for getter in getters) for item in objects]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; `totals` are rows that stand apart at the end."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    _: KW_ONLY
    totals: Sequence[Sequence[object]] = ()
    notes: Sequence[str] = ()
    """Sentences below it, on a page and in Markdown."""

    def for_console(
        self, *, show_lines: bool = False, vertical: Literal["top", "bottom"] = "top"
    ) -> rich_table.Table:
        """Return it for `Console.print`; nothing in it is markup, or moves the cursor.

        Args:
            show_lines: Whether there is a line between rows.
            vertical: Where cells of one line stand beside those of several.
        """
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
        """Return names of fields and rows as CSV, without totals."""
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
        """Return a row as people read it."""
        return [column.text(value) for column, value in zip(self.columns, row, strict=True)]

    def without_empty_columns(self) -> "Table":
        """Return it without columns in which no row has a text."""
        texts = [self.texts(row) for row in self.rows]
        used = [place for place in range(len(self.columns)) if any(row[place] for row in texts)]

        def chosen(row: Sequence[object]) -> list[object]:
            return [row[place] for place in used]

        return replace(
            self,
            columns=[self.columns[place] for place in used],
            rows=list(map(chosen, self.rows)),
            totals=list(map(chosen, self.totals)),
        )

    @property
    def has_details(self) -> bool:
        """Whether a page needs room for smaller lines below names."""
        return any("\n" in self.columns[0].text(row[0]) for row in self.rows)

    @property
    def has_filter(self) -> bool:
        """Whether a page offers to search in it."""
        return len(self.rows) > 12


def shown(text: str) -> Text:
    """Return a text for the console, its lines without control characters."""
    return Text("\n".join(map(printable, text.split("\n"))))


def markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in GitHub's notation; cells are on one line and hold any character."""
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row]
             for row in (headings, *rows)]  # fmt: skip
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
