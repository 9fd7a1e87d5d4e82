"""The report: every kind of picture, both pages, and the page in a browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from common.charts import as_svg
from profiling.ablate.analysis import Row, Study, compare_variants, make_row
from profiling.ablate.charts import picture
from profiling.ablate.definition import Ablation
from profiling.ablate.report import make_sections, markdown_page, remarks, summary
from profiling.ablate.result import Result
from profiling.report.page import render_page
from tests.profiling.ablate.made import ablation, result, run
from tests.support.browsers import chromium

COMMAND = "python -m profiling ablate run not-yet --quick"
SENTENCES = {"more": "It is more.", "alike": "It is alike.", "less": "It is less."}
PAPER = ablation(comparisons=[{"change": "quick", "baseline": "slow", "paper": 1.2, **SENTENCES}])
PARTS = {
    "slow": [run(3.0, forward=1.0, backward=2.0), run(3.2, forward=1.1, backward=2.1)],
    "quick": [run(2.0, forward=0.5, backward=1.5), run(2.1, forward=0.6, backward=1.5)],
}


def drawn(one: Ablation, found: Result) -> str:
    """The words of a picture."""
    figure = picture(one, found, compare_variants(one, found))
    return " ".join(re.findall(r"<text[^>]*>([^<]*)", as_svg(figure)))


def test_bars_show_each_variant_its_parts_and_its_number() -> None:
    one = ablation(chart={"parts": ["forward", "backward"], "per": "a step"})
    words = drawn(one, result(PARTS))
    for word in ("slow", "quick", "forward", "backward", "3.1", "seconds, a step", "1.51×"):
        assert word in words, word


def test_the_papers_figure_is_in_the_picture() -> None:
    assert "the paper" in drawn(PAPER, result(PARTS))
    assert "the paper" not in drawn(ablation(), result(PARTS))


def test_shares_add_up_to_a_hundred_percent() -> None:
    one = ablation(chart={"kind": "shares", "of": "primitive: "})
    runs = {
        name: [run(1.0, **{"primitive:_convolution_forward": 3.0, "primitive:_elsewhere": 1.0})]
        for name in ("slow", "quick")
    }
    words = drawn(one, result(runs))
    assert "75%" in words and "25%" in words and "convolution forward" in words


def test_curves_have_their_steps() -> None:
    one = ablation(chart={"kind": "curves", "of": "loss at ", "unit": "loss"})
    runs = {
        name: [run(1.0, loss_at_00010=2.0, loss_at_00020=1.0)] * 2 for name in ("slow", "quick")
    }
    words = drawn(one, result(runs))
    assert "steps" in words and "slow" in words


def test_a_grid_is_normalized_to_its_smallest_combination() -> None:
    options = {
        f"{ranks}x{threads}": {"ranks": ranks, "threads": threads}
        for ranks, threads in ((2, 1), (1, 1), (1, 2))
    }
    one = ablation(
        variants={name: {"about": "", "options": some} for name, some in options.items()},
        comparisons=[{"change": "2x1", "baseline": "1x1"}],
        chart={"kind": "grid", "of": "images a second", "unit": "images a second"},
    )
    rates = {"2x1": 5.7, "1x1": 3.0, "1x2": 5.1}
    found = result({name: [run(1.0, images_a_second=rate)] for name, rate in rates.items()})
    for name, some in options.items():
        found.definition["variants"][name]["options"] = dict(some)
    words = drawn(one, found)
    assert all(word in words for word in ("1.00", "1.90", "1.70", "ideal", "2 threads"))


def test_points_show_each_batch_size() -> None:
    one = ablation(
        variants={"only": {"about": ""}},
        comparisons=[
            {
                "change": "only",
                "baseline": "only",
                "of": "epochs at 00512",
                "baseline_of": "epochs at 00256",
                "ratio": "times as much",
            }
        ],
        chart={"kind": "points", "of": "epochs at ", "unit": "epochs"},
    )
    details = {
        f"{word}epochs_at_{size:05}": epochs
        for size, epochs in ((256, 4.0), (512, 5.0))
        for word in ("least_", "", "most_")
    }
    words = drawn(one, result({"only": [run(0.0, **details)]}))
    assert "256" in words and "512" in words and "1.25×" in words


def study() -> Study:
    """A row that is measured, one that cannot be, and one that was not."""
    cannot = result(
        {},
        left_out={"slow": "takes 8 cores, and this process may use 2", "quick": "the same"},
        rounds_wanted=5,
    )
    second = result({name: runs[::-1] for name, runs in PARTS.items()})
    return Study(
        rows=[
            make_row("measured", PAPER, result(PARTS, busy_cores=(0.4,)), second, command=COMMAND),
            make_row("impossible", ablation(), cannot, None, command=COMMAND),
            make_row("not-yet", ablation(), None, None, command=COMMAND),
        ]
    )


def test_the_summary_counts_what_is_there() -> None:
    assert summary(study()) == [
        "1 of 3 ablations and 1 of 3 comparisons were measured. The paper has a figure for 1 "
        "of them: 0 measured ratios are about the same, 1 larger and 0 smaller.",
        "A second run confirms 1 of 1 conclusions (sign and size).",
        "Not finished: not-yet.",
    ]


def pages() -> tuple[str, str]:
    sections, words = make_sections(study()), summary(study())
    return (
        render_page(sections, title="made", summary=words),
        markdown_page(sections, title="made", summary=words, pictures="pictures"),
    )


def test_both_pages_have_question_number_paper_reason_machine_and_command() -> None:
    for page in pages():
        for word in (
            "Is it faster?",
            "1.51×",
            "1.20×",
            "It is more.",
            "a processor",
            "python -m profiling ablate run made --quick",
            "cores, and this process may use 2",
            COMMAND,
            "0.40 cores busy",
            "tuned",
        ):
            assert word in page, word


def test_every_table_of_the_markdown_is_even() -> None:
    _, page = pages()
    width = 0
    for line in page.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        width = width or line.count("|")
        assert line.count("|") == width, line
    assert "![" in page and "](pictures/measured.png)" in page


def test_an_unfinished_row_says_how_far_it_is() -> None:
    row = make_row("some", PAPER, result(PARTS, rounds_wanted=5), None, command=COMMAND)
    assert isinstance(row, Row) and row.state == "2 of 5 rounds measured"


def test_a_row_may_take_a_part_of_what_another_has_measured() -> None:
    more = result({**PARTS, "other": PARTS["slow"]}, left_out={"another": "few cores"})
    row = make_row("some", PAPER, more, more, command=COMMAND)
    assert row.result is not None
    assert list(row.result.definition["variants"]) == ["slow", "quick"]
    assert list(row.result.rounds[0]) == ["slow", "quick"]
    assert not row.result.left_out
    assert row.outcomes[0].holds


def test_a_second_run_of_something_else_is_left_out_and_says_so() -> None:
    other = result(PARTS)
    other.definition["workload"]["images"] = 9
    row = make_row("some", PAPER, result(PARTS), other, command=COMMAND)
    assert row.outcomes[0].again is None
    assert "The second run has another definition and is ignored." in remarks(row)


@pytest.mark.parametrize("width", [1280, 480])
def test_a_browser_shows_the_page_and_says_nothing(tmp_path: Path, width: int) -> None:
    file = tmp_path / "ablations.html"
    file.write_text(pages()[0])
    path = chromium()
    said: list[str] = []
    asked: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        assert page.locator("svg").count() == 1
        assert page.locator("#measured table").count() == 1
        wide = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.close()
    assert (said, asked, wide) == ([], [file.as_uri()], True)
