"""Starting and ending a server inside of a program."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import paceline
from paceline import serve
from paceline.air.errors import ConfigError
from paceline.serve import RunningServer
from paceline.web import connection
from tests.serve.serving import TOKEN, Gated, Server, Times, serving


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("paceline-")}


def start(predictor: Any, **settings: Any) -> RunningServer:
    running = serve.run(predictor, port=0, blocking=False, **settings)
    assert running is not None
    return running


def test_a_server_ends_without_a_trace() -> None:
    with start(Times(), name="times ten") as running:
        server = Server(running)
        assert server.predict([{"x": 1}]).status == 200
        assert repr(running) == f"RunningServer({running.url!r}, 'times ten', running)"
        assert running.token is not None
        assert running.token not in repr(running)
        assert "paceline-serve" in threads()
    running.stop()  # again is fine
    for thread in threading.enumerate():
        if thread.name.startswith("paceline-"):
            thread.join(30)
    assert threads() == set()
    assert repr(running).endswith("ended)")
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_what_is_under_way_is_answered_before_the_end() -> None:
    model = Gated()
    with serving(model) as server, ThreadPoolExecutor(2) as others:
        model.gate.clear()
        asked = others.submit(server.predict, [{"x": 4}])
        assert model.entered.acquire(timeout=30)
        stopping = others.submit(server.running.stop)
        model.gate.set()
        assert asked.result().json == {"predictions": [40.0]}
        stopping.result()


def test_clients_that_say_nothing_do_not_keep_it_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LAST_REQUEST_SECONDS", 0.05)
    with serving(Times()) as server, server.connect(), server.connect() as half, server.connect() as lingering:
        half.sendall(b"GET /healthz HTTP/1.1\r\n")
        lingering.sendall(server.head(1 << 30))
        assert lingering.recv(12) == b"HTTP/1.1 413"
        server.running.stop()


def test_a_port_that_is_taken_is_told_at_once() -> None:
    with start(Times()) as running:
        _, port = Server(running).address
        with pytest.raises(ConfigError, match=rf"{port}.*127\.0\.0\.1.*in use"):
            serve.run(Times(), port=port, blocking=False)
    with start(Times(), token=TOKEN) as again:
        assert Server(again).predict([{"x": 1}]).status == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 70000}, "port.*70000"),
        ({"port": "8000"}, "port.*'8000'"),
        ({"host": ""}, "host.*''"),
        ({"host": "no such host"}, "no such host"),
        ({"host": "192.0.2.1", "token": TOKEN}, r"192\.0\.2\.1"),
        ({"token": 12345}, "token.*int"),
        ({"max_batch_size": 0}, "max_batch_size.*0"),
        ({"max_body_bytes": "1MB"}, "max_body_bytes.*'1MB'"),
        ({"max_wait_ms": -1}, "max_wait_ms.*-1"),
        ({"max_wait_ms": 5000, "request_timeout_s": 2}, "max_wait_ms.*request_timeout_s"),
        ({"request_timeout_s": 0}, "request_timeout_s.*0"),
        ({"trust": "yes"}, "trust.*'yes'"),
        ({"blocking": None}, "blocking.*None"),
        ({"allowed_hosts": ["http://a"]}, "allowed_hosts.*'http://a'"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve.run(Times(), **{"port": 0, "blocking": False, **settings})


@pytest.mark.parametrize("given", [int, "Times", 3])
def test_what_is_no_predictor(given: Any) -> None:
    with pytest.raises(ConfigError):
        serve.run(given, "/nowhere", port=0, blocking=False)


def test_the_application_for_a_server_of_ones_own() -> None:
    app = serve.app(Times(), token=TOKEN, allowed_hosts="models.example.org")
    assert {"/predict", "/healthz"} <= {getattr(route, "path", "") for route in app.routes}
    with pytest.raises(TypeError, match="token"):
        serve.app(Times())  # type: ignore[call-arg]


def test_the_application_answers_without_a_server_of_ours() -> None:
    app = serve.app(Times(), token=TOKEN, allowed_hosts=["models.example.org"])
    body, sent = b'[{"x": 1}]', []
    headers = {"host": "models.example.org", "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predict",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    for _ in range(2):  # in a loop of its own each time, as clients for tests do
        sent.clear()
        asyncio.run(app(scope, receive, send))
        assert (sent[0]["status"], sent[1]["body"]) == (200, b'{"predictions":[10.0]}')


def test_in_a_coroutine_it_does_not_block() -> None:
    async def notebook() -> None:
        serve.run(Times(), port=0)

    with pytest.raises(ConfigError, match="blocking=False"):
        asyncio.run(notebook())


def test_localhost_and_ipv6() -> None:
    for host in ("localhost", "::1"):
        with start(Times(), host=host) as running:
            assert Server(running).predict([{"x": 1}]).status == 200


def test_names_of_the_package() -> None:
    assert paceline.serve is importlib.import_module("paceline.serve")
    with pytest.raises(ImportError, match=r"serve\.run\(PredictorClass, checkpoint\)"):
        from paceline.serve import PredictorDeployment  # noqa: F401
    with pytest.raises(AttributeError, match=r"deployment.*serve\.run"):
        _ = serve.deployment


def test_importing_it_loads_no_framework() -> None:
    code = (
        "import sys, paceline.serve, paceline.cli.main\n"
        "heavy = {'fastapi', 'uvicorn', 'starlette', 'numpy', 'pandas', 'pyarrow', 'torch', 'xgboost'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_the_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['starlette'] = None\nimport paceline.serve"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert re.search(r"ImportError: .*starlette.*'paceline\[serve\]'", ended.stderr)
