"""The report: pictures, both pages, and the reports in docs/ablations."""

import re
from itertools import groupby
from pathlib import Path

import pytest

from common.charts import as_svg
from common.page import Chart
from profiling.ablate import report
from profiling.ablate.analysis import Row, compare_variants, make_row, read_study
from profiling.ablate.charts import picture
from profiling.ablate.definition import Ablation, read_all
from profiling.ablate.report import (
    FILES,
    PICTURES,
    SECOND,
    remarks,
    render_pages,
    summary,
)
from profiling.ablate.result import Place, Result
from tests.profiling.ablate.samples import ablation, result, run

REPOSITORY = Path(__file__).resolve().parents[3]
STORED = sorted(
    page.relative_to(REPOSITORY) for page in REPOSITORY.glob("docs/ablations/*/ablations.md")
)
"""Relative to the repository: commands in a page name its folder."""
COMMAND = "retinanet profile ablate run not-yet --quick"
SENTENCES = {"more": "It is more.", "alike": "It is alike.", "less": "It is less."}
PAPER = ablation(comparisons=[{"change": "quick", "baseline": "slow", "paper": 1.2, **SENTENCES}])
PARTS = {
    "slow": [run(3.0, forward=1.0, backward=2.0), run(3.2, forward=1.1, backward=2.1)],
    "quick": [run(2.0, forward=0.5, backward=1.5), run(2.1, forward=0.6, backward=1.5)],
}


def texts_of_picture(definition: Ablation, measured: Result) -> str:
    figure = picture(definition, measured, compare_variants(definition, measured))
    return " ".join(re.findall(r"<text[^>]*>([^<]*)", as_svg(figure)))


@pytest.mark.slow
def test_bars_show_variants_parts_and_ratios() -> None:
    definition = ablation(chart={"parts": ["forward", "backward"], "unit": "seconds per step"})
    texts = texts_of_picture(definition, result(PARTS))
    for word in ("slow", "quick", "forward", "backward", "3.1", "seconds per step", "1.51×"):
        assert word in texts, word


def test_picture_has_the_figure_of_the_paper() -> None:
    assert "paper" in texts_of_picture(PAPER, result(PARTS))
    assert "paper" not in texts_of_picture(ablation(), result(PARTS))


@pytest.mark.parametrize(
    ("rounds", "label"),
    [(1, "ratio"), (2, "measured, with range"), (5, "measured, with 90 % interval")],
)
def test_legend_names_the_kind_of_interval(rounds: int, label: str) -> None:
    runs = {"slow": [run(3.0)] * rounds, "quick": [run(2.0)] * rounds}
    texts = texts_of_picture(ablation(), result(runs))
    assert label in texts and "ratio (times as fast)" in texts
    assert (rounds > 1) == ("measured" in texts)


SHARES = {"primitive:_convolution_forward": 3.0, "primitive:_elsewhere": 1.0}
CURVES = {"loss_at_00010": 2.0, "loss_at_00020": 1.0}


@pytest.mark.parametrize(
    ("chart", "details", "expected"),
    [
        ({"kind": "shares", "of": "primitive: "}, SHARES, "75% 25% convolution"),
        ({"kind": "curves", "of": "loss at ", "unit": "loss"}, CURVES, "steps slow"),
    ],
)
def test_shares_and_curves(chart: dict[str, str], details: dict[str, float], expected: str) -> None:
    runs = {name: [run(1.0, **details)] * 2 for name in ("slow", "quick")}
    texts = texts_of_picture(ablation(chart=chart), result(runs))
    assert all(text in texts for text in expected.split())


def test_grid_is_relative_to_the_smallest_combination() -> None:
    options = {
        f"{ranks}x{threads}": {"ranks": ranks, "threads": threads}
        for ranks, threads in ((2, 1), (1, 1), (1, 2))
    }
    definition = ablation(
        variants={name: {"about": "", "options": some} for name, some in options.items()},
        comparisons=[{"change": "2x1", "baseline": "1x1"}],
        chart={"kind": "grid", "of": "images a second", "unit": "images a second"},
    )
    rates = {"2x1": 5.7, "1x1": 3.0, "1x2": 5.1}
    measured = result({name: [run(1.0, images_a_second=rate)] for name, rate in rates.items()})
    for name, some in options.items():
        measured.definition["variants"][name]["options"] = dict(some)
    texts = texts_of_picture(definition, measured)
    assert all(word in texts for word in ("1.00", "1.90", "1.70", "ideal", "2 threads"))


