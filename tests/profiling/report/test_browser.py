"""The page in a real browser: sorting, filters, security, layout and printing."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tests.profiling.report.example_logs import convolution, hostile_log, write_page, write_run
from tests.support.browsers import chromium

pytestmark = pytest.mark.exhaustive

MANY = 40
FIRST = 12
"""Rows of a long table before it is expanded."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page with its messages and requests."""

    def __init__(self, browser: Browser, file: Path, **options: object) -> None:
        self.page: Page = browser.new_page(**options)  # type: ignore[arg-type]
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.address = file.as_uri()
        self.page.goto(self.address)

    def require_quiet(self) -> None:
        """Assert that only the page itself was loaded, without messages."""
        assert self.messages == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page of 40 problems; the n-th takes n milliseconds, so the last is the costliest."""
    folder = tmp_path_factory.mktemp("many")
    log = folder / "many.log"
    names = ("forward_training", "backward_data")
    log.write_text(
        "".join(
            convolution(place, channels=16 * place, direction=names[place % 2])
            for place in range(1, MANY + 1)
        )
    )
    return write_page(folder, log)


@pytest.fixture
def open_log(browser: Browser, many: Path) -> Iterator[Opened]:
    page = Opened(browser, many)
    yield page
    page.require_quiet()
    page.page.close()


def problems(page: Page) -> Locator:
    return page.locator("#problems table")


def visible_cells(table: Locator, column: int) -> list[str]:
    """Return the cells of a column in visible rows."""
    cells = table.locator(f"tbody tr:visible > :nth-child({column})")
    return [text.split("\n")[0].strip() for text in cells.all_inner_texts()]


def test_headers_sort_in_both_directions(opened: Opened) -> None:
    table = problems(opened.page)
    opened.page.get_by_role("button", name=f"Show all {MANY}").click()
    first = table.get_by_role("columnheader").first
    first.get_by_role("button").click()
    ascending = visible_cells(table, 1)
    channels = [int(re.findall(r"(\d+) →", text)[0]) for text in ascending]
    half = MANY // 2  # backward comes before forward; in each numbers count as numbers
    assert channels == [16 * n for n in range(1, MANY, 2)] + [16 * n for n in range(2, MANY + 1, 2)]
    assert ascending[0].startswith("convolution backward data") and len(channels) == 2 * half
    assert first.get_attribute("aria-sort") == "ascending"
    first.get_by_role("button").click()
    assert visible_cells(table, 1) == ascending[::-1]
    assert first.get_attribute("aria-sort") == "descending"


def test_numbers_sort_by_value(opened: Opened) -> None:
    table = problems(opened.page)
    opened.page.get_by_role("button", name=f"Show all {MANY}").click()
    time = table.get_by_role("columnheader", name="ms in the log")
    time.get_by_role("button").click()
    assert [float(cell) for cell in visible_cells(table, 4)] == [*range(MANY, 0, -1)]
    time.get_by_role("button").press("Enter")  # without a mouse
    assert [float(cell) for cell in visible_cells(table, 4)] == [*range(1, MANY + 1)]
    assert [int(re.findall(r"(\d+) →", text)[0]) for text in visible_cells(table, 1)] == [
        16 * place for place in range(1, MANY + 1)
    ]
    assert table.locator("tfoot tr").last.inner_text().startswith("all")
    assert table.locator("[aria-sort]").count() == 1


def test_long_table_shows_its_first_rows(opened: Opened) -> None:
    table, section = problems(opened.page), opened.page.locator("#problems")
    assert [float(cell) for cell in visible_cells(table, 4)] == [*range(MANY, MANY - FIRST, -1)]
    assert f"{FIRST} of {MANY} rows are shown." in section.inner_text()
    time = table.get_by_role("columnheader", name="ms in the log").get_by_role("button")
    time.click()
    time.click()
    assert [float(cell) for cell in visible_cells(table, 4)] == [*range(1, FIRST + 1)]
    more = section.get_by_role("button", name=f"Show all {MANY}")
    assert more.get_attribute("aria-expanded") == "false"
    more.click()
    assert len(visible_cells(table, 1)) == MANY
    section.get_by_role("button", name=f"Show the first {FIRST}").click()
    assert len(visible_cells(table, 1)) == FIRST


def test_filter_matches_all_words(opened: Opened) -> None:
    table = problems(opened.page)
    field = opened.page.locator("#problems").get_by_label("Filter")
    field.fill("BACKWARD ic16oc16_")
    assert [float(cell) for cell in visible_cells(table, 4)] == [1]
    assert f"1 of {MANY} rows are shown." in opened.page.locator("#problems").inner_text()
    field.fill("no such thing")
    assert visible_cells(table, 1) == []
    field.fill("forward")
    assert len(visible_cells(table, 1)) == MANY // 2
    field.fill("")
    assert len(visible_cells(table, 1)) == FIRST
    assert table.locator("tbody tr").count() == MANY


def test_page_without_javascript_shows_all_rows(browser: Browser, many: Path) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(many.as_uri())
    assert len(visible_cells(problems(page), 1)) == MANY
    assert page.get_by_role("button").count() == 0
    page.close()


def test_hostile_log_is_harmless(browser: Browser, tmp_path: Path) -> None:
    log = hostile_log(tmp_path / "<img src=y onerror=alert(0)>.log")
    opened = Opened(browser, write_page(tmp_path, log))
    page = opened.page
    page.wait_for_timeout(200)  # an image that fails to load would run its handler
    text = page.locator("#problems").inner_text()
    assert "<img src=x onerror=alert(1)>" in text
    assert "</script><script>alert(2)</script>" in text
    for element in ("img", "iframe", "b", "u", "body script:not(:last-child)"):
        assert page.locator(element).count() == 0
    for row in page.locator("#problems tbody tr").all():
        row.hover()
    page.locator("#problems").get_by_label("Filter").or_(page.locator("th button").first).click()
    assert page.locator("#next").is_visible()
    opened.require_quiet()
    page.close()


def test_policy_blocks_injected_elements(browser: Browser, many: Path) -> None:
    """The policy is the second defence, after escaping."""
    page = Opened(browser, many)
    page.page.evaluate(
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
    page.page.wait_for_timeout(200)
    assert page.page.title() != "harmed"
    assert len([text for text in page.messages if "Content Security Policy" in text]) >= 2
    page.page.close()


@pytest.mark.parametrize("width", [360, 1280])
def test_page_fits_the_window(browser: Browser, many: Path, width: int) -> None:
    opened = Opened(browser, many, viewport={"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    opened.require_quiet()
    opened.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_in_light_and_dark_mode(browser: Browser, many: Path, scheme: str) -> None:
    opened = Opened(browser, many, color_scheme=scheme)
    for selector in ("h1", ".summary", "figcaption", "small", ".number", "a", ".missing"):
        ink, paper = opened.page.locator(selector).first.evaluate(
            "element => [element, document.body].map((e, place) =>"
            "  getComputedStyle(e)[place ? 'backgroundColor' : 'color'])"
        )
        assert contrast(ink, paper) >= 4.5, selector  # WCAG 2, AA
    card = opened.page.locator(".card").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert card == "rgb(255, 255, 255)"
    opened.page.close()


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
    printed = page.pdf(format="A4", print_background=True, outline=True, tagged=True)
    assert printed.startswith(b"%PDF")
    assert [title for title in outline_of(printed) if title in headings] == headings
    assert len(re.findall(rb"/Type /Page\b", printed)) > 3
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 between its margins
    page.emulate_media(media="print")
    for frame in page.locator(".scroll, .card").all():
        cut = frame.evaluate("element => element.scrollWidth - element.clientWidth")
        assert cut <= 0, frame.get_attribute("aria-label")
    assert page.locator("label.filter:visible").count() == 0
    opened.require_quiet()
    page.close()


def outline_of(printed: bytes) -> list[str]:
    """Return the titles of a PDF's bookmarks."""
    titles = re.findall(rb"/Title (\((?:[^()\\]|\\.)*\)|<[0-9A-Fa-f]+>)", printed)
    return [decoded(title) for title in titles]


def decoded(title: bytes) -> str:
    """Decode a string of a PDF."""
    if title.startswith(b"<"):
        return bytes.fromhex(title[1:-1].decode()).decode("utf-16")
    return re.sub(rb"\\(.)", rb"\1", title[1:-1]).decode("latin-1")
