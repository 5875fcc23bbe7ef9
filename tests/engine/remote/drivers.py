"""Programs that tests run as drivers of their own: python -m tests.engine.remote.drivers NAME FOLDER."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from paceline.engine.base import Message
from paceline.engine.remote.group import RemoteGroup
from paceline.testing.engine_tools import collect, placement_in, run_task
from paceline.testing.processes import Marks
from tests.engine.local import tasks
from tests.engine.remote.engine import AgentsEngine

HEARTBEAT_S = 2.0


def with_families(folder: Path) -> RemoteGroup:
    """Workers with children, detached children and daemons; the ids of all go to the marks."""
    engine = AgentsEngine()
    group = engine.start_group(placement_in(folder, 2, heartbeat_timeout_s=HEARTBEAT_S))
    run_task(group, tasks.start_a_family)
    marks = Marks(folder / "marks")
    for event in collect(group, lambda events: len(events) == 2):
        assert isinstance(event, Message)
        marks.say("family", pids=event.body.decode())
    marks.say("family", pids=json.dumps([node.agent for node in engine.nodes]))
    engine.listener._sock.listen(1)  # From now on, the system keeps two connections that are not accepted.
    return group


def wait(folder: Path) -> None:
    with_families(folder)
    Marks(folder / "marks").say("running")
    time.sleep(1000)


def with_a_forked_child(folder: Path) -> None:
    """One that keeps open whatever it finds open."""
    with_families(folder)
    child = os.fork()
    if child == 0:
        time.sleep(1000)
    Marks(folder / "marks").say("running", child=child)
    time.sleep(1000)


def poll_and_answer(folder: Path) -> None:
    """Says what came from the workers, until the gate opens; then lets them end."""
    group = with_families(folder)
    marks = Marks(folder / "marks")
    marks.say("running")
    while not (folder / "marks" / "go.gate").exists():
        for event in group.poll(0.1):
            marks.say("event", text=repr(event))
    for rank in (0, 1):
        group.reply(rank, b"")
    for event in collect(group, lambda events: len(events) == 2):
        marks.say("event", text=repr(event))
    group.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
