"""How workers start and what they find around themselves."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.air.errors import ConfigError, EngineError, StartupTimeoutError, WorkerDiedError
from paceline.air.resources import usable_cores
from paceline.engine.base import WorkerGroup
from paceline.engine.frames import Frame, FrameSocket, socket_pair
from paceline.engine.local import engine as engine_module
from paceline.engine.local import group as group_module
from paceline.engine.local import warden_client
from paceline.engine.local.engine import LocalEngine
from paceline.engine.local.group import LocalGroup
from paceline.engine.local.warden_client import WardenClient
from paceline.engine.places import drivers_node, lay_out
from paceline.engine.reactor import Reactor
from paceline.testing.engine_tools import collect_to_end, placement_in, run_task
from paceline.testing.processes import Marks, descendants, process, wait_for
from tests.engine.local import tasks
from tests.engine.local.conftest import StartGroup


def test_each_worker_has_its_directory_log_and_environment(
    start_group: StartGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts() -> dict[str, Any]:
        return {
            "cwd": os.getcwd(),
            "path": sys.path,
            "umask": os.umask(0),
            "run": os.environ["PACELINE_RUN_ID"],
            "driver": os.environ.get("PACELINE_TEST_DRIVER"),
            "own": os.environ.get("PACELINE_TEST_OWN"),
            "warden": os.environ.get("PACELINE_WARDEN"),
            "session": os.getsid(0) == os.getpid(),
            "threads": [thread.name for thread in threading.enumerate()],
            "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        }

    monkeypatch.setenv("PACELINE_TEST_DRIVER", "caf\udce9")  # Not valid UTF-8.
    monkeypatch.syspath_prepend("/some/where")
    before = os.umask(0o027)
    try:
        group = start_group(run_id="the run", env={"PACELINE_TEST_OWN": "own"})
    finally:
        os.umask(before)
    for place, found in zip(group.placement.workers, group.execute(_safe(facts)), strict=True):
        assert found["cwd"] == place.cwd
        assert found["path"][0] == "/some/where"
        assert found["umask"] == 0o027
        assert (found["run"], found["own"]) == ("the run", "own")
        assert found["driver"] == repr("caf\udce9")
        assert found["warden"].endswith(f"-{group.number:08x}")  # type: ignore[attr-defined]
        assert found["session"]
        assert found["threads"] == ["MainThread"]
        assert len(found["fds"]) <= 7, "standard streams, channel, crash file, the driver and the listing itself"
        assert stat.S_IMODE(os.stat(place.log_path).st_mode) == 0o600


def _safe(facts: Any) -> Any:
    def function() -> Any:
        found = facts()
        found["driver"] = repr(found["driver"])
        return found

    return function


def test_output_of_every_kind_is_in_the_log(start_group: StartGroup) -> None:
    def task(channel: tasks.WorkerChannel, argument: bytes) -> None:
        print("from print", channel.rank)
        print("from stderr \u20ac", file=sys.stderr)
        os.write(1, b"from the descriptor\n")
        subprocess.run(["echo", "from a child"], check=True)
        print("unfinished", end="")

    group = start_group()
    run_task(group, task)
    collect_to_end(group)
    for place in group.placement.workers:
        lines = Path(place.log_path).read_text().splitlines()
        assert lines == [
            f"from print {place.rank}",
            "from stderr \u20ac",
            "from the descriptor",
            "from a child",
            "unfinished",
        ]


def test_a_log_grows_over_attempts(engine: LocalEngine, tmp_path: Path) -> None:
    for attempt in range(2):
        group = engine.start_group(placement_in(tmp_path, 1))
        group.execute(print, f"attempt {attempt}")
        group.shutdown(grace=10)
    assert Path(group.placement.workers[0].log_path).read_text() == "attempt 0\nattempt 1\n"


def test_generators_of_random_numbers_differ(start_group: StartGroup) -> None:
    def draw() -> list[float]:
        import random

        import numpy

        return [random.random(), float(numpy.random.random())]

    group = start_group(4, preload=("numpy",))
    draws = group.execute(draw)
    assert len({number for pair in draws for number in pair}) == 8


def test_threads_are_limited_in_libraries_and_for_children(
    start_group: StartGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads() -> list[Any]:
        import numpy  # noqa: F401
        import threadpoolctl

        return [
            os.environ["OMP_NUM_THREADS"],
            sorted({pool["num_threads"] for pool in threadpoolctl.threadpool_info()}),
        ]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert start_group(1, preload=("numpy",), threads=1).execute(threads) == [["1", [1]]]
    assert start_group(1, preload=(), threads=1).execute(threads) == [["1", [1]]]


def test_a_preloaded_library_that_counts_for_itself_is_told_its_threads(start_group: StartGroup) -> None:
    group = start_group(1, preload=("torch",), threads=1, thread_setters=("torch:set_num_threads", "unknown:ignored"))
    assert group.execute(_threads_of_torch) == [1]


def _threads_of_torch() -> int:
    import torch

    return torch.get_num_threads()


def test_the_users_own_thread_setting_wins(start_group: StartGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert start_group(1, threads=1).execute(os.getenv, "OMP_NUM_THREADS") == ["2"]


def test_preloaded_modules_are_there_and_warm_starts_share_a_warden(engine: LocalEngine, tmp_path: Path) -> None:
    def is_loaded(name: str) -> bool:
        return name in sys.modules

    engine.warm(("colorsys",))
    wardens = len(engine.wardens)
    for _ in range(3):
        group = engine.start_group(placement_in(tmp_path, 1, preload=("colorsys",)))
        assert group.execute(is_loaded, "colorsys") == [True]
        group.shutdown()
    assert len(engine.wardens) == wardens


def test_variables_read_at_import_get_a_warden_of_their_own(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.warm(())
    wardens = len(engine.wardens)
    monkeypatch.setenv("TORCH_TEST_SETTING", "1")
    engine.start_group(placement_in(tmp_path, 1)).shutdown()
    assert len(engine.wardens) == wardens + 1


def test_a_fresh_worker_is_a_new_interpreter(start_group: StartGroup) -> None:
    def facts() -> list[Any]:
        return ["cloudpickle" in sys.modules, os.getcwd(), os.getsid(0) == os.getpid(), os.environ["PACELINE_TEST_OWN"]]

    group = start_group(2, fresh=True, preload=("colorsys",), env={"PACELINE_TEST_OWN": "own"}, threads=1)
    for place, found in zip(group.placement.workers, group.execute(facts), strict=True):
        assert found[1:] == [place.cwd, True, "own"]
    assert group.execute(lambda: "colorsys" in sys.modules) == [False, False]
    run_task(group, tasks.say_and_wait)
    stacks = group.stacks(timeout=30)
    assert len(stacks) == 2
    print_nothing = group.shutdown()
    assert print_nothing == []


def test_a_module_that_is_not_installed_is_left_to_the_worker(start_group: StartGroup) -> None:
    group = start_group(1, preload=("no_such_module_anywhere", "no_such_package.at_all"))
    assert group.execute(lambda: "fine") == ["fine"]


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


def test_sixty_four_workers_start_on_few_cores(start_group: StartGroup) -> None:
    group = start_group(64)
    pids = group.execute(os.getpid)
    assert len(set(pids)) == 64
    run_task(group, lambda channel, argument: channel.send(b"x"))
    collect_to_end(group)
    assert group.shutdown(grace=60) == []


def test_workers_outlive_the_thread_that_started_them(engine: LocalEngine, tmp_path: Path) -> None:
    groups: list[WorkerGroup] = []
    separate = LocalEngine()
    thread = threading.Thread(target=lambda: groups.append(separate.start_group(placement_in(tmp_path, 2))))
    thread.start()
    thread.join()
    (group,) = groups
    assert group.execute(lambda: "alive") == ["alive", "alive"]
    run_task(group, lambda channel, argument: None)
    collect_to_end(group)
    assert group.shutdown(grace=30) == []
    separate.close()


def test_two_threads_run_their_own_groups_at_the_same_time(engine: LocalEngine, tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for attempt in range(5):
                group = engine.start_group(placement_in(tmp_path / f"{number}-{attempt}", 2))
                assert group.execute(lambda: number) == [number, number]
                run_task(group, lambda channel, argument: channel.send(b"x"))
                collect_to_end(group)
                group.shutdown(grace=30)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_limiting_threads_starts_none(start_group: StartGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS, told its number of threads in a forked process, would start threads that spin."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    group = start_group(1, preload=("numpy",), threads=1)
    assert group.execute(lambda: len(os.listdir("/proc/self/task"))) == [2], "the main thread and the pulse"


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

    monkeypatch.setattr(engine_module, "LocalGroup", noted_group)
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
