from __future__ import annotations

import http.client
import ipaddress
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from paceline.engine.base import Placement, WorkerRequest
from paceline.engine.places import Node, lay_out
from paceline.testing.invariants import listening_sockets
from paceline.train.horovod import rendezvous
from paceline.train.horovod.backend import Slot, slots_of
from paceline.train.horovod.rendezvous import Rendezvous
from tests.descriptors import open_descriptors


def slots(count: int) -> list[Slot]:
    """Of workers on one machine."""
    return [Slot("node0", rank, rank, 0, count, count, 1) for rank in range(count)]


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_keeps_values_for_its_own_workers_only() -> None:
    first, second = Rendezvous(slots(2)), Rendezvous(slots(2))
    try:
        assert ask(first.port, "PUT", "/global/0", b"here")[0] == 200
        assert ask(first.port, "GET", "/global/0") == (200, b"here")
        assert ask(second.port, "GET", "/global/0")[0] == 404
        for rank in "01":  # when all have left they can meet anew
            ask(first.port, "DELETE", f"/global/{rank}")
        assert ask(first.port, "GET", "/global/0")[0] == 404
    finally:
        first.close()
        second.close()


def test_it_listens_on_loopback_until_it_is_closed() -> None:
    before = set(listening_sockets(os.getpid()))
    descriptors = open_descriptors()
    server = Rendezvous(slots(2))
    (listening,) = set(listening_sockets(os.getpid())) - before
    assert listening == f"tcp 0100007F:{server.port:04X}"
    server.close()
    assert set(listening_sockets(os.getpid())) == before
    assert not open_descriptors() - descriptors
    assert not [thread for thread in threading.enumerate() if thread.name == "horovod-rendezvous"]


def test_somebody_who_says_nothing_delays_nothing() -> None:
    server = Rendezvous(slots(2))
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server.port, "PUT", "/global/0", b"here")[0] == 200
        server.close()
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", server.port)) != 0


AS_ANOTHER_USER = """
import os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
with socket.socket() as client:
    client.settimeout(30)
    client.connect(("127.0.0.1", int(sys.argv[1])))
    try:
        client.sendall(b"PUT /global/1 HTTP/1.1\\r\\nContent-Length: 4\\r\\n\\r\\nevil")
        if sys.argv[2] == "leaves":
            os._exit(0)
        print(client.recv(1000))
    except ConnectionError:
        print(b"")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("client", ["waits", "leaves"])  # a socket whose process is gone belongs to root
@pytest.mark.parametrize("by", ["question", "table"])
def test_other_users_of_this_machine_are_not_admitted(client: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "table":  # as where the kernel does not know this kind of socket
        monkeypatch.setattr(socket, "AF_NETLINK", 1000)
    server = Rendezvous(slots(2))
    try:
        for _ in range(3):
            command = [sys.executable, "-c", AS_ANOTHER_USER, str(server.port), client]
            answer = subprocess.run(command, capture_output=True, check=True, timeout=60, text=True)
            assert answer.stdout.strip() == ("" if client == "leaves" else "b''")
        assert ask(server.port, "GET", "/global/1")[0] == 404
        assert ask(server.port, "PUT", "/global/0", b"here")[0] == 200
    finally:
        server.close()


def test_connections_that_are_gone_again_do_no_harm() -> None:
    server = Rendezvous(slots(2))
    try:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset at its end
        assert ask(server.port, "PUT", "/global/0", b"here")[0] == 200
    finally:
        server.close()


def test_only_the_addresses_of_the_group_are_admitted() -> None:
    for addresses, admitted in ((None, ["127.0.0.1"]), (["127.0.0.2", "127.0.0.3"], ["127.0.0.2", "127.0.0.3"])):
        server = Rendezvous(slots(2)) if addresses is None else Rendezvous(slots(2), addresses)
        try:
            sources = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
            assert [each for each in sources if is_answered(server.port, each)] == admitted
        finally:
            server.close()


def is_answered(port: int, source: str, address: str = "127.0.0.1") -> bool:
    with socket.create_connection((address, port), 10, (source, 0)) as client:
        try:
            client.sendall(b"PUT /global/0 HTTP/1.1\r\nContent-Length: 4\r\n\r\nhere")
            return client.recv(12).endswith(b"200")
        except ConnectionError:
            return False


def test_everybody_who_comes_at_once_is_admitted() -> None:
    server = Rendezvous(slots(64))
    try:
        with ThreadPoolExecutor(16) as workers:
            asked = [workers.submit(ask, server.port, "PUT", f"/global/{rank}", b"here") for rank in range(400)]
            assert {each.result()[0] for each in asked} == {200}
    finally:
        server.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [("HEAD", "/pyproject.toml"), ("HEAD", "/a/b"), ("GET", "/pyproject.toml"), ("PUT", "/a/b/c"), ("DELETE", "/")],
)
def test_other_requests_are_refused_without_a_word(method: str, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    handlers = list(logging.root.handlers)
    server = Rendezvous(slots(2))
    try:
        assert ask(server.port, method, path, b"x" if method == "PUT" else None)[0] == 400
    finally:
        server.close()
    assert logging.root.handlers == handlers
    assert capfd.readouterr() == ("", "")


def test_at_another_own_address_the_user_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the same machine comes from the server's own address, whichever that is."""
    asked: list[str] = []

    def is_of_this_user(accepted: socket.socket) -> bool:
        asked.append(accepted.getpeername()[0])
        return False

    monkeypatch.setattr(rendezvous, "is_of_this_user", is_of_this_user)
    monkeypatch.setattr(ipaddress.IPv4Address, "is_loopback", False)  # as for an address of the network
    server = Rendezvous(slots(2), ["127.0.0.7", "127.0.0.8"], "127.0.0.7")
    try:
        sources = ["127.0.0.7", "127.0.0.8"]
        assert [each for each in sources if is_answered(server.port, each, "127.0.0.7")] == ["127.0.0.8"]
    finally:
        server.close()
    assert asked == ["127.0.0.7"]


def test_places_among_all_on_the_machine_and_across_machines() -> None:
    """Three workers on one machine and two on another: no other machine has a third one."""
    nodes = [Node("a", "10.0.0.1", "same", 8)] * 3 + [Node("b", "10.0.0.2", "same", 8)] * 2
    placement = Placement("test", tuple(WorkerRequest(rank, "", "") for rank in range(5)))
    assert slots_of(lay_out(placement, nodes)) == [
        Slot("node0", 0, 0, 0, 5, 3, 2),
        Slot("node0", 1, 1, 0, 5, 3, 2),
        Slot("node0", 2, 2, 0, 5, 3, 1),
        Slot("node1", 3, 0, 1, 5, 2, 2),
        Slot("node1", 4, 1, 1, 5, 2, 2),
    ]
