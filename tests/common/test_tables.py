"""Tables: the same rows on the console, as CSV, JSON and Markdown."""

import json
from types import SimpleNamespace

from rich.text import Text

from common.charts import Cell, Column, Table, rows_of, text_column
from common.console import make_console

COLUMNS = (
    text_column("kind"),
    Column("calls", ","),
    Column("ms", ",.1f", name="total_ms"),
    Column("share", ".1%"),
    Column("step", "{:.2g}".format, unit=" s"),
)
TABLE = Table(
    "time by kind",
    COLUMNS,
    [
        ("reorder\nmb2_ic3", 12345, 12.34, 0.5, 1.26),
        ("=sum|[red]\x1b", 3, None, Cell("half", 0.5), "–"),
    ],
    totals=[("all", 12348, 12.34, 1.0, None)],
)


def lines(table: Table, **options: bool) -> list[str]:
    console = make_console(width=80)
    with console.capture() as capture:
        console.print(table.for_console(**options))  # type: ignore[arg-type]
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_console_aligns_numbers_right_and_sets_totals_apart() -> None:
    assert lines(TABLE) == [
        "time by kind",
        "┏━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━┳━━━━━━━━┳━━━━━━━┓",
        "┃ kind        ┃  calls ┃   ms ┃  share ┃  step ┃",
        "┡━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━╇━━━━━━━━╇━━━━━━━┩",
        "│ reorder     │ 12,345 │ 12.3 │  50.0% │ 1.3 s │",
        "│ mb2_ic3     │        │      │        │       │",
        "│ =sum|[red]� │      3 │      │   half │     – │",
        "├─────────────┼────────┼──────┼────────┼───────┤",
        "│ all         │ 12,348 │ 12.3 │ 100.0% │       │",
        "└─────────────┴────────┴──────┴────────┴───────┘",
    ]


def test_a_table_without_rows_has_its_headings() -> None:
    table = Table("", COLUMNS[:2], [], totals=[("all", 0)])
    assert lines(table)[1] == "┃ kind ┃ calls ┃"


def test_csv_has_fields_and_numbers_and_no_formula() -> None:
    assert TABLE.csv() == (
        "kind,calls,total_ms,share,step\n"
        "reorder�mb2_ic3,12345,12.34,0.5,1.26\n"
        "'=sum|[red]�,3,,0.5,–\n"
    )


def test_json_has_fields_and_numbers() -> None:
    assert json.loads(json.dumps(TABLE.records()))[1] == {
        "kind": "=sum|[red]\x1b",
        "calls": 3,
        "total_ms": None,
        "share": 0.5,
        "step": "–",
    }


def test_markdown_keeps_cells_on_one_line() -> None:
    assert TABLE.markdown().splitlines() == [
        "| kind | calls | ms | share | step |",
        "| --- | --- | --- | --- | --- |",
        "| reorder mb2_ic3 | 12,345 | 12.3 | 50.0% | 1.3 s |",
        "| =sum\\|[red]\x1b | 3 |  | half | – |",
        "| all | 12,348 | 12.3 | 100.0% |  |",
    ]


def test_columns_that_no_row_fills_are_left_out() -> None:
    columns = (text_column("a"), Column("b"), Column("c"))
    table = Table("", columns, [("x", None, 1), ("y", "", 2)], totals=[("all", 3, 3)])
    used = table.without_empty_columns()
    assert [column.heading for column in used.columns] == ["a", "c"]
    assert (used.rows, used.totals) == ([["x", 1], ["y", 2]], [["all", 3]])


def test_rows_are_attributes_of_objects() -> None:
    item = SimpleNamespace(kind="sum", calls=1, total_ms=2.0, share=0.1, step=3.0, other=4)
    assert rows_of(COLUMNS, [item]) == [("sum", 1, 2.0, 0.1, 3.0)]


def test_a_page_is_told_of_details_and_of_many_rows() -> None:
    many = Table("", COLUMNS[:2], [("sum", 1)] * 13)
    assert (TABLE.has_details, TABLE.has_filter) == (True, False)
    assert (many.has_details, many.has_filter) == (False, True)


def test_headings_and_texts_are_no_markup() -> None:
    table = Table("[b]title", (text_column("[red]"),), [("[blue]",)])
    text = "\n".join(lines(table))
    assert "[b]title" in text and "[red]" in text and "[blue]" in text
    assert isinstance(next(iter(table.for_console().columns[0].cells)), Text)
