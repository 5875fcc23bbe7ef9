"""Who may talk to the server."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from paceline import serve
from paceline.air.errors import ConfigError
from paceline.web.access import Guard
from tests.serve.serving import JSON, TOKEN, Server, Times, serving
from tests.web.client import read_all

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(Times()) as running:
        yield running


def listening() -> set[str]:
    connections = psutil.Process(os.getpid()).net_connections(kind="inet")
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def test_without_options_it_listens_on_loopback_only() -> None:
    """S1."""
    before = listening()
    running = serve.run(Times(), port=0, blocking=False)
    assert running is not None
    with running:
        assert running.url.startswith("http://127.0.0.1:")
        assert listening() - before <= {"127.0.0.1"}
        assert running.token is not None
        assert len(base64.urlsafe_b64decode(running.token + "=")) == 32  # 256 bits
    assert listening() == before


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_a_token_it_listens_nowhere_else(host: str) -> None:
    """S1."""
    before = listening()
    with pytest.raises(ConfigError, match=rf"loopback.*{host}.*token"):
        serve.run(Times(), host=host, port=0, token=False, blocking=False)
    assert listening() == before


@pytest.mark.parametrize(
    "token", ["short", "has a space in the middle", "ümlaut-ümlaut-ümlaut", "line\nbreak-in-a-token", ""]
)
def test_weak_tokens_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="16 or more"):
        serve.run(Times(), port=0, token=token, blocking=False)


def every_route(server: Server) -> list[str]:
    assert server.app is not None
    paths = [getattr(route, "path", None) for route in server.app.routes]
    assert {"/predict", "/reload", "/model", "/docs", "/openapi.json", "/healthz", "/metrics"} <= set(paths)
    return [str(path) for path in paths] + ["/", "/nothing/here", "/healthz/", "//healthz", "/predict/../healthz"]


@pytest.mark.parametrize("token", [None, "wrong" * 8, TOKEN[:-1], TOKEN + "x"])
def test_every_route_and_method_needs_the_token(server: Server, token: str | None) -> None:
    """S2."""
    for path in every_route(server):
        for method in METHODS:
            answer = server.ask(method, path, token=token)
            is_open = path == "/healthz" and method in ("GET", "HEAD")
            assert answer.status == (200 if is_open else 401), f"{method} {path}"
            assert not any(name.lower().startswith("access-control") for name in answer.headers)
            assert "server" not in answer.headers


def test_a_wrong_token_is_told_from_none(server: Server) -> None:
    assert server.ask("GET", "/model", token=None).reason.startswith("A token is needed: ")
    assert server.ask("GET", "/model", token="wrong" * 8).reason.startswith("The token is wrong")


def test_another_method_is_answered_with_those_that_there_are(server: Server) -> None:
    answer = server.ask("GET", "/predict")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert re.search("/predict.*POST.*GET", answer.reason)


def test_a_websocket_needs_the_token_too(server: Server) -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "a" * 24,
    }
    for path in every_route(server):
        status = server.ask("GET", path, headers=upgrade, token=None).status
        assert status == (200 if path == "/healthz" else 401)
        assert server.ask("GET", path, headers=upgrade).status != 101


def test_other_schemes_of_authorization(server: Server) -> None:
    def status(authorization: str, method: str = "GET") -> int:
        headers = {"Authorization": authorization, **JSON}
        path, body = ("/predict", b'[{"x": 1}]') if method == "POST" else ("/model", None)
        return server.ask(method, path, body, headers, token=None).status

    password = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    assert status(f"bearer {TOKEN}") == 200
    assert status(f"Basic {password}") == 200  # a browser's way to /docs
    assert status(f"Basic {password}", "POST") == 401  # which a foreign page could make it use
    assert status(f"Basic {base64.b64encode(TOKEN.encode()).decode()}") == 401
    assert status("Basic ???") == 401
    assert status(TOKEN) == 401
    assert status(f"Token {TOKEN}") == 401
    assert status("Bearer ") == 401
    assert server.ask("GET", f"/model?token={TOKEN}", token=None).status == 401


@pytest.mark.parametrize("host", ["evil.com", "evil.com:80", "127.0.0.1.evil.com", "localhost.evil.com", "0.0.0.0", ""])
def test_other_names_of_the_host_are_refused(server: Server, host: str) -> None:
    """S3."""
    for path in ("/model", "/healthz"):
        assert server.ask("GET", path, headers={"Host": host}).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:8000"])
def test_names_of_loopback(server: Server, host: str) -> None:
    assert server.ask("GET", "/model", headers={"Host": host}).status == 200


@pytest.mark.parametrize("origin", ["http://evil.com", "null", "http://127.0.0.1:1", "https://localhost", "file://"])
def test_pages_of_other_origins_are_refused(server: Server, origin: str) -> None:
    """S3: Also what a browser sends without asking first: a simple POST."""
    for headers in ({}, JSON, {"Content-Type": "text/plain"}):
        answer = server.ask("POST", "/predict", b'[{"x": 1}]', {**headers, "Origin": origin})
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers


def test_its_own_page_is_allowed(server: Server) -> None:
    host, port = server.address
    assert server.predict([{"x": 1}], Origin=f"http://{host}:{port}").status == 200


def test_without_a_token_host_and_origin_are_still_checked() -> None:
    with serving(Times(), token=None) as open_server:
        assert open_server.ask("GET", "/model").status == 200
        assert open_server.ask("GET", "/model", headers={"Host": "evil.com"}).status == 421
        assert open_server.ask("POST", "/predict", b"[]", {**JSON, "Origin": "http://evil.com"}).status == 403


def test_beyond_loopback_addresses_and_given_names_are_hosts() -> None:
    for host in (b"10.1.2.3:8000", b"[2001:db8::1]:80", b"Models.Example.org:8000", b"localhost"):
        assert status_beyond_loopback(host) == 200, host
    for host in (b"evil.com", b"example.org", b"10.1.2.3.evil.com"):
        assert status_beyond_loopback(host) == 421, host


def status_beyond_loopback(host: bytes) -> int:
    """What a guard answers that may be reached from other machines, in front of an application that takes all."""
    statuses = []

    async def takes_all(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])

    guard = Guard(takes_all, token=None, loopback=False, allowed_hosts=["models.example.org"])
    scope = {"type": "http", "method": "GET", "path": "/model", "headers": [(b"host", host)]}
    asyncio.run(guard(scope, receive, send))
    (status,) = statuses
    return int(status)


def test_a_refused_client_sees_the_reason_also_if_it_was_still_sending(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n\r\n")
        connection.sendall(b"-" * 3_000_000)
        assert read_all(connection).startswith(b"HTTP/1.1 401")


def test_the_log_of_requests_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "paceline.web.access"):
        running = serve.run(Times(), port=0, token=TOKEN, blocking=False, access_log=True)
        assert running is not None
        with running:
            answer = Server(running).ask("GET", f"/model%0a%1b[31m?token={TOKEN}")
    assert answer.status == 404
    (line,) = [record.getMessage() for record in caplog.records]
    assert TOKEN not in line
    assert "GET /model\\n\\x1b[31m 404" in line
