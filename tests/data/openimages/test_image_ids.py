from pathlib import Path

import numpy as np
import pytest

from common.errors import InputError
from data.openimages.boxes import image_id_texts, read_image_ids
from tests.data.openimages.csv_tables import write_image_ids, write_lines


def test_a_split_s_list_is_read_sorted_and_each_id_once(tmp_path: Path) -> None:
    path = write_image_ids(tmp_path / "images.csv", [2**64 - 1, 3, 0xAB, 3])
    numbers = read_image_ids(path)
    assert numbers.tolist() == [3, 0xAB, 2**64 - 1] and numbers.dtype == np.uint64
    assert image_id_texts(numbers) == ["0000000000000003", "00000000000000ab", "f" * 16]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "line 1: ImageID: expected a column of this name, found ''"),
        (["ImageID,Subset"], "empty: it has no rows; download it again"),
        (["Name", "0" * 16], "line 1: ImageID: expected a column of this name, found 'Name'"),
        (
            ["ImageID", "0" * 16, "12"],
            "line 3: ImageID: expected 16 digits of 0-9 and a-f, found '1",
        ),
        (
            ["Subset,ImageID", "train"],
            "line 2: ImageID: expected 16 digits of 0-9 and a-f, found 't",
        ),
        (["ImageID", '"' + "a" * 200_000], "not a CSV file: field larger than field limit"),
    ],
)
def test_a_file_that_is_no_list_of_images(tmp_path: Path, lines: list[str], expected: str) -> None:
    path = write_lines(tmp_path / "images.csv", lines)
    with pytest.raises(InputError) as caught:
        read_image_ids(path)
    assert str(caught.value).startswith(f"{path}: {expected}")
