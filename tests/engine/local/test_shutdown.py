"""How workers end."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from paceline.engine.local import warden_client
from paceline.engine.local import wardens as wardens_module
from paceline.engine.local.engine import LocalEngine
from paceline.engine.reactor import Reactor
from paceline.testing.engine_tools import collect, collect_to_end, placement_in, run_task
from paceline.testing.processes import children, wait_for
from tests.descriptors import open_descriptors
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
    assert re.match(r"rank 0 .*SIGABRT.*rank_0\.log", first)
    assert re.match(r"rank 1 .*code 3\b.*rank_1\.log", second)


def test_an_end_that_hangs_is_killed_with_a_warning(start_group: StartGroup) -> None:
    def task(channel: tasks.WorkerChannel, argument: bytes) -> None:
        import atexit
        import time

        atexit.register(time.sleep, 1000)

    group = start_group(1)
    run_task(group, task)
    collect_to_end(group)
    (warning,) = group.shutdown(grace=0.2)
    assert re.match(r"rank 0 .*\b0\.2 s\b", warning)


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
    before = open_descriptors()
    for _ in range(3):
        group = start_group(2)
        run_task(group, tasks.start_a_family)
        collect(group, lambda events: len(events) == 2)
        group.stacks()
        group.shutdown()
    assert not open_descriptors() - before


@pytest.mark.parametrize("broken", ["Popen", "pipe", "write_boot_config"])
def test_a_warden_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "no more of these")

    reactor = Reactor()
    before = open_descriptors()
    place = {"Popen": subprocess, "pipe": os, "write_boot_config": warden_client}[broken]
    with monkeypatch.context() as patch:
        patch.setattr(place, broken, fail)
        with pytest.raises(OSError, match="no more of these"):
            warden_client.WardenClient((), reactor)
    assert not open_descriptors() - before
    reactor.close()


def test_only_so_many_wardens_without_workers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wardens_module, "MOST_IDLE_WARDENS", 2)
    engine = LocalEngine()
    modules = ["json", "csv", "shelve"]
    busy = engine.start_group(placement_in(tmp_path / "busy", 1, preload=("uuid",)))
    for module in modules:
        engine.start_group(placement_in(tmp_path / module, 1, preload=(module,))).shutdown()
    engine.warm((modules[1],))
    wardens = [child for child in children(os.getpid()) if "engine/local/boot.py" in child.command]
    kept = [warden.preload for warden in engine.wardens]
    assert kept == [("uuid",), (modules[2],), (modules[1],)]
    mine = {warden.pid for warden in engine.wardens}
    assert len(mine & {warden.pid for warden in wardens}) == 3
    assert busy.execute(os.getpid) == list(busy.processes().values())
    before = len(open_descriptors())
    engine.warm(("fractions",))
    assert len(open_descriptors()) <= before, "one came, one went"
    busy.shutdown()
    engine.close()
    wait_for(lambda: not any(warden.pid in mine and warden.alive for warden in wardens), "the wardens' end")
