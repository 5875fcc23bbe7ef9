"""Where workers reach each other, and whom a listening socket admits."""

from __future__ import annotations

import errno
import socket

import pytest

from paceline.engine.base import Placement, WorkerRequest
from paceline.engine.places import Node, drivers_node, lay_out
from paceline.train import network

A, B = Node("a", "10.0.0.1", "a", 1), Node("b", "10.0.0.2", "b", 1)
NOT_HERE = "192.0.2.1"


def addresses_on(*nodes: Node) -> list[str]:
    placement = Placement("test", tuple(WorkerRequest(rank, "", "") for rank in range(len(nodes))))
    return network.addresses_of(lay_out(placement, nodes))


def test_workers_on_one_machine_use_the_loopback_address() -> None:
    assert addresses_on(drivers_node(), drivers_node()) == ["127.0.0.1"] * 2
    assert addresses_on(A, A) == ["127.0.0.1"] * 2
    several = [Node(name, "10.0.0.1", "a", 1, is_drivers=True) for name in "ab"]  # nodes in name only
    assert addresses_on(*several) == ["127.0.0.1"] * 2


def test_workers_on_several_machines_use_those_of_the_machines() -> None:
    assert addresses_on(A, A, B) == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]


def test_an_address_of_another_machine_is_refused_with_a_reason() -> None:
    with pytest.raises(OSError, match=rf"{socket.gethostname()} cannot listen at {NOT_HERE}") as caught:
        network.listening_socket(NOT_HERE)
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_a_shared_port_is_taken_for_those_who_do_not_share() -> None:
    with network.bound_socket("", shared=True) as held, socket.socket() as other:
        with pytest.raises(OSError):
            other.bind(held.getsockname())
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(held.getsockname())


def test_an_interface_is_found_by_its_address_or_by_the_route_to_a_peer() -> None:
    assert network.interface_for("127.0.0.1") == network.loopback_interface()
    assert network.interface_for(NOT_HERE, [NOT_HERE, "127.0.0.1"]) == "lo"
    assert network.interface_for(NOT_HERE) is None
    assert network.address_towards("127.0.0.1") == "127.0.0.1"


def test_a_listening_socket_admits_only_some_addresses() -> None:
    """The others get no answer, whenever they come."""
    with network.listening_socket("") as server:
        assert can_connect(server, "127.0.0.4")
        network.admit_only(server.fileno(), ["127.0.0.2", "127.0.0.3"])
        sources = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
        assert [each for each in sources if can_connect(server, each)] == ["127.0.0.2", "127.0.0.3"]


def can_connect(server: socket.socket, source: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.getsockname()[1]), 0.3, (source, 0)):
            return True
    except TimeoutError:
        return False
