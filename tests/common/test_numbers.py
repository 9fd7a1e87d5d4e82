"""Numbers that nothing has which was measured are refused, wherever they are."""

import json

import pytest

from common.errors import InputError
from common.numbers import require_moderate


@pytest.mark.parametrize("number", ["1e20", "-1e308", "1e999", "9" * 300, "NaN", "-Infinity"])
def test_number_is_refused_with_its_field(number: str) -> None:
    content = json.loads(f'{{"a": [1, {{"b": {number}}}]}}')
    with pytest.raises(InputError, match=r"^x: a\.1\.b: expected a number of at most 1e\+19$"):
        require_moderate(content, "x")


def test_other_values_are_accepted() -> None:
    require_moderate([0, -1.5, 10**19, 1e-300, True, None, "9" * 300, {"a": {}}], "x")
    require_moderate([0, 0.0, -1e-9, 1e9, False], "x", least=1e-9, largest=1e9)
    with pytest.raises(InputError, match=r"^x: 0: expected a number from 1e-09 to 1e\+09$"):
        require_moderate([1e-10], "x", least=1e-9, largest=1e9)
