import socket

import pytest

from common.errors import InputError
from launch.rendezvous import (
    interface_addresses,
    interface_of,
    interface_towards,
    own_addresses,
    reachable,
)


@pytest.fixture
def port() -> int:
    """One at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
    return number


def test_the_loopback_is_an_interface_but_no_address_for_other_hosts() -> None:
    assert interface_addresses()["lo"] == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.200") is None
    assert not [one for one in own_addresses({}) if one.startswith("127.")]


def test_the_users_interface_is_the_only_one() -> None:
    assert own_addresses({"GLOO_SOCKET_IFNAME": "lo"}) == ("127.0.0.1",)


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"^GLOO_SOCKET_IFNAME=ib7: .* there are .*lo"):
        own_addresses({"GLOO_SOCKET_IFNAME": "ib7"})


def test_the_way_to_this_host_is_the_loopback(port: int) -> None:
    assert interface_towards("127.0.0.1", port) == "lo"


def test_the_first_address_that_answers_is_taken(port: int) -> None:
    with socket.create_server(("127.0.0.3", port)):
        assert reachable(("127.0.0.2", "127.0.0.3", "127.0.0.4"), port) == "127.0.0.3"


def test_addresses_that_do_not_answer_are_all_named(port: int) -> None:
    with pytest.raises(ConnectionError, match=r"port \d+ of 127\.0\.0\.2 .*127\.0\.0\.3"):
        reachable(("127.0.0.2", "127.0.0.3"), port)
