"""Attachments travel to each node once, and its workers share them."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.air.attachment import Attachment
from paceline.engine.base import Message, TaskEnded, WorkerChannel
from paceline.engine.remote import shipments
from paceline.engine.remote.group import RemoteGroup
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
