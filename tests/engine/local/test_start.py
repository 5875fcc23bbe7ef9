"""How workers start and what they find around themselves."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.base import WorkerGroup
from paceline.engine.local.engine import LocalEngine
from paceline.testing.engine_tools import collect_to_end, placement_in, run_task
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
