"""A browser for tests of pages: an installed Chromium; nothing is downloaded."""

import shutil
import subprocess

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Return the path of a working browser; skip the test if there is none."""
    for name in NAMES:
        path = shutil.which(name)
        if path and starts(path):
            return path
    pytest.skip(f"no browser on PATH ({', '.join(NAMES)}); `make browser` says how to get one")


def starts(path: str) -> bool:
    """Return whether a browser starts; some distributions' packages only print a notice."""
    completed = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
    return completed.returncode == 0
