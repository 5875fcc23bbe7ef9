from __future__ import annotations

import http.client
import logging
import os
import socket
import threading

import pytest

from paceline.testing.invariants import listening_sockets
from paceline.train.horovod.rendezvous import Rendezvous


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_keeps_values_for_its_own_workers_only() -> None:
    first, second = Rendezvous(2), Rendezvous(2)
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
    descriptors = set(os.listdir("/proc/self/fd"))
    server = Rendezvous(2)
    (listening,) = set(listening_sockets(os.getpid())) - before
    assert listening == f"tcp 0100007F:{server.port:04X}"
    server.close()
    assert set(listening_sockets(os.getpid())) == before
    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert not [thread for thread in threading.enumerate() if thread.name == "horovod-rendezvous"]


def test_somebody_who_says_nothing_delays_nothing() -> None:
    server = Rendezvous(2)
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server.port, "PUT", "/global/0", b"here")[0] == 200
        server.close()
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", server.port)) != 0


@pytest.mark.parametrize(
    ("method", "path"),
    [("HEAD", "/pyproject.toml"), ("HEAD", "/a/b"), ("GET", "/pyproject.toml"), ("PUT", "/a/b/c"), ("DELETE", "/")],
)
def test_other_requests_are_refused_without_a_word(method: str, path: str, capfd: pytest.CaptureFixture[str]) -> None:
    handlers = list(logging.root.handlers)
    server = Rendezvous(2)
    try:
        assert ask(server.port, method, path, b"x" if method == "PUT" else None)[0] == 400
    finally:
        server.close()
    assert logging.root.handlers == handlers
    assert capfd.readouterr() == ("", "")
