"""Two ranks under the real mpirun: their averaged gradients are those of one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch.ranks import run_ranks

PROGRAM = Path(__file__).with_name("gradients_of_ranks.py")

pytestmark = pytest.mark.whole_machine


Found = dict[str, dict[str, list[Any]]]
"""Of each case, by what was looked at."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    file = tmp_path_factory.mktemp("gradients") / "found.json"
    job = run_ranks(2, str(PROGRAM), str(file))
    assert job.code == 0, job.errors
    assert "UserWarning" not in job.errors  # such as of gradients laid out otherwise than buckets
    content: Found = json.loads(file.read_text())
    return content


@pytest.fixture
def differences(found: Found) -> dict[str, list[float]]:
    return {case: content["differences"] for case, content in found.items()}


@pytest.mark.parametrize("case", ["plain", "accumulated", "shared", "shared, accumulated"])
def test_two_ranks_of_one_image_have_the_gradients_of_one_with_two(
    differences: dict[str, list[float]], case: str
) -> None:
    assert len(differences[case]) == 3
    assert max(differences[case]) < 1e-5


@pytest.mark.parametrize("case", ["uneven", "uneven, shared, accumulated"])
def test_three_images_and_one_have_the_gradients_of_one_rank_with_four(
    differences: dict[str, list[float]], case: str
) -> None:
    assert len(differences[case]) == 3
    assert max(differences[case]) < 1e-5


@pytest.mark.parametrize("case", ["compressed", "shared, compressed"])
def test_compressed_gradients_are_rounded_once_by_each_rank(
    differences: dict[str, list[float]], case: str
) -> None:
    # BF16 has 8 bits: each of two halves is off by 2^-9 at the most, and gloo rounds their sum.
    assert 1e-4 < max(differences[case]) < 3 * 2**-9


def test_sums_in_shared_memory_are_not_rounded(differences: dict[str, list[float]]) -> None:
    assert max(differences["shared, compressed"]) < max(differences["compressed"])


def test_arithmetic_in_bf16_averages_as_well(differences: dict[str, list[float]]) -> None:
    assert max(differences["bf16"]) < 0.01


def test_an_infinite_loss_of_one_rank_is_seen_by_all_whatever_way_gradients_take(
    found: Found,
) -> None:
    norms = {case: content["norms"] for case, content in found.items()}
    assert norms == {case: ["nan", "nan"] for case in found}
