"""What docs/ablations keeps is what the report makes of the result files beside it."""

from pathlib import Path

import pytest

from profiling.ablate.analysis import read_study
from profiling.ablate.definition import SizeName, read_all
from profiling.ablate.report import FILES, PICTURES, SECOND, render_pages

REPOSITORY = Path(__file__).resolve().parents[3]
KEPT = sorted(
    page.relative_to(REPOSITORY) for page in REPOSITORY.glob("docs/ablations/*/ablations.md")
)
"""As seen from the repository: commands in a page name its folder."""


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def size_of(page: Path) -> SizeName:
    return "quick" if page.parent.name.startswith("quick") else "full"


@pytest.mark.parametrize("page", KEPT, ids=lambda page: page.parent.name)
def test_the_kept_report_is_made_from_its_result_files(page: Path) -> None:
    folder = page.parent
    study = read_study(read_all(), folder, folder / SECOND, size=size_of(page))
    made = render_pages(study)
    for name, content in zip(FILES, made, strict=True):
        if name.endswith(".md"):
            message = "make it anew: python -m profiling ablate report --overwrite --out"
            assert (folder / name).read_text() == content, f"{message} {folder}"
    drawn = {f"{row.name}.png" for row in study.rows if row.is_measured}
    assert {file.name for file in (folder / PICTURES).iterdir()} == drawn


@pytest.mark.parametrize("page", KEPT, ids=lambda page: page.parent.name)
def test_kept_results_are_whole_and_name_no_place_of_a_machine(page: Path) -> None:
    for result in read_study(read_all(), page.parent, None, size=size_of(page)).results:
        assert result.is_complete, result.ablation
    for file in page.parent.rglob("result.json"):
        text = file.read_text()
        assert "/home/" not in text and "/work/" not in text and "/root" not in text, file
