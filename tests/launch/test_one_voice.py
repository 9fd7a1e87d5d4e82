"""An error before the ranks have met, under the real mpirun: one status, one line, no kills."""

from pathlib import Path

import pytest

from launch.mpirun import ranks_option
from tests.launch.ranks import run_ranks

PROGRAM = str(Path(__file__).with_name("starting_ranks.py"))


@pytest.mark.parametrize("moment", ["arguments", "before", "after"])
def test_an_error_of_all_ranks_is_status_2_and_the_last_line(moment: str) -> None:
    job = run_ranks(3, PROGRAM, moment, "0,1,2")
    assert (job.code, job.output) == (2, "")  # mpirun would print there whom it has killed
    *above, last = job.errors.splitlines()
    assert "error: " in last
    assert moment == "arguments" or above == []
    assert job.errors.count("error: ") == 1


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_error_of_some_ranks_ends_all_with_status_2_and_names_the_rank(moment: str) -> None:
    job = run_ranks(3, PROGRAM, moment, "1,2")
    assert (job.code, job.output) == (2, "")
    [line] = job.errors.splitlines()
    assert line.startswith("rank 1 on ") and line.endswith(": error: a.json: field: wrong")


def test_the_number_of_ranks_is_set_by_the_option_of_the_launcher_at_hand() -> None:
    assert "--nproc-per-node" in ranks_option("torchrun")
    assert "srun" in ranks_option("slurm")
    assert "mpirun -np" in ranks_option("mpich")
