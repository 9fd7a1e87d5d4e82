import pytest

from launch.process_group import ProcessGroup
from profiling.capture.hooks import images_a_step
from retinanet.config_file import load_config


@pytest.mark.parametrize(
    ("split", "images"), [("even", [4, 4]), ("[3, 1]", [6, 2]), ("speed", [None, None])]
)
def test_a_rank_tells_its_own_images_where_they_are_known_before_the_run(
    split: str, images: list[int | None]
) -> None:
    words = ["training.batch_size=2", "training.gradient_accumulation=2"]
    config = load_config("demo.yaml", [*words, f"distributed.batch_split={split}"])
    ranks = [ProcessGroup(rank=rank, size=2) for rank in (0, 1)]
    assert [images_a_step(config, rank) for rank in ranks] == images
    alone = load_config("demo.yaml", [*words, "distributed.batch_split=speed"])
    assert images_a_step(alone, ProcessGroup()) == 4
