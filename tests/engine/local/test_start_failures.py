"""Starts that fail or hang: what is said of them, and what takes the place of a dead warden."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.air.errors import ConfigError, EngineError, StartupTimeoutError, WorkerDiedError
from paceline.air.resources import usable_cores
from paceline.engine.frames import Frame, FrameSocket, socket_pair
from paceline.engine.local import group as group_module
from paceline.engine.local import warden_client
from paceline.engine.local.engine import LocalEngine
from paceline.engine.local.group import LocalGroup
from paceline.engine.local.warden_client import WardenClient
from paceline.engine.places import drivers_node, lay_out
from paceline.engine.reactor import Reactor
from paceline.testing.engine_tools import placement_in
from paceline.testing.processes import Marks, descendants, process, wait_for


def test_a_preload_that_fails_is_shown_and_tried_again(engine: LocalEngine, tmp_path: Path) -> None:
    placement = placement_in(tmp_path, 2, preload=("tests.engine.local.broken_preload",))
    for _ in range(2):
        with pytest.raises(EngineError, match="broken on purpose") as caught:
            engine.start_group(placement)
        assert not isinstance(caught.value, StartupTimeoutError)


def test_a_start_that_takes_too_long_shows_where_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_TEST_MARKS", str(tmp_path / "marks"))
    engine = LocalEngine()
    placement = placement_in(tmp_path, 2, preload=("tests.engine.local.endless_preload",), start_timeout_s=0.1)
    engine.warm(placement.preload)
    Marks(tmp_path / "marks").wait("importing")
    with pytest.raises(StartupTimeoutError, match=r"rank\(s\) 0, 1 of 2") as caught:
        engine.start_group(placement)
    assert "wait_for_ever" in str(caught.value)
    engine.close()
    assert descendants(os.getpid()) == [] or all("endless" not in found.command for found in descendants(os.getpid()))


def test_a_worker_that_hangs_on_its_way_is_named(engine: LocalEngine, tmp_path: Path) -> None:
    """A pipe that nobody reads stands in for its log: opening it does not return."""
    engine.start_group(placement_in(tmp_path / "first", 1)).shutdown()  # From now on, rank 0 starts in milliseconds.
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "rank_1.log")
    with pytest.raises(StartupTimeoutError, match=r"rank\(s\) 1 of 2") as caught:
        engine.start_group(placement_in(tmp_path, 2, start_timeout_s=1.0))
    assert "rank 1:" in str(caught.value)


def test_a_fresh_start_that_hangs_names_the_rank(engine: LocalEngine, tmp_path: Path) -> None:
    """The interpreter never gets to its first line: its site directory waits."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text("import os, time\nif os.environ.get('HANG'): time.sleep(1000)\n")
    engine.start_group(placement_in(tmp_path / "first", 1)).shutdown()  # The warden itself is ready.
    placement = placement_in(tmp_path, 1, fresh=True, start_timeout_s=0.2, env={"PYTHONPATH": str(hook), "HANG": "yes"})
    with pytest.raises(StartupTimeoutError, match="rank 0"):
        engine.start_group(placement)


