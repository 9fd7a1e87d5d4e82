from launch.limits import MemoryLeft
from retinanet.config_file import load_config
from retinanet.preflight.check import images_that_fit

GB = 10**9
CONFIG = load_config("demo.yaml", ["training.batch_size=4", "data.image_size=800"])


def fitting(left_gb: float, *, local_ranks: int = 1) -> int:
    left = MemoryLeft(size=round(left_gb * GB), of="this host")
    found = images_that_fit(
        CONFIG, num_classes=80, engine="torch", local_ranks=local_ranks, left=left
    )
    assert found is not None
    return found


def test_where_nothing_is_left_a_rank_keeps_the_even_batch_that_it_has_taken() -> None:
    assert fitting(0) == fitting(0.5) == 4


def test_more_memory_holds_more_images_and_ranks_of_a_host_share_it() -> None:
    assert fitting(1000) > fitting(100) > fitting(20) > 4
    assert fitting(100, local_ranks=8) < fitting(100, local_ranks=2) < fitting(100)


def test_where_nobody_says_what_is_left_there_is_no_limit() -> None:
    arguments = {"num_classes": 80, "engine": "torch", "local_ranks": 1}
    assert images_that_fit(CONFIG, left=None, **arguments) is None  # type: ignore[arg-type]
