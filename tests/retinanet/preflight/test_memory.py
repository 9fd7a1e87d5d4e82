from launch.limits import MemoryLeft
from retinanet.config import Config
from retinanet.config_file import load_config
from retinanet.memory import MemoryNeed, training_bytes
from retinanet.preflight.findings import Finding
from retinanet.preflight.host import check_counts, check_memory
from retinanet.preflight.run import KnownData

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


KNOWN = KnownData(num_classes=5, train_images=None, validation_images=None)


def refused(*words: str, ranks: int = 1, swap: int = 0) -> list[str]:
    left = MemoryLeft(size=16 * GB, of="this host", swap=swap * GB)
    found = check_counts(config(*words), KNOWN, engine="torch", ranks=ranks, left=left)
    assert all(one.level == "failure" for one in found)
    return [one.line for one in found]


def config(*words: str) -> Config:
    settings = ("data.image_size=128", "model.norm=batch", "model.trainable_layers=5")
    return load_config("demo.yaml", [*settings, "engine.precision=float32", *words])


def test_a_batch_that_memory_cannot_hold_is_refused_with_one_that_it_holds() -> None:
    [line] = refused(batch := "training.batch_size=1000000")
    assert line.startswith("memory: training.batch_size: 1,000,000 images ")
    fitting = int(line.rpartition("lower it to ")[2].split()[0].replace(",", ""))
    image = training_bytes(config(batch), num_classes=5, engine="torch")
    assert fitting * image <= 16 * GB < (fitting + 1) * image
    assert refused(f"training.batch_size={fitting}") == []
    assert refused(f"training.batch_size={fitting}", ranks=4) != []
    assert refused(f"training.batch_size={3 * fitting}") != []
    assert refused(f"training.batch_size={3 * fitting}", swap=64) == []


def test_other_counts_that_memory_cannot_hold_are_refused() -> None:
    [line] = refused("evaluation.batch_size=1000000")
    assert line.startswith("memory: evaluation.batch_size: 1,000,000 images ")
    [line] = refused("data.workers=4096")
    assert line.startswith("memory: data.workers: 4,096 ")
    lines = refused("data.image_size=16384", "training.batch_size=8")
    assert len(lines) == 2 and all(line.endswith("; lower data.image_size") for line in lines)
    assert refused("data.workers=16") == []
