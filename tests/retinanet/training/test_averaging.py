import re

import pytest

from tests.launch.ranks import ended, start_apart


@pytest.mark.exhaustive
@pytest.mark.whole_machine
def test_gloo_sums_gradients_of_three_ranks_in_one_order_from_the_first_step() -> None:
    """Else a resumed run would round its first steps differently from the uninterrupted run."""
    ranks = [ended(rank) for rank in start_apart(3, "tests/retinanet/training/gloo_ranks.py")]
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    match = re.search(r"as before: (\w+); gradients: \[(\d+), (\d+)\] of (\d+)", ranks[0].output)
    assert match and match[1] == "True"
    assert match[2] == match[3] == match[4] and int(match[4]) > 30
