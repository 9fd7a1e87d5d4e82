from pathlib import Path

import pytest
import torch

from tests.launch.ranks import start_apart

PROGRAM = Path(__file__).with_name("served_ranks.py")


@pytest.mark.whole_machine
def test_steps_by_way_of_another_rank_are_those_of_a_plain_optimizer(tmp_path: Path) -> None:
    jobs = start_apart(2, str(PROGRAM), str(tmp_path))
    for job in jobs:
        _, errors = job.communicate(timeout=90)
        assert job.returncode == 0, errors
    there = torch.load(tmp_path / "rank0.pt", weights_only=False)
    served, plain, stalenesses = torch.load(tmp_path / "rank1.pt", weights_only=False)
    assert stalenesses == [0, 0, 0, 0]
    for one, other, common in zip(served, plain, there, strict=True):
        assert torch.equal(one, other) and torch.equal(one, common)
