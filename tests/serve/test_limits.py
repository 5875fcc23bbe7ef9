"""Clients that send too much, too slowly, or never end."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.serve.serving import Server, Times, serving
from tests.web.client import read_all, read_to_end, until

ROW = b'[{"x": 1}]'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(Times(), max_body_bytes=100_000, header_timeout_s=0.5, body_timeout_s=0.5, keep_alive_s=1) as running:
        yield running


def test_a_body_of_a_gigabyte_is_refused_by_its_length(server: Server) -> None:
    """S12."""
    with server.connect() as connection:
        connection.sendall(server.head(1 << 30) + b"-" * 1000)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100000 bytes" in answer
    assert server.predict([{"x": 1}]).status == 200


def test_a_client_that_asks_first_is_not_told_to_go_on(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(server.head(1 << 30, more="Expect: 100-continue\r\n"))
        assert read_all(connection).startswith(b"HTTP/1.1 413")


def test_an_endless_body_in_chunks_is_cut_off(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(server.head(None))
        chunk = b"%x\r\n%s\r\n" % (8192, b"-" * 8192)
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):  # 80 MB
                connection.sendall(chunk)
        answer = read_all(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")  # one who never stops may miss the reason
    assert server.predict([{"x": 1}]).status == 200


def test_chunks_beyond_the_limit_get_the_reason(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(server.head(None) + b"%x\r\n%s\r\n0\r\n\r\n" % (150_000, b"-" * 150_000))
        assert read_all(connection).startswith(b"HTTP/1.1 413")


def test_a_body_in_chunks(server: Server) -> None:
    with server.connect() as connection:
        pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in ROW)
        connection.sendall(server.head(None, more="Connection: close\r\n") + pieces + b"0\r\nX-After: all\r\n\r\n")
        assert read_all(connection).endswith(b'{"predictions":[10.0]}')


def test_a_slow_body_is_given_up(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(server.head(len(ROW)) + ROW[:3])
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"0.5 s" in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        pytest.param(b"POST /pre", marks=pytest.mark.slow),
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: b\r\n",
        pytest.param(b"\r\n", marks=pytest.mark.slow),
    ],
)
def test_late_headers_are_given_up(server: Server, sent: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_headers_that_drip_do_not_keep_a_connection(server: Server) -> None:
    """S12: Each byte by itself would be in time: the headers as a whole are not."""
    with server.connect() as connection:
        closed = threading.Event()

        def drip() -> None:
            connection.sendall(b"GET /healthz HTTP/1.1\r\n")
            with contextlib.suppress(OSError):
                while not closed.wait(0.05):
                    connection.sendall(b"X-A: b\r\n")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert read_all(connection).startswith(b"HTTP/1.1 408")
        finally:
            closed.set()
            dripping.join()


@pytest.mark.slow  # waits as long as a connection is kept alive
def test_a_connection_that_was_used_before_is_no_exception(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(server.head(len(ROW)) + ROW)
        answer = b""
        while b"predictions" not in answer:
            answer += connection.recv(4096)
        connection.sendall(b"\r\n")
        read_all(connection)  # the server ends it


def test_headers_without_end_are_refused(server: Server) -> None:
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        for _ in range(10_000):
            connection.sendall(b"X-A: " + b"b" * 8000 + b"\r\n")
    with server.connect() as connection:
        connection.sendall(b"GET /" + b"a" * 70_000)
        assert read_all(connection).startswith(b"HTTP/1.1 431")
    assert server.predict([{"x": 1}]).status == 200


def test_a_client_that_sends_everything_first_still_reads_why_it_was_refused() -> None:
    """Closing a connection before all of it was read would reset it, and the answer with it."""
    too_large, no_token = 33 << 20, b"X-Token: none"
    with serving(Times()) as server:
        for sent, status in (
            (server.head(too_large) + bytes(too_large), b"413"),
            (server.head(None) + b"%x\r\n%s\r\n0\r\n\r\n" % (too_large, bytes(too_large)), b"413"),
            (server.head(too_large).replace(b"Authorization", b"X-Not") + bytes(too_large), b"401"),
            (server.head(too_large, more="Content-Encoding: gzip\r\n") + bytes(too_large), b"415"),
            (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n", b"431"),
            (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + (no_token + b"\r\n") * 14_000 + b"\r\n", b"431"),
            (b"GET /" + b"a" * 200_000, b"431"),
            (b"\x80\x04 not http\r\n" + bytes(1 << 20), b"400"),
        ):
            with server.connect() as connection:
                connection.sendall(sent)
                answer = read_to_end(connection)
            assert answer.startswith(b"HTTP/1.1 " + status), (status, answer[:200])
        assert server.predict([{"x": 1}]).status == 200


def test_headers_that_arrive_at_once_have_the_same_limit(server: Server) -> None:
    header = b"X-A: " + b"a" * 6000 + b"\r\n"
    for count, status in ((10, b"200"), (11, b"431")):
        with server.connect() as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header * count + b"\r\n")
            assert connection.recv(12) == b"HTTP/1.1 " + status


def test_many_slow_clients_do_not_keep_others_out() -> None:
    with serving(Times(), max_idle_connections=50, header_timeout_s=60) as server, contextlib.ExitStack() as slow:
        for _ in range(200):
            connection = slow.enter_context(server.connect())
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"POST /predict HTTP/1.1\r\n")
        for number in range(5):
            assert server.predict([{"x": number}]).json == {"predictions": [10 * number]}


def connections_of(server: Server) -> list[Any]:
    """Those that the server holds; the other ends of them are in this process too."""
    all_here = psutil.Process(os.getpid()).net_connections(kind="tcp")
    return [each for each in all_here if each.laddr == server.address and each.status != psutil.CONN_LISTEN]


@pytest.mark.faults  # the system gives a connection that nobody reads from some seconds
def test_an_answer_that_is_not_read_does_not_keep_its_connection() -> None:
    body = b"[" + b",".join([b'{"x": 1.23456789}'] * 500_000) + b"]"  # more than the system's buffers hold
    # Nothing else may close it: the next request may take its time.
    with (
        serving(Times(), write_timeout_s=0.3, keep_alive_s=600, max_rows=500_000) as server,
        socket.socket() as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(server.address)
        connection.sendall(server.head(len(body)) + body)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"  # the rest is left unread
        until(lambda: not connections_of(server))
        assert server.predict([{"x": 1}]).status == 200


@pytest.mark.parametrize("junk", [b"\x80\x04\x95 not http\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00" * 50])
def test_what_is_not_http(server: Server, junk: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(junk)
        assert read_all(connection).startswith(b"HTTP/1.1 400")


def test_requests_that_are_sent_ahead_are_answered_in_order(server: Server) -> None:
    bodies = [b'[{"x": %d}]' % number for number in range(5)]
    with server.connect() as connection:
        connection.sendall(b"".join(server.head(len(body)) + body for body in bodies[:-1]))
        connection.sendall(server.head(len(bodies[-1]), more="Connection: close\r\n") + bodies[-1])
        answer = read_all(connection)
    assert [part.split(b"]")[0] for part in answer.split(b"predictions")[1:]] == [
        b'":[%d.0' % (10 * number) for number in range(5)
    ]


def test_nothing_in_a_request_is_unpickled(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """S12."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    content = pickle.dumps([{"x": 1}])
    for kind in ("application/json", "application/vnd.apache.arrow.stream", "application/x-pickle"):
        assert 400 <= server.ask("POST", "/predict", content, {"Content-Type": kind}).status < 500