def test_points_show_each_batch_size() -> None:
    terms = {"of": "epochs at 00512", "baseline_of": "epochs at 00256", "ratio": "times as much"}
    definition = ablation(
        variants={"only": {"about": ""}},
        comparisons=[{"change": "only", "baseline": "only", **terms}],
        chart={"kind": "points", "of": "epochs at ", "unit": "epochs"},
    )
    epochs = {"00256": 4.0, "00512": 5.0}
    details = {
        f"{least}epochs_at_{size}": epochs[size]
        for size in epochs
        for least in ("least_", "", "most_")
    }
    texts = texts_of_picture(definition, result({"only": [run(0.0, **details)]}))
    assert "256" in texts and "512" in texts and "1.25×" in texts


def study() -> list[Row]:
    """Return a measured row, an impossible one and a missing one."""
    reasons = {"slow": "takes 8 cores, and this process may use 2", "quick": "the same"}
    cannot = result({}, left_out=reasons, rounds_wanted=5)
    second = result({name: runs[::-1] for name, runs in PARTS.items()})
    return [
        make_row("measured", PAPER, result(PARTS, busy_cores=(0.4,)), second, command=COMMAND),
        make_row("impossible", ablation(), cannot, None, command=COMMAND),
        make_row("not-yet", ablation(), None, None, command=COMMAND),
    ]


def test_summary_counts_comparisons() -> None:
    first, second, third = summary(study())
    assert "1 of 3 ablations and 1 of 3 comparisons" in first
    assert "0 measured ratios are about the same, 1 larger and 0 smaller" in first
    assert "1 of 1 conclusions" in second
    assert third == "Not finished: not-yet."


def test_pages_have_all_parts() -> None:
    measured = ("Is it faster?", "1.51×", "1.20×", "It is more.", "a processor", "tuned")
    missing = ("cores, and this process may use 2", COMMAND, "0.40 cores busy")
    page, markdown = render_pages(study())
    for text_of_page in (page, markdown):
        for text in (*measured, *missing, "retinanet profile ablate run made --quick"):
            assert text in text_of_page, text
    measured_section = page.partition('id="measured"')[2].partition("<section")[0]
    assert page.count("<svg") == measured_section.count("<svg") == 1
    assert measured_section.count("<table") == 1
    for is_table, lines in groupby(markdown.splitlines(), lambda line: line.startswith("|")):
        assert not is_table or len({line.count("|") for line in lines}) == 1
    assert "![" in markdown and "](pictures/measured.png)" in markdown


def test_unfinished_row_has_its_progress() -> None:
    row = make_row("some", PAPER, result(PARTS, rounds_wanted=5), None, command=COMMAND)
    assert isinstance(row, Row) and row.state == "2 of 5 rounds measured"


def test_row_may_use_a_part_of_another_result() -> None:
    larger = result({**PARTS, "other": PARTS["slow"]}, left_out={"another": "few cores"})
    row = make_row("some", PAPER, larger, larger, command=COMMAND)
    assert row.result is not None
    assert list(row.result.definition["variants"]) == ["slow", "quick"]
    assert list(row.result.rounds[0]) == ["slow", "quick"]
    assert not row.result.left_out
    assert row.outcomes[0].holds


def test_second_run_with_another_definition_is_ignored() -> None:
    other = result(PARTS)
    other.definition["workload"]["images"] = 9
    row = make_row("some", PAPER, result(PARTS), other, command=COMMAND)
    assert row.outcomes[0].again is None
    assert "The second run has another definition and is ignored." in remarks(row)


@pytest.mark.parametrize("page", STORED, ids=lambda page: page.parent.name)
def test_stored_report_is_made_from_its_result_files(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    # Drawing takes most of the time, and is not compared.
    monkeypatch.setattr(report, "chart", lambda draw, *, caption, **_: Chart("", caption=caption))
    folder = page.parent
    place = Place(quick=folder.name.startswith("quick"), out=folder)
    stored = read_study(read_all(), place, folder / SECOND)
    content = dict(zip(FILES, render_pages(stored), strict=True))["ablations.md"]
    command = f"retinanet profile ablate report --overwrite --out {folder}"
    assert page.read_text() == content, f"generate it again: {command}"
    pictures = {f"{row.name}.png" for row in stored if row.is_measured}
    assert {file.name for file in (folder / PICTURES).iterdir()} == pictures
    assert not [row.name for row in stored if row.result and not row.result.is_complete]
    for file in folder.rglob("result.json"):
        text = file.read_text()
        assert "/home/" not in text and "/work/" not in text and "/root" not in text, file
