"""What the tests of serving share: small predictors, servers with limits of their own, and a plain HTTP client."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from paceline.air import Checkpoint
from paceline.serve.application import Application, application
from paceline.serve.limits import Limits
from paceline.serve.model import ServedModel, loaded_model
from paceline.serve.server import RunningServer
from paceline.train.predictor import Predictor
from paceline.web.door import bind
from tests.web.client import PATIENCE, Answer, Client

TOKEN = "a-token-for-the-tests-of-serving"
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
class Server(Client):
    """A model's server, as a client sees it."""

    running: Any
    app: Application | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait for the model."""
        assert self.app is not None
        return self.app.predict.waiting

    def predict(self, document: Any, **headers: str) -> Answer:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self.ask("POST", "/predict", body, {**JSON, **headers})

    def head(self, length: int | None, *, more: str = "") -> bytes:
        """The first part of a request to /predict, up to its body."""
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        return (
            f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.running.token}\r\n"
            f"Content-Type: application/json\r\n{size}\r\n{more}\r\n"
        ).encode()
