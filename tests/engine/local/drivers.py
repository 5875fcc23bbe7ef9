"""Programs that tests run as drivers of their own, to be killed: python -m tests.engine.local.drivers NAME FOLDER."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from paceline.engine.base import Message, WorkerChannel, WorkerGroup
from paceline.engine.choose import choose_engine
from paceline.testing.engine_tools import bodies_of, collect, placement_in, run_task
from paceline.testing.processes import Marks
from tests.engine.local import tasks


def with_families(folder: Path, workers: int = 2, **settings: Any) -> WorkerGroup:
    """Workers with children, detached children and daemons; their ids go to the marks."""
    group = choose_engine("local").start_group(placement_in(folder, workers, **settings))
    run_task(group, tasks.start_a_family)
    events = collect(group, lambda events: len(events) == workers)
    for event in events:
        assert isinstance(event, Message)
        Marks(folder / "marks").say("family", pids=bodies_of([event], event.rank)[0].decode())
    return group


def wait(folder: Path) -> None:
    with_families(folder)
    Marks(folder / "marks").say("running")
    time.sleep(1000)


def with_fresh_interpreters(folder: Path) -> None:
    with_families(folder, fresh=True)
    Marks(folder / "marks").say("running")
    time.sleep(1000)


def with_two_wardens(folder: Path) -> None:
    """One with workers, and an idle one that has been loaded."""
    choose_engine("local").start_group(placement_in(folder / "idle", 1, preload=("json",))).shutdown()
    wait(folder)


def with_bare_children(folder: Path) -> None:
    """Children without an environment: one below its parent, and one whose parent is gone."""

    def start(channel: WorkerChannel, argument: bytes) -> None:
        code = (
            "import subprocess as s; print(s.Popen(['sleep', '1000'], env={}, stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
        )
        lost = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        shell = subprocess.Popen(["sh", "-c", "env -i sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE)
        assert shell.stdout is not None
        channel.send(json.dumps([int(lost), int(shell.stdout.readline())]).encode())
        channel.receive()

    group = choose_engine("local").start_group(placement_in(folder, 1))
    run_task(group, start)
    (event,) = collect(group, lambda events: len(events) == 1)
    Marks(folder / "marks").say("running", pids=json.loads(bodies_of([event], 0)[0]))
    time.sleep(1000)


def exit_in_the_middle(folder: Path) -> None:
    with_families(folder)
    os._exit(7)


def end_without_shutdown(folder: Path) -> None:
    with_families(folder)


def raise_without_shutdown(folder: Path) -> None:
    with_families(folder)
    raise RuntimeError("the driver failed")


def in_a_thread_with_a_forked_child(folder: Path) -> None:
    """A forked child keeps every descriptor of the driver open; its end must not count as the driver's."""
    thread = threading.Thread(target=with_families, args=(folder,))
    thread.start()
    thread.join()
    if os.fork() == 0:
        Marks(folder / "marks").say("child", pid=os.getpid())
        time.sleep(1000)
    Marks(folder / "marks").say("running")
    time.sleep(1000)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
