"""How workers end."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.testing.engine_contract import collect, collect_to_end, run_task
from tests.engine.local import tasks
from tests.engine.local.conftest import StartGroup


def test_exit_functions_and_threads_of_the_user_are_waited_for(start_group: StartGroup, tmp_path: Path) -> None:
    def task(channel: tasks.WorkerChannel, argument: bytes) -> None:
        import atexit
        import threading
        import time

        def write_late() -> None:
            time.sleep(0.2)
            print("from a thread")

        atexit.register(print, "from atexit")
        threading.Thread(target=write_late).start()

    group = start_group(1)
    run_task(group, task)
    collect_to_end(group)
    assert group.shutdown(grace=30) == []
    assert Path(group.placement.workers[0].log_path).read_text() == "from a thread\nfrom atexit\n"


def test_a_crash_after_the_end_is_a_warning(start_group: StartGroup) -> None:
    def task(channel: tasks.WorkerChannel, argument: bytes) -> None:
        import atexit

        atexit.register(os.abort if channel.rank == 0 else os._exit, *([] if channel.rank == 0 else [3]))

    group = start_group(2)
    run_task(group, task)
    collect_to_end(group)
    first, second = group.shutdown(grace=30)
    assert first.startswith("rank 0 was killed by SIGABRT after its function had returned")
    assert second.startswith("rank 1 exited with code 3 after its function had returned")


def test_an_end_that_hangs_is_killed_with_a_warning(start_group: StartGroup) -> None:
    def task(channel: tasks.WorkerChannel, argument: bytes) -> None:
        import atexit
        import time

        atexit.register(time.sleep, 1000)

    group = start_group(1)
    run_task(group, task)
    collect_to_end(group)
    (warning,) = group.shutdown(grace=0.2)
    assert "did not exit within 0.2 s" in warning


def test_a_worker_that_ignores_signals_is_killed(start_group: StartGroup) -> None:
    def task(channel: tasks.WorkerChannel, argument: bytes) -> None:
        import signal
        import time

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        channel.send(b"stubborn")
        while True:
            time.sleep(1)

    group = start_group(2)
    run_task(group, task)
    collect(group, lambda events: len(events) == 2)
    pids = group.processes().values()
    group.shutdown(grace=0.1)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_nothing_of_a_group_stays_open_in_the_driver(start_group: StartGroup) -> None:
    start_group(1).shutdown()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        group = start_group(2)
        run_task(group, tasks.start_a_family)
        collect(group, lambda events: len(events) == 2)
        group.stacks()
        group.shutdown()
    assert len(os.listdir("/proc/self/fd")) == before
