"""A browser for tests that look at a page: whatever Chromium is installed; none is ever fetched."""

import shutil
import subprocess

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """The path of one that starts; a test without it is skipped, and says so."""
    for name in NAMES:
        path = shutil.which(name)
        if path and starts(path):
            return path
    pytest.skip(f"no browser on PATH ({', '.join(NAMES)}); `make browser` says how to get one")


def starts(path: str) -> bool:
    """Some distributions' packages are no more than a notice."""
    asked = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    return asked.returncode == 0
