import pytest

from launch.ranks import refuse_several_ranks
from retinanet.errors import InputError


@pytest.mark.parametrize(
    "environment",
    [
        {"PMI_SIZE": "2"},
        {"OMPI_COMM_WORLD_SIZE": "4"},
        {"WORLD_SIZE": "8"},
        {"SLURM_NTASKS": "2", "SLURM_PROCID": "1"},
        {"PMI_SIZE": "1", "WORLD_SIZE": "2"},
    ],
)
def test_several_ranks_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"^\w+=\d: training on several ranks") as caught:
        refuse_several_ranks(environment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PMI_SIZE": "1"},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"SLURM_NTASKS": "8"},  # a batch script that starts one process
        {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        {"WORLD_SIZE": ""},
    ],
)
def test_one_rank_is_accepted(environment: dict[str, str]) -> None:
    refuse_several_ranks(environment)
