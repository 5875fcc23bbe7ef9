"""Questions to a cluster whose head is gone, or only slow; no cluster is needed for them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from paceline.air.errors import EngineError, EngineLost
from paceline.engine.ray import connection as module
from paceline.engine.ray.connection import Connection

FASTER = 20
"""So much faster than in real life does everything go."""


class Head:
    """A head that accepts connections as long as it has power."""

    def __init__(self) -> None:
        self.has_power = True

    def create_connection(self, address: tuple[str, int], timeout: float) -> socket.socket:
        if not self.has_power:
            time.sleep(timeout)  # Nobody refuses, either.
            raise TimeoutError("timed out")
        return socket.socket()


class OpenConnection(Connection):
    is_usable = property(lambda self: not self.lost)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.lost = self.address = ""
        self.owns_ray = False
        self._tend = lambda: None
        self._closing = threading.Event()
        self._silent_s, self._reached_at = 0.0, time.monotonic()
        connected: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, args=(bool, connected), daemon=True)
        self._thread.start()
        connected.result(10)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Head:
    head = Head()
    for name in ("REACH_S", "ANSWER_S", "GONE_S", "TEND_S", "PROBE_S", "LOOK_S"):
        monkeypatch.setattr(module, name, getattr(module, name) / FASTER)
    monkeypatch.setattr(module, "socket", SimpleNamespace(create_connection=head.create_connection))
    context = SimpleNamespace(gcs_address="10.0.0.1:6379")
    monkeypatch.setattr(module, "ray", SimpleNamespace(get_runtime_context=lambda: context, is_initialized=bool))
    return head


@pytest.fixture
def connection(head: Head) -> Iterator[OpenConnection]:
    connection = OpenConnection()
    yield connection
    connection.close()


def ended_with(connection: Connection, after_s: float, ends: list[tuple[type, float]]) -> None:
    """What becomes of a question that the cluster never answers, and how long that takes."""
    time.sleep(after_s / FASTER)
    never = threading.Event()
    began = time.monotonic()
    try:
        connection.ask(never.wait, 60.0, within_s=module.ANSWER_S)
    except EngineError as error:
        ends.append((type(error), (time.monotonic() - began) * FASTER))


def test_questions_to_a_dead_head_raise_engine_lost(connection: OpenConnection, head: Head) -> None:
    """Whenever they are asked: a missing answer must not become a plain EngineError."""
    head.has_power = False
    began = time.monotonic()
    ends: list[tuple[type, float]] = []
    asking = [threading.Thread(target=ended_with, args=(connection, after, ends)) for after in (0.5, 3, 5.5, 8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert [kind for kind, _ in ends] == [EngineLost] * 4
    assert (time.monotonic() - began) * FASTER < 60


def test_a_head_that_is_there_but_does_not_answer_is_not_gone(connection: OpenConnection) -> None:
    ends: list[tuple[type, float]] = []
    ended_with(connection, 0.0, ends)
    ((kind, took_s),) = ends
    assert kind is EngineError
    assert 29 < took_s < 60
    assert not connection.lost


def test_what_may_fail_waits_for_no_verdict(connection: OpenConnection, head: Head) -> None:
    head.has_power = False
    never = threading.Event()
    began = time.monotonic()
    connection.tell(never.wait, 60.0, within_s=5 / FASTER)
    assert (time.monotonic() - began) * FASTER < 15
    assert not connection.lost


@pytest.mark.parametrize(("address", "within_s"), [("local", 120), ("10.0.0.1:6379", 30)])
def test_a_connection_that_takes_too_long_says_how_long(
    head: Head, address: str, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(module, "_connector", lambda address, settings: lambda: never.wait(30))
    monkeypatch.setattr(module.Future, "result", _times_out)
    with pytest.raises(EngineError, match=f"no answer within {within_s} s"):
        Connection(address, {}, lambda: None)
    never.set()


def _times_out(self: Future[Any], timeout: float | None = None) -> None:
    raise TimeoutError
