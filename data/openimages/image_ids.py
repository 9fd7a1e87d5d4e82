"""OpenImages' image ids: 16 hexadecimal digits, held as 64-bit numbers; files that list them."""

import csv
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.openimages.csv_files import open_csv, positions_of, refuse, refuse_empty

IMAGE_ID = re.compile("[0-9a-f]{16}")
EXPECTED = "16 digits of 0-9 and a-f"

NO_DIGIT = 255
DIGIT_OF_BYTE = np.full(256, NO_DIGIT, dtype=np.uint8)
DIGIT_OF_BYTE[list(b"0123456789abcdef")] = range(16)


def image_id_numbers(texts: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    """Ids [N] as numbers. Raises ValueError if one is no id.

    `texts` has room for 17 bytes each, so that an id can be told from a longer word.
    """
    characters = np.ascontiguousarray(texts).view(np.uint8).reshape(-1, 17)
    digits = DIGIT_OF_BYTE[characters[:, :16]]
    if (digits == NO_DIGIT).any() or characters[:, 16].any():
        raise ValueError(f"expected {EXPECTED}")
    octets = digits[:, 0::2] << 4 | digits[:, 1::2]
    return octets.view(">u8").reshape(-1).astype(np.uint64)


def image_id_texts(numbers: NDArray[np.uint64]) -> list[str]:
    """The ids as OpenImages writes them: 16 digits each, in lower case."""
    return [f"{number:016x}" for number in numbers.tolist()]


def read_image_ids(path: Path) -> NDArray[np.uint64]:
    """The ids that a CSV file with a column `ImageID` lists, sorted, each once.

    OpenImages publishes such files for each split (`validation-images-with-rotation.csv`, …).
    Raises InputError for a file that is not one, naming line and column.
    """
    numbers: list[int] = []
    with open_csv(path) as file:
        rows = csv.reader(file)
        (position,) = positions_of(["ImageID"], header=next(rows, []), file=path)
        for row in rows:
            found = row[position] if len(row) > position else ",".join(row)
            if not IMAGE_ID.fullmatch(found):
                refuse(path, rows.line_num, "ImageID", expected=EXPECTED, found=found)
            numbers.append(int(found, 16))
    if not numbers:
        refuse_empty(path)
    return np.unique(np.array(numbers, dtype=np.uint64))
