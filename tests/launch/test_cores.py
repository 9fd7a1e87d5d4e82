import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cores import reserve_cores
from retinanet.errors import InputError

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os
from launch.cores import reserve_cores
before = sorted(os.sched_getaffinity(0))
reserved = reserve_cores(1, field="data.reserve_cores")
import torch
left = sorted(set(before) - set(reserved))
print(left == sorted(os.sched_getaffinity(0)), torch.get_num_threads())
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core leaves none to reserve")
def test_training_keeps_the_other_cores_and_makes_as_many_threads() -> None:
    environment = {name: value for name, value in os.environ.items() if "OMP" not in name}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    left = len(os.sched_getaffinity(0)) - 1
    assert done.stdout.split() == ["True", str(left)]


def test_no_core_is_touched_when_none_is_asked_for() -> None:
    before = os.sched_getaffinity(0)
    assert reserve_cores(0, field="x") == ()
    assert os.sched_getaffinity(0) == before


def test_reserving_all_cores_is_refused() -> None:
    count = len(os.sched_getaffinity(0))
    expected = rf"data\.reserve_cores: {count} of the {count} cores .* leaves none for training"
    with pytest.raises(InputError, match=expected):
        reserve_cores(count, field="data.reserve_cores")
