import re

import pytest

from tests.launch.ranks import ended, start_apart


@pytest.mark.whole_machine
def test_gloo_adds_gradients_of_three_ranks_in_one_order_from_the_first_step_on() -> None:
    """Else a resumed run would round its first steps otherwise than the one that was stopped."""
    ranks = [ended(one) for one in start_apart(3, "tests/retinanet/training/settled_ranks.py")]
    assert [one.code for one in ranks] == [0, 0, 0], ranks
    found = re.search(r"as before: (\w+); gradients: \[(\d+), (\d+)\] of (\d+)", ranks[0].output)
    assert found and found[1] == "True"
    assert found[2] == found[3] == found[4] and int(found[4]) > 70
