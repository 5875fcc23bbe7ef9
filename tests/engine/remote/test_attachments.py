"""Attachments travel to each node once, and its workers share them."""

from __future__ import annotations

import gc
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.air.attachment import Attachment
from paceline.engine.base import Message, TaskEnded, WorkerChannel
from paceline.engine.frames import ATTACHED, FrameSocket
from paceline.engine.reactor import Reactor
from paceline.engine.remote import messages, shipments
from paceline.engine.remote.agent_line import AgentLine
from paceline.engine.remote.group import RemoteGroup
from paceline.engine.remote.workers_here import AttachmentsHere
from paceline.engine.serialization import pickled
from paceline.testing.engine_tools import collect, collect_to_end
from paceline.testing.processes import wait_for
from tests.engine.remote.conftest import StartGroup
from tests.engine.remote.engine import AgentsEngine

LARGE = 8 * 2**20


class Told:
    """How much goes to agents as attachments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        add = shipments.Shipments.add

        def counted(to: shipments.Shipments, attachment: Attachment) -> int:
            self.sizes.append(attachment.size)
            return add(to, attachment)

        monkeypatch.setattr(shipments.Shipments, "add", counted)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def run(group: RemoteGroup, task: Callable[[WorkerChannel, bytes], None]) -> None:
    content = pickled(task, "task")
    group.start(content.content, [b""] * group.world_size, content.attachments)


def files_of(pid: int) -> list[int]:
    """The sizes of the files in memory that a process has as attachments."""
    sizes = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "paceline-attachment" in os.readlink(entry):
                sizes.append(os.stat(entry).st_size)
        except FileNotFoundError:
            continue
    return sizes


def task_with_attachments() -> Callable[[WorkerChannel, bytes], None]:
    parts = [Attachment(os.urandom(size)) for size in (10, LARGE, 0, 100_000, 70)]
    wanted = [bytes(part.view()) for part in parts]

    def task(channel: WorkerChannel, argument: bytes) -> None:
        assert [bytes(part.view()) for part in parts] == wanted
        channel.send(str(os.fstat(parts[1].fileno()).st_ino).encode())

    return task


def test_each_node_gets_an_attachment_once(engine: AgentsEngine, start_group: StartGroup, told: Told) -> None:
    """Four workers on two nodes: all of them see it, in whatever company it comes; the next group finds it there."""
    task = [task_with_attachments()]
    inodes = []
    for _ in range(2):
        group = start_group(4)
        run(group, task[0])
        events = collect_to_end(group)
        assert [type(event) for event in events if not isinstance(event, Message)] == [TaskEnded] * 4
        seen = {event.rank: event.body for event in events if isinstance(event, Message)}
        assert seen[0] == seen[1] != seen[2] == seen[3]
        inodes.append(seen)
        group.shutdown()
    assert inodes[0] == inodes[1]
    assert sorted(told.sizes) == [100_000, 100_000, LARGE, LARGE]
    agents = [node.agent for node in engine.nodes]
    assert all(LARGE in files_of(agent) for agent in agents)
    task.clear()
    gc.collect()
    wait_for(lambda: not any(files_of(agent) for agent in agents), "agents without attachments")


def test_a_reply_waits_for_its_attachment_and_keeps_its_place(start_group: StartGroup) -> None:
    def task(channel: WorkerChannel, argument: bytes) -> None:
        for _ in range(4):
            body = channel.receive()
            sizes = [attachment.size for attachment in channel.take_attachments()]
            channel.send(f"{body!r} {sizes}".encode())

    group = start_group(2)
    run(group, task)
    for rank in (0, 1):
        group.reply(rank, b"first", [Attachment(b"x" * LARGE)])  # Dropped at once by the driver.
        group.reply(rank, b"second")
        group.reply(rank, b"third", [Attachment(b"y" * 3), Attachment(b"x" * 2 * LARGE), Attachment(b"z" * LARGE)])
        group.reply(rank, b"fourth")
    events = collect_to_end(group)
    for rank in (0, 1):
        assert [event.body for event in events if isinstance(event, Message) and event.rank == rank] == [
            f"b'first' [{LARGE}]".encode(),
            b"b'second' []",
            f"b'third' [3, {2 * LARGE}, {LARGE}]".encode(),
            b"b'fourth' []",
        ]


def test_signs_of_life_pass_a_large_attachment(
    engine: AgentsEngine, start_group: StartGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transfer that takes longer than heartbeat_timeout_s and start_timeout_s costs nobody his life."""
    heartbeat_s, pieces = 1.0, 60
    next_piece = shipments.Shipments.next_piece

    def slowly(self: shipments.Shipments) -> bytes | memoryview | None:
        time.sleep(4 * heartbeat_s / pieces)  # As on a slow network: this is what the test is about.
        return next_piece(self)

    monkeypatch.setattr(shipments.Shipments, "next_piece", slowly)
    attachment = Attachment(os.urandom(pieces * shipments.PIECE_BYTES))

    def task(channel: WorkerChannel, argument: bytes) -> None:
        assert attachment.size

    group = start_group(2, heartbeat_timeout_s=heartbeat_s, start_timeout_s=3.0)
    began = time.monotonic()
    run(group, task)
    assert [type(event) for event in collect_to_end(group)] == [TaskEnded] * 2
    assert time.monotonic() - began > 4 * heartbeat_s


