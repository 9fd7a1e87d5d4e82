"""The page in a real browser: sorting, filters, security, layout and printing."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page

from tests.profiling.report.example_logs import convolution, hostile_log, write_page, write_run
from tests.support.browsers import Opened, started_browser

pytestmark = pytest.mark.exhaustive

MANY = 40
FIRST = 12
"""Rows of a long table before it is expanded."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page of 40 problems; the n-th takes n milliseconds, so the last is the costliest."""
    folder = tmp_path_factory.mktemp("many")
    log = folder / "many.log"
    directions = ("forward_training", "backward_data")
    lines = [
        convolution(place, channels=16 * place, direction=directions[place % 2])
        for place in range(1, MANY + 1)
    ]
    log.write_text("".join(lines))
    return write_page(folder, log)


@pytest.fixture
def page(browser: Browser, many: Path) -> Iterator[Page]:
    opened = Opened(browser, many)
    yield opened.page
    opened.close()


def visible_cells(page: Page, column: int) -> list[str]:
    """Return the cells of a column in visible rows of the table of problems."""
    cells = page.locator(f"#problems table tbody tr:visible > :nth-child({column})")
    return [text.split("\n")[0].strip() for text in cells.all_inner_texts()]


def times(page: Page) -> list[float]:
    return [float(cell) for cell in visible_cells(page, 4)]


def channels(page: Page) -> list[int]:
    return [int(re.findall(r"(\d+) →", text)[0]) for text in visible_cells(page, 1)]


def header(page: Page, name: str) -> Locator:
    return page.locator("#problems table").get_by_role("columnheader", name=name)


def test_headers_sort_in_both_directions(page: Page) -> None:
    page.get_by_role("button", name=f"Show all {MANY}").click()
    problem, time = header(page, "problem"), header(page, "ms in the log")
    problem.get_by_role("button").click()
    ascending = visible_cells(page, 1)
    # Backward comes before forward; numbers within texts are compared as numbers.
    odd, even = range(1, MANY, 2), range(2, MANY + 1, 2)
    assert channels(page) == [16 * place for place in (*odd, *even)]
    assert ascending[0].startswith("convolution backward data")
    assert problem.get_attribute("aria-sort") == "ascending"
    problem.get_by_role("button").click()
    assert visible_cells(page, 1) == ascending[::-1]
    assert problem.get_attribute("aria-sort") == "descending"
    time.get_by_role("button").click()
    assert times(page) == [*range(MANY, 0, -1)]
    time.get_by_role("button").press("Enter")  # Without a mouse
    assert times(page) == [*range(1, MANY + 1)]
    assert channels(page) == [16 * place for place in range(1, MANY + 1)]
    assert page.locator("#problems table tfoot tr").last.inner_text().startswith("all")
    assert page.locator("#problems table [aria-sort]").count() == 1


