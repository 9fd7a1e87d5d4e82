"""Charts: what they look like, and that matplotlib is loaded for a figure only."""

import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from common.charts import (
    BLUE,
    PALE,
    Bar,
    Piece,
    as_svg,
    chart_files,
    colour_legend,
    horizontal_bars,
    new_figure,
    save_chart,
    shortened,
    text_colour_on,
    write_in_place_of_chart,
)

BARS = (
    Bar("conv", (Piece(3.0, BLUE, "most"), Piece(1.0, PALE)), note="4 ms"),
    Bar("reorder", (Piece(2.0, BLUE),)),
)


def axes_of(*bars: Bar, **options: float) -> Axes:
    axes = new_figure(height=2).subplots()
    horizontal_bars(axes, bars, **options)  # type: ignore[arg-type]
    return axes


def places(axes: Axes) -> list[tuple[float, float, float]]:
    """Left end, length and middle of each piece of a bar."""
    boxes = [bar.get_path().get_extents(bar.get_patch_transform()) for bar in axes.patches]
    return [(box.x0, box.width, (box.y0 + box.y1) / 2) for box in boxes]


def test_matplotlib_is_not_loaded_with_the_module() -> None:
    program = "import sys, common.charts; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"


def test_bars_stand_one_below_the_other_with_pieces_side_by_side() -> None:
    axes = axes_of(*BARS)
    for edge, expected in zip(places(axes), [(0, 3, 0), (3, 1, 0), (0, 2, 1)], strict=True):
        assert edge == pytest.approx(expected)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["conv", "reorder"]
    assert [text.get_text().strip() for text in axes.texts] == ["most", "4 ms"]
    bottom, top = axes.get_ylim()
    assert top < 0 and bottom > 1
    assert axes.get_xlim() == pytest.approx((0, 1.2 * 4))


def test_bars_that_share_a_row_are_thinner_and_have_one_name() -> None:
    axes = axes_of(*BARS, bars_a_row=2, thickness=0.8)
    assert [middle for _, _, middle in places(axes)] == pytest.approx([-0.2, -0.2, 0.2])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["conv"]


def test_no_bars_are_an_empty_chart() -> None:
    assert axes_of().get_xlim() == (0, 1)


def test_text_on_a_colour_can_be_read() -> None:
    assert [text_colour_on(colour) for colour in (BLUE, PALE, (BLUE, 0.2))] == [
        "white",
        "black",
        "black",
    ]


def test_a_dollar_is_a_dollar_and_a_legend_has_its_names() -> None:
    figure = new_figure(height=2)
    axes = figure.subplots()
    axes.set_title("$x^2$")
    colour_legend(figure, {"a kind": BLUE, "paler": (BLUE, 0.4)}, loc="outside lower center")
    svg = as_svg(figure)
    assert ">$x^2$</text>" in svg and ">a kind</text>" in svg and ">paler</text>" in svg


def test_axes_without_anything_say_so() -> None:
    axes = new_figure(height=2).subplots()
    write_in_place_of_chart(axes, "none in this log")
    assert ">none in this log</text>" in as_svg(axes.figure)  # type: ignore[arg-type]


def test_equal_figures_are_equal_files_of_both_kinds(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        save_chart(axes_of(*BARS).figure, *chart_files(tmp_path / folder, "bars"))  # type: ignore[arg-type]
    for name in ("bars.png", "bars.svg"):
        contents = [(tmp_path / folder / name).read_bytes() for folder in ("first", "second")]
        assert contents[0] == contents[1]
    assert (tmp_path / "first" / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_names_that_are_too_long_end_in_an_ellipsis() -> None:
    assert [shortened(text, 5) for text in ("short", "longer")] == ["short", "long…"]
