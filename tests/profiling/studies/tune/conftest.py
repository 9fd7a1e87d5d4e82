"""The planner's command in this process, and a plan of the sample host."""

from pathlib import Path

import pytest

from launch.__main__ import main
from profiling.studies.tune.measurements import write_measurements
from tests.profiling.studies.tune.samples import Tune, measurements
from tests.support.commands import RunHere


@pytest.fixture
def tune(run_here: RunHere) -> Tune:
    """Return a function that runs `retinanet launch tune` with its arguments."""
    return lambda *arguments: run_here(main, "tune", *arguments)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Write the measurements of a complete plan."""
    file = tmp_path / "plan.json"
    write_measurements(file, measurements())
    return file
