from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from common.errors import InputError
from profiling.studies.scale import draw_chart
from tests.profiling.studies.scale.measured_by_hand import measured

ONE, TWO = measured(1, 1, 2.0), measured(2, 1, 2.5, without=0.98)


def drawn(file: Path, second: float) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    draw_chart([ONE, measured(2, 1, second, without=0.98)], file, title="a study", weak=True)
    picture: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = imread(file)
    return picture


def test_the_chart_shows_what_was_measured(tmp_path: Path) -> None:
    picture = drawn(tmp_path / "new" / "a.png", 2.5)
    assert picture.shape[1] > 1000
    assert np.array_equal(picture, drawn(tmp_path / "b.png", 2.5))
    assert not np.array_equal(picture, drawn(tmp_path / "c.png", 3.0))


def test_one_rank_alone_can_be_drawn(tmp_path: Path) -> None:
    draw_chart([ONE], tmp_path / "one.png", title="a study", weak=True)
    assert imread(tmp_path / "one.png").shape[1] > 1000


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        draw_chart([ONE, TWO], tmp_path / "file" / "chart.png", title="a study", weak=True)
