"""A browser for tests of pages: an installed Chromium; nothing is downloaded."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Return the path of a working browser; skip the test if there is none."""
    for name in NAMES:
        path = shutil.which(name)
        if path and starts(path):
            return path
    pytest.skip(f"no browser on PATH ({', '.join(NAMES)}); `make browser` installs one")


def starts(path: str) -> bool:
    """Return whether a browser starts; some distributions' packages only print a notice."""
    completed = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    return completed.returncode == 0


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start the browser; skip the test if there is none."""
    path = chromium()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """An open page with its console messages and requests."""

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

    def close(self) -> None:
        """Close the page; it must have loaded nothing but itself, without messages."""
        assert self.messages == []
        assert [url for url in self.requests if not url.startswith("data:")] == [self.address]
        self.page.close()
