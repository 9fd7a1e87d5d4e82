"""Fixtures that tests of several packages share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.random_detectors import write_detector


@pytest.fixture(scope="session")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint of 130 MB that detects boxes in any image; do not change it."""
    return write_detector(tmp_path_factory.mktemp("detector"))


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """Let a test call `torch.set_num_threads`."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread(threads_restored: None) -> None:
    """Use one thread, so that sums have one order."""
    torch.set_num_threads(1)
