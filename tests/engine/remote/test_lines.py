"""What the driver does with lines to agents that are lost or slow; the test is the agent."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.engine import protocol
from paceline.engine.base import Placement
from paceline.engine.frames import HEADER, FrameSocket
from paceline.engine.local import warden_client
from paceline.engine.places import Node, WorkerPlace, lay_out
from paceline.engine.reactor import Reactor
from paceline.engine.remote import messages, sharing
from paceline.engine.remote.agent_line import AgentLine
from paceline.engine.remote.group import RemoteGroup
from paceline.testing.engine_tools import placement_in


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


def elsewhere(placement: Placement) -> tuple[WorkerPlace, ...]:
    return lay_out(placement, [Node("n", "10.0.0.1", "h", 1, is_drivers=False)])


FLOOD = """
import os, sys, time
data, until = bytes.fromhex(sys.argv[1]) * 2000, time.monotonic() + 8
try:
    while time.monotonic() < until:
        os.write(1, data)
except OSError:
    pass
"""


def test_a_worker_that_never_stops_sending_does_not_stop_the_driver(reactor: Reactor, tmp_path: Path) -> None:
    """Its agent is lost; what the worker has sent by then counts, but nobody waits for its last word."""
    placement = placement_in(tmp_path, 1)
    line = AgentLine("n9", reactor)
    group = RemoteGroup(1, placement, elsewhere(placement), [line], reactor)
    line.groups[1] = group
    ours, theirs = connected()
    group.on_connected(0, ours)
    FrameSocket(theirs).send(protocol.READY, protocol.clocks())
    message = HEADER.pack(200, protocol.MESSAGE, 0) + b"x" * 200
    worker = subprocess.Popen([sys.executable, "-c", FLOOD, message.hex()], stdout=theirs.fileno())
    theirs.close()
    heard = 0
    while heard < 10_000:  # It is at full speed.
        heard += len(group.poll(5.0))
    began = time.monotonic()
    line.lose("the test says so")
    took_s = time.monotonic() - began
    ours.close()
    worker.wait()
    assert took_s < 3


def looked(placement: Placement, line: AgentLine, reactor: Reactor) -> bool:
    return sharing.SharedDirectories(placement, elsewhere(placement), [line], reactor).shares_directory


def test_a_machine_that_answers_too_late_is_asked_again(
    reactor: Reactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not before it has answered: it may hang there, and nobody shall wait for that twice."""
    monkeypatch.setattr(sharing, "LOOK_S", 0.05)
    asked: list[str] = []
    line = AgentLine("n9", reactor)

    def note(message: Any) -> None:
        asked.append(message.path)

    def answer(message: Any) -> None:
        asked.append(message.path)
        line._on_message(messages.Seen(message.path, sharing.found_in(message.path)))

    placement = placement_in(tmp_path, 1)
    monkeypatch.setattr(line, "tell", note)
    assert not looked(placement, line, reactor)
    assert not looked(placement, line, reactor)
    assert len(asked) == 1
    line._on_message(messages.Seen(asked[0], b""))
    monkeypatch.setattr(line, "tell", answer)
    assert looked(placement, line, reactor)
    assert len(asked) == 2
    assert (line.found, line.late) == ({}, {})


def test_a_disk_that_was_full_once_does_not_hide_a_shared_directory(
    reactor: Reactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = AgentLine("n9", reactor)

    def answer(message: Any) -> None:
        line._on_message(messages.Seen(message.path, sharing.found_in(message.path)))

    def is_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    placement = placement_in(tmp_path, 1)
    monkeypatch.setattr(line, "tell", answer)
    with monkeypatch.context() as full:
        full.setattr(sharing, "open", is_full, raising=False)
        assert not looked(placement, line, reactor)
    assert looked(placement, line, reactor)


def test_a_warden_that_hangs_is_dismissed_at_once(reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the lock does not wait for its end."""
    monkeypatch.setattr(warden_client, "END_TIMEOUT_S", 1.5)
    warden = warden_client.WardenClient((), reactor)
    while not warden.loaded:
        reactor.run_once(0.1)
    os.kill(warden.pid, signal.SIGSTOP)
    began = time.monotonic()
    warden.dismiss()
    assert time.monotonic() - began < 1
    warden.wait_for_end()
    assert warden._process.poll() is not None
