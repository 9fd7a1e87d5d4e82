"""A short form of `make torture`."""

from pathlib import Path

import pytest

from tests.torture import torture

pytestmark = [pytest.mark.whole_machine, pytest.mark.exhaustive]


def test_killed_and_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    outcome = torture(tmp_path, kills=2, precision="float32", steps=10, longest_s=14, seed=3)
    assert outcome.kills == 2 and outcome.differing == []
