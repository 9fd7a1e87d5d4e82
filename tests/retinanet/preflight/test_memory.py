from dataclasses import replace

from launch.limits import MemoryLeft
from retinanet.preflight.findings import Finding
from retinanet.preflight.memory import (
    MemoryNeed,
    StepShape,
    check_counts,
    check_memory,
    training_bytes,
)

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


SHAPE = StepShape(
    image_size=128,
    batch_size=8,
    evaluation_batch_size=8,
    num_classes=5,
    trainable_layers=5,
    norm="batch",
    precision="float32",
    engine="torch",
    focal_loss="kernel",
)


def refused(shape: StepShape, *, workers: int = 0, ranks: int = 1, swap: int = 0) -> list[str]:
    left = MemoryLeft(size=16 * GB, of="this host", swap=swap * GB)
    found = check_counts(shape, workers=workers, ranks=ranks, left=left)
    assert all(one.level == "failure" for one in found)
    return [one.line for one in found]


def test_a_batch_that_memory_cannot_hold_is_refused_with_one_that_it_holds() -> None:
    [line] = refused(replace(SHAPE, batch_size=10**6))
    assert line.startswith("memory: training.batch_size: 1,000,000 images ")
    fitting = int(line.rpartition("lower it to ")[2].split()[0].replace(",", ""))
    assert training_bytes(replace(SHAPE, batch_size=fitting)) <= 16 * GB
    assert refused(replace(SHAPE, batch_size=fitting)) == []
    assert refused(replace(SHAPE, batch_size=fitting), ranks=4) != []
    assert refused(replace(SHAPE, batch_size=3 * fitting)) != []
    assert refused(replace(SHAPE, batch_size=3 * fitting), swap=64) == []


def test_other_counts_that_memory_cannot_hold_are_refused() -> None:
    [line] = refused(replace(SHAPE, evaluation_batch_size=10**6))
    assert line.startswith("memory: evaluation.batch_size: 1,000,000 images ")
    [line] = refused(SHAPE, workers=4096)
    assert line.startswith("memory: data.workers: 4,096 ")
    lines = refused(replace(SHAPE, image_size=16384))
    assert len(lines) == 2 and all(line.endswith("; lower data.image_size") for line in lines)
    assert refused(SHAPE, workers=16) == []