def test_a_log_that_cannot_be_written_is_a_failed_start(engine: LocalEngine, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a directory should be")
    with pytest.raises(EngineError, match=r"rank \d .*Error"):
        engine.start_group(placement_in(tmp_path, 2))


def test_too_many_workers_are_refused(engine: LocalEngine) -> None:
    too_many = max(256, 64 * usable_cores()) + 1
    with pytest.raises(ConfigError, match=f"num_workers={too_many}"):
        engine.start_group(placement_in(Path("/nonexistent"), too_many))


@pytest.mark.parametrize(
    ("victim", "workers"),
    [
        ("worker", 2),
        ("warden", 2),
        pytest.param("worker", 1, marks=pytest.mark.slow),
        pytest.param("warden", 1, marks=pytest.mark.slow),
    ],
)
def test_a_death_right_after_ready_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, workers: int
) -> None:
    """The driver looks only after everybody was ready and the victim is dead: it learns both at the same moment."""
    control, channels, groups = noted_sockets(monkeypatch, warden_client), noted_sockets(monkeypatch, group_module), []
    serve, read = Reactor.run_once, FrameSocket.read

    def noted_group(*arguments: Any) -> LocalGroup:
        groups.append(LocalGroup(*arguments))
        return groups[-1]

    def read_control_only(frames: FrameSocket) -> list[Frame]:
        return read(frames) if frames.fileno() == control[0].fileno() else []

    def look_late(reactor: Reactor, timeout: float, seen: int | None = None) -> None:
        (warden,), (group,) = engine.wardens, groups
        monkeypatch.setattr(Reactor, "run_once", serve)
        with monkeypatch.context() as patch:
            patch.setattr(FrameSocket, "read", read_control_only)
            wait_for(lambda: reactor.run_once(30) or len(group.processes()) == workers, "the process ids")
        assert all(is_readable(channel) for channel in channels), "READY"
        pid = warden.pid if victim == "warden" else group.processes()[0]
        os.kill(pid, signal.SIGKILL)
        if victim == "warden":
            wait_for(lambda: not is_alive(pid), "the warden to end")
        else:
            assert is_readable(control[0]), "the warden says how it died"
        reactor.run_once(timeout, seen)

    monkeypatch.setattr(LocalEngine, "group_class", staticmethod(noted_group))
    monkeypatch.setattr(Reactor, "run_once", look_late)
    engine = LocalEngine()
    with pytest.raises(WorkerDiedError, match=r"rank \d\b") as caught:
        engine.start_group(placement_in(tmp_path, workers))
    assert caught.value.failure is not None
    assert caught.value.failure.kind == ("signal" if victim == "worker" else "engine")
    engine.start_group(placement_in(tmp_path, workers)).shutdown()
    engine.close()


def noted_sockets(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[socket.socket]:
    """The driver's ends of the connections that the module makes from now on."""
    ends: list[socket.socket] = []

    def noted_pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket_pair()
        ends.append(ours)
        return ours, theirs

    monkeypatch.setattr(module, "socket_pair", noted_pair)
    return ends


def is_readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 30)[0])


def is_alive(pid: int) -> bool:
    found = process(pid)
    return found is not None and found.alive


def test_a_warden_that_is_gone_before_the_start_is_a_failed_start(tmp_path: Path) -> None:
    reactor = Reactor()
    warden = WardenClient((), reactor)
    placement = placement_in(tmp_path, 1)
    group = LocalGroup(99, placement, lay_out(placement, [drivers_node()]), warden, reactor)
    warden.forget(99)  # As if it was lost before the group could listen.
    warden.kill()
    wait_for(lambda: reactor.run_once(0.01) or warden.lost, "the loss to be noticed")
    with pytest.raises(WorkerDiedError, match=r"rank 0.*killed"):
        group.launch()
    warden.close()
    reactor.close()


def test_a_warden_that_died_between_two_starts_is_replaced(tmp_path: Path) -> None:
    engine = LocalEngine()
    engine.start_group(placement_in(tmp_path, 1)).shutdown()
    (warden,) = engine.wardens
    os.kill(warden.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(warden.pid), "the warden to end")
    group = engine.start_group(placement_in(tmp_path, 1))
    assert group.execute(lambda: "fine") == ["fine"]
    group.shutdown()
    engine.close()


def test_a_stopped_warden_is_replaced(tmp_path: Path) -> None:
    engine = LocalEngine()
    engine.start_group(placement_in(tmp_path, 1)).shutdown()
    (stopped,) = engine.wardens
    os.kill(stopped.pid, signal.SIGSTOP)
    with pytest.raises(StartupTimeoutError, match="is stopped"):
        engine.start_group(placement_in(tmp_path, 1, start_timeout_s=0.2))
    engine.start_group(placement_in(tmp_path, 1)).shutdown()
    (warden,) = engine.wardens
    assert warden is not stopped
    engine.close()
