"""Charts, and tables on the console, as CSV, JSON and Markdown."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.axes import Axes
from rich.text import Text

from common.charts import (
    BLUE,
    PALE,
    Bar,
    Cell,
    Column,
    Piece,
    Table,
    as_svg,
    chart_files,
    colour_legend,
    horizontal_bars,
    new_figure,
    save_chart,
    shortened,
    table_rows,
    text_colour_on,
    text_column,
    write_in_place_of_chart,
)
from common.console import make_console

BARS = (
    Bar("conv", (Piece(3.0, BLUE, "most"), Piece(1.0, PALE)), note="4 ms"),
    Bar("reorder", (Piece(2.0, BLUE),)),
)


def draw_bars(*bars: Bar, **options: float) -> Axes:
    axes = new_figure(height=2).subplots()
    horizontal_bars(axes, bars, **options)  # type: ignore[arg-type]
    return axes


def extents(axes: Axes) -> list[tuple[float, float, float]]:
    """Return the left end, length and middle of each piece of a bar."""
    boxes = [bar.get_path().get_extents(bar.get_patch_transform()) for bar in axes.patches]
    return [(box.x0, box.width, (box.y0 + box.y1) / 2) for box in boxes]


@pytest.mark.slow
def test_module_does_not_load_matplotlib() -> None:
    program = "import sys, common.charts; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"


def test_bars_and_their_pieces() -> None:
    axes = draw_bars(*BARS)
    for edge, expected in zip(extents(axes), [(0, 3, 0), (3, 1, 0), (0, 2, 1)], strict=True):
        assert edge == pytest.approx(expected)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["conv", "reorder"]
    assert [text.get_text().strip() for text in axes.texts] == ["most", "4 ms"]
    bottom, top = axes.get_ylim()
    assert top < 0 and bottom > 1
    assert axes.get_xlim() == pytest.approx((0, 1.2 * 4))


def test_bars_that_share_a_row() -> None:
    axes = draw_bars(*BARS, bars_a_row=2, thickness=0.8)
    assert [middle for _, _, middle in extents(axes)] == pytest.approx([-0.2, -0.2, 0.2])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["conv"]


def test_chart_without_bars() -> None:
    assert draw_bars().get_xlim() == (0, 1)


def test_text_colour_has_contrast() -> None:
    assert [text_colour_on(colour) for colour in (BLUE, PALE, (BLUE, 0.2))] == [
        "white",
        "black",
        "black",
    ]


def test_dollar_signs_and_legend() -> None:
    figure = new_figure(height=2)
    axes = figure.subplots()
    axes.set_title("$x^2$")
    colour_legend(figure, {"a kind": BLUE, "paler": (BLUE, 0.4)}, loc="outside lower center")
    svg = as_svg(figure)
    assert ">$x^2$</text>" in svg and ">a kind</text>" in svg and ">paler</text>" in svg


def test_text_in_place_of_a_chart() -> None:
    axes = new_figure(height=2).subplots()
    write_in_place_of_chart(axes, "none in this log")
    assert ">none in this log</text>" in as_svg(axes.figure)  # type: ignore[arg-type]


@pytest.mark.slow
def test_equal_figures_give_equal_files(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        save_chart(draw_bars(*BARS).figure, *chart_files(tmp_path / folder, "bars"))  # type: ignore[arg-type]
    for name in ("bars.png", "bars.svg"):
        contents = [(tmp_path / folder / name).read_bytes() for folder in ("first", "second")]
        assert contents[0] == contents[1]
    assert (tmp_path / "first" / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_long_names_are_shortened() -> None:
    assert [shortened(text, 5) for text in ("short", "longer")] == ["short", "long…"]


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
    console = make_console(pipe_width=80)
    with console.capture() as capture:
        console.print(table.for_console(**options))  # type: ignore[arg-type]
    return [line.rstrip() for line in capture.get().splitlines()]


def test_table_on_the_console() -> None:
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


def test_table_without_rows() -> None:
    table = Table("", COLUMNS[:2], [], totals=[("all", 0)])
    assert lines(table)[1] == "┃ kind ┃ calls ┃"


def test_table_as_csv() -> None:
    assert TABLE.csv() == (
        "kind,calls,total_ms,share,step\n"
        "reorder�mb2_ic3,12345,12.34,0.5,1.26\n"
        "'=sum|[red]�,3,,0.5,–\n"
    )


def test_table_as_json() -> None:
    assert json.loads(json.dumps(TABLE.records()))[1] == {
        "kind": "=sum|[red]\x1b",
        "calls": 3,
        "total_ms": None,
        "share": 0.5,
        "step": "–",
    }


def test_table_as_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "| kind | calls | ms | share | step |",
        "| --- | --- | --- | --- | --- |",
        "| reorder mb2_ic3 | 12,345 | 12.3 | 50.0% | 1.3 s |",
        "| =sum\\|[red]\x1b | 3 |  | half | – |",
        "| all | 12,348 | 12.3 | 100.0% |  |",
    ]


def test_empty_columns_are_removed() -> None:
    columns = (text_column("a"), Column("b"), Column("c"))
    table = Table("", columns, [("x", None, 1), ("y", "", 2)], totals=[("all", 3, 3)])
    used = table.without_empty_columns()
    assert [column.heading for column in used.columns] == ["a", "c"]
    assert (used.rows, used.totals) == ([["x", 1], ["y", 2]], [["all", 3]])


def test_rows_are_attributes_of_objects() -> None:
    item = SimpleNamespace(kind="sum", calls=1, total_ms=2.0, share=0.1, step=3.0, other=4)
    assert table_rows(COLUMNS, [item]) == [("sum", 1, 2.0, 0.1, 3.0)]


def test_table_with_details_and_with_many_rows() -> None:
    many = Table("", COLUMNS[:2], [("sum", 1)] * 13)
    assert (TABLE.has_details, TABLE.has_filter) == (True, False)
    assert (many.has_details, many.has_filter) == (False, True)


def test_table_ignores_markup() -> None:
    table = Table("[b]title", (text_column("[red]"),), [("[blue]",)])
    text = "\n".join(lines(table))
    assert "[b]title" in text and "[red]" in text and "[blue]" in text
    assert isinstance(next(iter(table.for_console().columns[0].cells)), Text)