def test_workers_with_fresh_interpreters_are_handed_attachments_too(start_group: StartGroup) -> None:
    attachment = Attachment(os.urandom(LARGE))

    def task(channel: WorkerChannel, argument: bytes) -> None:
        channel.send(str(attachment.size).encode())

    group = start_group(2, fresh=True)
    run(group, task)
    events = collect(group, lambda events: len(events) == 4)
    assert [event.body for event in events if isinstance(event, Message)] == [str(LARGE).encode()] * 2


def test_a_new_agent_is_sent_everything_again(engine: AgentsEngine, start_group: StartGroup, told: Told) -> None:
    attachment = Attachment(os.urandom(LARGE))

    def task(channel: WorkerChannel, argument: bytes) -> None:
        assert attachment.size

    for _ in range(2):
        group = start_group(2)
        run(group, task)
        assert [type(event) for event in collect_to_end(group)] == [TaskEnded] * 2
        group.shutdown()
        engine.nodes[1].agent_line.lose("the test says so")
    assert told.sizes == [LARGE] * 3


@pytest.fixture
def line_and_peer() -> Iterator[tuple[AgentLine, FrameSocket]]:
    """A line whose agent is the test itself."""
    reactor = Reactor()
    line = AgentLine("n9", reactor)
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = FrameSocket(socket.create_connection(server.getsockname()))
        line.attach(server.accept()[0])
    yield line, peer
    peer.close()
    line.lose("the test is over")
    reactor.close()


def serve(line: AgentLine, peer: FrameSocket, agents: AttachmentsHere, until: Callable[[], bool]) -> list[Any]:
    """Let the line send, and take in what comes until something holds; gives the other messages."""
    told: list[Any] = []
    deadline = time.monotonic() + 30
    while not until():
        assert time.monotonic() < deadline
        line._reactor.run_once(0.01)
        for tag, body, fds in peer.read():
            if tag == ATTACHED:
                agents.take_in(body, fds)
                told.append(len(body))
            else:
                told.append(messages.decode_to_agent(body))
    return told


def test_a_line_that_is_lost_keeps_no_attachment(line_and_peer: tuple[AgentLine, FrameSocket]) -> None:
    line, _ = line_and_peer
    attachment = Attachment(b"x" * 4 * LARGE)
    assert not line.ship(attachment)
    kept = weakref.ref(attachment)
    line.lose("the test says so")
    del attachment
    gc.collect()
    assert kept() is None


def test_what_nobody_wants_any_more_is_not_sent_to_its_end(line_and_peer: tuple[AgentLine, FrameSocket]) -> None:
    """Neither what has been begun nor what waits. The numbers of those behind it stay right."""
    line, peer = line_and_peer
    begun, waiting, wanted = Attachment(b"x" * 4 * LARGE), Attachment(b"y" * LARGE), Attachment(b"z" * LARGE)
    for attachment in (begun, waiting, wanted):
        assert not line.ship(attachment)
    del attachment, begun, waiting
    gc.collect()
    agents = AttachmentsHere()
    frames = line._frames
    assert frames is not None
    told = serve(line, peer, agents, lambda: line.ship(wanted) and not frames.unsent)
    told += serve(line, peer, agents, lambda: not peer.took_something)
    assert sum(size for size in told if isinstance(size, int)) < LARGE + 3 * shipments.PIECE_BYTES
    assert bytes(agents[line._shipments.number_of(wanted)].view()) == b"z" * LARGE
    dropped = {message.number for message in told if isinstance(message, messages.Drop)}
    assert dropped == {0, 1}
