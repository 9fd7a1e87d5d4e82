import csv
import io

import pytest

from common.files import as_csv


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ("\t=1", "�=1"),
        ("\x1b[31m", "�[31m"),
        ("-1.5", "-1.5"),
        ("+1e-3", "+1e-3"),
        (-1.5, "-1.5"),
        (-7, "-7"),
        (None, ""),
        ("alg:convolution_direct", "alg:convolution_direct"),
        ('a,"b"', 'a,"b"'),
    ],
)
def test_a_cell_is_a_number_or_a_text_and_no_formula(cell: object, written: str) -> None:
    [header, row] = csv.reader(io.StringIO(as_csv(["name", "=x"], [["row", cell]])))
    assert (header, row) == (["name", "'=x"], ["row", written])
