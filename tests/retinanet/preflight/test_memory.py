from launch.host.memory_limit import MemoryLeft
from retinanet.preflight.finding import Finding
from retinanet.preflight.memory import check_memory
from retinanet.preflight.memory_need import MemoryNeed

GB = 10**9
NEED = MemoryNeed(model=GB, activations=2 * GB, other=GB, loading=0)


def checked(left: float, *, ranks: int = 1, once: int = 0, swap: float = 0) -> Finding:
    limit = MemoryLeft(size=round(left * GB), of="this host", swap=round(swap * GB))
    return check_memory(NEED, ranks=ranks, once=once, not_started=0, left=limit)


def test_too_little_for_the_estimate_is_only_a_warning() -> None:
    assert checked(4).level == "ok"
    assert checked(3.9).level == "warning"
    assert checked(8.4, ranks=2, once=GB // 2).level == "warning"


def test_too_little_for_weights_gradients_and_optimizer_is_a_failure() -> None:
    found = checked(0.9)
    assert found.level == "failure"
    assert found.found == (
        "weights, gradients and optimizer alone take 1.0 GB, and only 900 MB are free in this host"
    )
    assert checked(0.9, swap=1).level == "warning"
    assert checked(1.9, ranks=2).level == "failure"


def test_where_nobody_says_what_is_free_the_estimate_is_told() -> None:
    found = check_memory(NEED, ranks=1, once=0, not_started=0, left=None)
    assert found.level == "ok" and "4.0 GB" in found.found
