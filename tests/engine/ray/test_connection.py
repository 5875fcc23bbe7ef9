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

ADDRESS = "10.0.0.1:6379"
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


class PlayedRay:
    """Takes the place of the module."""

    def __init__(self) -> None:
        self.is_connected = False
        self.accepts = threading.Event()
        self.accepts.set()
        self.times_shut_down = 0
        self.times_started_by_a_question = 0

    def init(self, **settings: Any) -> None:
        self.accepts.wait(30)
        self.is_connected = True

    def is_initialized(self) -> bool:
        return self.is_connected

    def shutdown(self) -> None:
        self.is_connected = False
        self.times_shut_down += 1

    def get_runtime_context(self) -> Any:
        self.times_started_by_a_question += not self.is_connected
        return SimpleNamespace(gcs_address=ADDRESS, get_job_id=lambda: "1")


@pytest.fixture
def played_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedRay]:
    played = PlayedRay()
    monkeypatch.setattr(module, "ray", played)
    monkeypatch.setattr(module, "_warned_of_open_cluster", True)
    yield played
    wait_for_ends()  # What they ask later, they would ask Ray itself.


def wait_for_ends() -> None:
    for thread in threading.enumerate():
        if thread.name == "paceline-ray":
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def head(played_ray: PlayedRay, monkeypatch: pytest.MonkeyPatch) -> Head:
    head = Head()
    for name in ("REACH_S", "ANSWER_S", "GONE_S", "TEND_S", "PROBE_S", "LOOK_S"):
        monkeypatch.setattr(module, name, getattr(module, name) / FASTER)
    monkeypatch.setattr(module, "socket", SimpleNamespace(create_connection=head.create_connection))
    return head


@pytest.fixture
def connection(head: Head) -> Iterator[Connection]:
    connection = Connection(ADDRESS, {}, lambda: None)
    yield connection
    connection.close()


def test_a_missing_token_is_named(played_ray: PlayedRay, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(**settings: Any) -> None:
        try:
            raise RuntimeError("InvalidAuthToken: RAY_AUTH_MODE is currently 'disabled'")
        except RuntimeError as error:
            raise ConnectionError("the head does not answer") from error

    monkeypatch.setattr(played_ray, "init", reject)
    with pytest.raises(EngineError, match=f"^the Ray cluster at {ADDRESS} rejects this program.*RAY_AUTH_MODE=token"):
        Connection(ADDRESS, {}, lambda: None)


def ended_with(connection: Connection, after_s: float, ends: list[tuple[type, float]]) -> None:
    """What becomes of a question that the cluster never answers, and how long that takes."""
    time.sleep(after_s / FASTER)
    never = threading.Event()
    began = time.monotonic()
    try:
        connection.ask(never.wait, 60.0, within_s=module.ANSWER_S)
    except EngineError as error:
        ends.append((type(error), (time.monotonic() - began) * FASTER))


def test_questions_to_a_dead_head_raise_engine_lost(connection: Connection, head: Head) -> None:
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


def test_a_head_that_is_there_but_does_not_answer_is_not_gone(connection: Connection) -> None:
    ends: list[tuple[type, float]] = []
    ended_with(connection, 0.0, ends)
    ((kind, took_s),) = ends
    assert kind is EngineError
    assert 29 < took_s < 60
    assert not connection.lost


def test_what_may_fail_waits_for_no_verdict(connection: Connection, head: Head) -> None:
    head.has_power = False
    never = threading.Event()
    began = time.monotonic()
    connection.tell(never.wait, 60.0, within_s=5 / FASTER)
    assert (time.monotonic() - began) * FASTER < 15
    assert not connection.lost


def test_a_process_leaves_a_cluster_that_is_gone(
    connection: Connection, head: Head, played_ray: PlayedRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would end it half a minute later. Whatever the program connects to next stays its own."""
    told: list[bool] = []
    monkeypatch.setattr(connection, "_tend", lambda: told.append(bool(connection.lost)))
    head.has_power = False
    deadline = time.monotonic() + 30
    while played_ray.is_connected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert connection.lost
    assert not played_ray.is_connected
    assert told[-1], "groups are told before"
    played_ray.is_connected = True
    connection.close()
    assert played_ray.times_shut_down == 1


def test_a_program_stays_connected_to_a_ray_of_its_own(head: Head, played_ray: PlayedRay) -> None:
    played_ray.is_connected = True
    connection = Connection(None, {}, lambda: None)
    head.has_power = False
    ends: list[tuple[type, float]] = []
    ended_with(connection, 0.0, ends)
    connection.close()
    assert [kind for kind, _ in ends] == [EngineLost]
    assert played_ray.times_shut_down == 0


def test_an_answer_that_comes_when_it_is_given_up_counts(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there between the end of a look and the next."""

    class Late(Future[Any]):
        is_first = True

        def result(self, timeout: float | None = None) -> Any:
            if self.is_first:
                self.is_first = False
                self.set_result("nodes")
                raise TimeoutError
            return super().result(timeout)

    monkeypatch.setattr(connection, "begin", lambda call, *arguments: Late())
    assert connection.ask(bool) == "nodes"


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
def test_a_connection_that_nobody_waits_for_does_not_stay(
    head: Head, played_ray: PlayedRay, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run would take it for the program's own."""

    def give_up(self: Future[Any], timeout: float | None = None) -> None:
        raise error

    played_ray.accepts.clear()
    known = set(threading.enumerate())
    with monkeypatch.context() as patched:
        patched.setattr(module.Future, "result", give_up)
        with pytest.raises((EngineError, KeyboardInterrupt)):
            Connection(ADDRESS, {}, lambda: None)
    (thread,) = set(threading.enumerate()) - known
    played_ray.accepts.set()
    thread.join(10)
    assert not thread.is_alive()
    assert not played_ray.is_connected
    assert played_ray.times_shut_down == 1


@pytest.mark.parametrize(("address", "within_s"), [("local", 120), ("10.0.0.1:6379", 30)])
def test_a_connection_that_takes_too_long_says_how_long(
    head: Head, played_ray: PlayedRay, address: str, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr(module, "_connector", lambda address, settings: lambda: never.wait(30))
    monkeypatch.setattr(module.Future, "result", _times_out)
    with pytest.raises(EngineError, match=f"no answer within {within_s} s"):
        Connection(address, {}, lambda: None)
    never.set()
    wait_for_ends()
    assert played_ray.times_started_by_a_question == 0


def _times_out(self: Future[Any], timeout: float | None = None) -> None:
    raise TimeoutError
