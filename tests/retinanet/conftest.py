"""Fixtures that tests of several packages share."""

from pathlib import Path

import pytest

from tests.support.random_detectors import write_detector


@pytest.fixture(scope="session")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint of 130 MB that detects boxes in any image; do not change it."""
    return write_detector(tmp_path_factory.mktemp("detector"))
