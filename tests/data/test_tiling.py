"""Where tiles lie."""

import numpy as np
import pytest

from common.errors import InputError
from data.tiling import TileOptions, Tiling, Window


def random_cases(count: int) -> list[tuple[Tiling, tuple[int, int]]]:
    random = np.random.default_rng(0)
    return [
        (
            Tiling(int(random.integers(32, 300)), float(random.choice([0, 0.2, 0.5, 0.9]))),
            (int(random.integers(1, 900)), int(random.integers(1, 900))),
        )
        for _ in range(count)
    ]


def test_tiles_by_hand() -> None:
    tiles = Tiling(100, 0.2).tiles((100, 260))
    assert tiles == [Window(0, 0, 100, 100), Window(80, 0, 180, 100), Window(160, 0, 260, 100)]
    # One pixel more needs one tile more, and all move together.
    assert [tile.left for tile in Tiling(100, 0.2).tiles((100, 261))] == [0, 54, 107, 161]
    assert [tile.top for tile in Tiling(100, 0).tiles((200, 50))] == [0, 100]
    assert len(Tiling(640, 0.2).tiles((3000, 4000))) == 6 * 8


def test_a_picture_no_larger_than_a_tile_is_one_tile() -> None:
    for size in ((1, 1), (640, 640), (640, 3)):
        assert Tiling(640).tiles(size) == [Window(0, 0, size[1], size[0])]


@pytest.mark.parametrize("tiling, size", random_cases(60))
def test_every_small_object_is_whole_in_a_tile(tiling: Tiling, size: tuple[int, int]) -> None:
    tiles = tiling.tiles(size)
    height, width = size
    assert len(set(tiles)) == len(tiles)
    for tile in tiles:
        assert 0 <= tile.left < tile.right <= width and 0 <= tile.top < tile.bottom <= height
        assert tile.right - tile.left == min(tiling.side, width)
        assert tile.bottom - tile.top == min(tiling.side, height)
    # An object as long as the overlap, or as the picture, wherever it is.
    for length, starts in ((width, {t.left for t in tiles}), (height, {t.top for t in tiles})):
        extent = min(length, round(tiling.overlap * tiling.side))
        for start in range(length - extent + 1):
            assert any(s <= start and start + extent <= s + tiling.side for s in starts)


@pytest.mark.parametrize(
    "side, overlap, problem",
    [
        (31, 0.2, "tiles: expected at least 32 pixels, found 31"),
        (64.5, 0.2, "tiles: expected a whole number"),
        (64, 0.91, "overlap: expected 0 to 0.9"),
        (64, float("nan"), "overlap: expected 0 to 0.9"),
        (64, "0.2", "overlap: expected 0 to 0.9"),
    ],
)
def test_numbers_out_of_range_are_refused(side: int, overlap: float, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Tiling(side, overlap)


def test_overlap_alone_is_refused() -> None:
    assert TileOptions(tiles=None, overlap=None).tiling() is None
    assert TileOptions(tiles=64, overlap=None).tiling() == Tiling(64, 0.2)
    with pytest.raises(InputError, match="overlap: only with tiles"):
        TileOptions(tiles=None, overlap=0.3).tiling()
