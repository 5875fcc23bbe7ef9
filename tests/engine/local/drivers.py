"""Programs that tests run as drivers of their own, to be killed: python -m tests.engine.local.drivers NAME FOLDER."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from paceline.engine.base import Message, WorkerGroup
from paceline.engine.choose import choose_engine
from paceline.testing.chaos import Marks
from paceline.testing.engine_contract import bodies_of, collect, placement_in, run_task
from tests.engine.local import tasks


def with_families(folder: Path, workers: int = 4) -> WorkerGroup:
    """Workers with children, detached children and daemons; their ids go to the marks."""
    group = choose_engine("local").start_group(placement_in(folder, workers))
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
