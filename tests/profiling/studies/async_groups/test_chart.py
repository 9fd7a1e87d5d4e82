"""The pictures, which a person looks at: here only that they are drawn from what there may be."""

import io

import pytest
from PIL import Image

from profiling.studies.async_groups import loss_chart, map_chart
from profiling.studies.async_groups_search import Evaluated, Point, Probed, Setting, Trained


def width_of(picture: bytes) -> int:
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        image.load()
        return image.width


def test_each_learning_rate_has_a_panel() -> None:
    points = [Point(seconds=float(step), loss=1 / step, images=8) for step in range(1, 9)]
    probes = [
        Probed(setting=Setting(2, 0.4, rate), points=points, staleness=1.0) for rate in (1, 0.3)
    ]
    one, two = (loss_chart(probes[:count], probes[0].setting, title="x") for count in (1, 2))
    assert width_of(one) < width_of(two)


@pytest.mark.parametrize("target", [None, 0.5])
def test_whole_trainings_are_drawn_with_and_without_a_target(target: float | None) -> None:
    curve = [Evaluated(epoch=1.0, seconds=60.0, map=0.2, map_50=0.4)]
    training = Trained(setting=Setting(2, 0.4), curve=curve, steps=9, staleness=1.0, target=target)
    assert width_of(map_chart([training], title="x")) > 0