def test_long_table_and_filter(page: Page) -> None:
    section = page.locator("#problems")
    assert times(page) == [*range(MANY, MANY - FIRST, -1)]
    assert f"{FIRST} of {MANY} rows are shown." in section.inner_text()
    time = header(page, "ms in the log").get_by_role("button")
    time.click()
    time.click()
    assert times(page) == [*range(1, FIRST + 1)]
    expand = section.get_by_role("button", name=f"Show all {MANY}")
    assert expand.get_attribute("aria-expanded") == "false"
    expand.click()
    assert len(times(page)) == MANY
    section.get_by_role("button", name=f"Show the first {FIRST}").click()
    assert len(times(page)) == FIRST
    field = section.get_by_label("Filter")
    for text, rows in (("no such thing", 0), ("forward", MANY // 2), ("BACKWARD ic16oc16_", 1)):
        field.fill(text)
        assert len(times(page)) == rows
    assert times(page) == [1]
    assert f"1 of {MANY} rows are shown." in section.inner_text()
    field.fill("")
    assert len(times(page)) == FIRST
    assert page.locator("#problems table tbody tr").count() == MANY


def test_page_without_javascript_shows_all_rows(browser: Browser, many: Path) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(many.as_uri())
    assert len(visible_cells(page, 1)) == MANY
    assert page.get_by_role("button").count() == 0
    page.close()


def test_hostile_log_is_harmless(browser: Browser, tmp_path: Path) -> None:
    log = hostile_log(tmp_path / "<img src=y onerror=alert(0)>.log")
    opened = Opened(browser, write_page(tmp_path, log))
    page = opened.page
    page.wait_for_timeout(200)  # An image that fails to load would run its handler
    text = page.locator("#problems").inner_text()
    assert "<img src=x onerror=alert(1)>" in text
    assert "</script><script>alert(2)</script>" in text
    for element in ("img", "iframe", "b", "u", "body script:not(:last-child)"):
        assert page.locator(element).count() == 0
    for row in page.locator("#problems tbody tr").all():
        row.hover()
    page.locator("#problems").get_by_label("Filter").or_(page.locator("th button").first).click()
    assert page.locator("#next").is_visible()
    opened.close()


def test_policy_blocks_injected_elements(browser: Browser, many: Path) -> None:
    """The policy is the second defence, after escaping."""
    opened = Opened(browser, many)
    opened.page.evaluate(
        """() => {
            const image = document.createElement("img");
            image.setAttribute("onerror", "document.title = 'harmed'");
            image.src = "https://example.org/x.png";
            document.body.append(image);
            const script = document.createElement("script");
            script.textContent = "document.title = 'harmed'";
            document.body.append(script);
        }"""
    )
    for _ in range(100):
        opened.page.wait_for_timeout(100)
        refused = [text for text in opened.messages if "Content Security Policy" in text]
        if len(refused) >= 2:
            break
    assert len(refused) >= 2 and opened.page.title() != "harmed"
    opened.page.close()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_layout_and_contrast(browser: Browser, many: Path, width: int, scheme: str) -> None:
    opened = Opened(browser, many, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    for selector in ("h1", ".summary", "figcaption", "small", ".number", "a", ".missing"):
        ink, paper = opened.page.locator(selector).first.evaluate(
            "element => [element, document.body].map((e, place) =>"
            "  getComputedStyle(e)[place ? 'backgroundColor' : 'color'])"
        )
        assert contrast(ink, paper) >= 4.5, selector  # WCAG 2, AA
    card = opened.page.locator(".card").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert card == "rgb(255, 255, 255)"
    opened.close()


def contrast(first: str, second: str) -> float:
    """Return WCAG's contrast ratio of two colours such as `rgb(1, 2, 3)`."""

    def luminance(colour: str) -> float:
        parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_printing(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path)
    opened = Opened(browser, write_page(tmp_path, run, "--reference", run / "onednn/rank0.log"))
    page = opened.page
    headings = page.locator("h2").all_inner_texts()
    pdf = page.pdf(format="A4", print_background=True, outline=True, tagged=True)
    assert pdf.startswith(b"%PDF")
    # Titles of bookmarks are strings of a PDF: literal, or hexadecimal UTF-16.
    titles = re.findall(rb"/Title (?:\(((?:[^()\\]|\\.)*)\)|<([0-9A-Fa-f]+)>)", pdf)
    outline = [
        bytes.fromhex(coded.decode()).decode("utf-16")
        if coded
        else re.sub(rb"\\(.)", rb"\1", plain).decode("latin-1")
        for plain, coded in titles
    ]
    assert [title for title in outline if title in headings] == headings
    assert len(re.findall(rb"/Type /Page\b", pdf)) > 3
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 between its margins
    page.emulate_media(media="print")
    for frame in page.locator(".scroll, .card").all():
        overflow = frame.evaluate("element => element.scrollWidth - element.clientWidth")
        assert overflow <= 0, frame.get_attribute("aria-label")
    assert page.locator("label.filter:visible").count() == 0
    opened.close()
