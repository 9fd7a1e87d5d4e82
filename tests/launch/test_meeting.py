"""Where ranks meet when no MPI tells them: torchrun's variables, and Slurm's."""

import socket

import pytest

from common.errors import InputError
from launch.ranks import Ranks
from launch.rendezvous import meet


def second_of_two(launcher: str) -> Ranks:
    return Ranks(rank=1, size=2, local_rank=0, local_size=1, launcher=launcher)


SLURM = {
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_JOB_NODELIST": "node[01-08]",
    "SLURM_JOB_ID": "4100",
    "SLURM_STEP_ID": "2",
}


@pytest.mark.parametrize("launcher", ["torchrun", "mpich", "slurm"])
def test_the_users_address_goes_first(launcher: str) -> None:
    variables = {**SLURM, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    meeting = meet(second_of_two(launcher), variables)
    assert (meeting.addresses, meeting.port) == (("10.0.0.1",), 29500)
    assert meeting.affinities is None


@pytest.mark.parametrize("port", [{}, {"MASTER_PORT": ""}, {"MASTER_PORT": "x"}])
def test_an_address_without_a_port_is_refused(port: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"^MASTER_PORT: .* beside MASTER_ADDR"):
        meet(second_of_two("torchrun"), {"MASTER_ADDR": "10.0.0.1", **port})


def test_slurms_ranks_meet_on_the_steps_first_host() -> None:
    meeting = meet(second_of_two("slurm"), SLURM)
    assert meeting.addresses == ("node07",)
    assert 20_000 <= meeting.port < 30_000


def test_steps_and_jobs_of_slurm_meet_at_ports_of_their_own() -> None:
    ports = {
        meet(second_of_two("slurm"), {**SLURM, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step}).port
        for job in ("4100", "4101", "4102")
        for step in ("0", "1", "2")
    }
    assert len(ports) == 9


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_STEP_NODELIST"])
def test_slurm_that_does_not_say_enough_is_an_error_with_a_way_out(missing: str) -> None:
    variables = {name: value for name, value in SLURM.items() if name != missing}
    variables.pop("SLURM_JOB_NODELIST")
    with pytest.raises(InputError, match=r"^SLURM_STEP_NODELIST, SLURM_JOB_ID: .*MASTER_ADDR"):
        meet(second_of_two("slurm"), variables)


def test_ranks_that_cannot_meet_are_told_so() -> None:
    with pytest.raises(InputError, match=r"^MASTER_ADDR: is not set"):
        meet(second_of_two("torchrun"), {"HOSTNAME": socket.gethostname()})
