"""What the tests of serving share: small predictors, servers with limits of their own, and a plain HTTP client."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pandas as pd

from paceline.air import Checkpoint
from paceline.serve.application import Application, application
from paceline.serve.limits import Limits
from paceline.serve.model import ServedModel, loaded_model
from paceline.serve.server import RunningServer
from paceline.train.predictor import Predictor
from paceline.web.door import bind

TOKEN = "a-token-for-the-tests-of-serving"
PATIENCE = 30.0
"""Seconds after which something that must come is given up; far more than it takes."""
JSON = {"Content-Type": "application/json"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


class Times(Predictor):
    """Multiplies the column x by a number from its checkpoint."""

    def __init__(self, factor: float = 10.0) -> None:
        super().__init__()
        self.factor = factor

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Times:
        with checkpoint.as_directory() as folder, open(f"{folder}/factor.json") as file:
            return cls(json.load(file))

    def _predict_pandas(self, data: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"predictions": data["x"] * self.factor})


class Gated(Times):
    """Notes the sizes of its batches; can be made to wait in the middle of one."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def _predict_pandas(self, data: pd.DataFrame) -> pd.DataFrame:
        self.sizes.append(len(data))
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        if (data["x"] < 0).any():
            raise RuntimeError("a negative x, which the model cannot take")
        return super()._predict_pandas(data)


@contextlib.contextmanager
def serving(
    predictor: Predictor, *, token: str | None = TOKEN, tls: ssl.SSLContext | None = None, **limits: Any
) -> Iterator[Server]:
    """A server around a predictor, on a free port of loopback."""
    served = ServedModel("the model", loaded_model(predictor, "memory"))
    checked = Limits(**limits)
    app = application(served, checked, token=token, loopback=True)
    with RunningServer(app, served, checked, bind("127.0.0.1", 0), token, tls) as running:
        yield Server(running, app)


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["detail"])


@dataclass
class Server:
    """A running server, as a client sees it."""

    running: RunningServer
    app: Application | None = None

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.running.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    @property
    def waiting(self) -> int:
        """Requests that wait for the model."""
        assert self.app is not None
        return self.app.predict.waiting

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None, token: str | None = "") -> Answer:
        """One request on a connection of its own; None as token: none is sent."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        token = self.running.token if token == "" else token
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            connection.request(method, path, body, {**authorization, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def predict(self, document: Any, **headers: str) -> Answer:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", "/predict", body, {**JSON, **headers})

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(self.address, timeout=PATIENCE)

    def head(self, length: int | None, *, more: str = "") -> bytes:
        """The first part of a request to /predict, up to its body."""
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        return (
            f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.running.token}\r\n"
            f"Content-Type: application/json\r\n{size}\r\n{more}\r\n"
        ).encode()


def read_all(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def read_to_end(connection: socket.socket) -> bytes:
    """The same, where a reset is an error."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other threads bring about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.002)
