from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import cast

import pytest

from paceline.air import session
from paceline.air.attachment import Attachment
from paceline.air.errors import EngineError
from paceline.air.session import SessionProtocol
from paceline.engine.base import TaskEnded, WorkerChannel
from paceline.engine.inline import InlineEngine
from paceline.testing.engine_tools import collect, collect_to_end, placement_in, run_task
from tests.descriptors import open_files


def test_the_worker_is_a_thread_and_surroundings_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_TEST_OWN", "before")
    directory = os.getcwd()
    engine = InlineEngine()
    group = engine.start_group(placement_in(tmp_path, 1, env={"PACELINE_TEST_OWN": "during"}))
    assert group.execute(os.getpid) == [os.getpid()]
    assert group.execute(os.getcwd) == [str(tmp_path / "rank_0")]
    assert group.execute(os.getenv, "PACELINE_TEST_OWN") == ["during"]
    group.shutdown()
    assert (os.getcwd(), os.environ["PACELINE_TEST_OWN"]) == (directory, "before")
    assert "PACELINE_RUN_ID" not in os.environ


def change_environment() -> None:
    os.environ.update({"PACELINE_TEST_OWN": "changed", "PACELINE_TEST_NEW": "new"})
    del os.environ["PACELINE_TEST_GONE"]


def test_what_backends_and_tasks_set_in_the_environment_ends_with_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not they got to put it back: a failed worker does not."""
    monkeypatch.setenv("PACELINE_TEST_OWN", "before")
    monkeypatch.setenv("PACELINE_TEST_GONE", "before")
    before = dict(os.environ)
    group = InlineEngine().start_group(placement_in(tmp_path, 1))
    try:
        group.execute(change_environment)
        assert os.environ["PACELINE_TEST_NEW"] == "new"
    finally:
        group.shutdown()
    assert dict(os.environ) == before


def test_a_thread_that_cannot_be_stopped_is_a_warning(tmp_path: Path) -> None:
    gate = threading.Event()
    GATES["gate"] = gate

    def task(channel: WorkerChannel, argument: bytes) -> None:
        from tests.engine.test_inline import GATES

        channel.send(b"waiting")
        GATES["gate"].wait()

    group = InlineEngine().start_group(placement_in(tmp_path, 1))
    run_task(group, task)
    collect(group, lambda events: len(events) == 1)
    (warning,) = group.shutdown()
    assert "cannot be killed" in warning
    gate.set()
    next(thread for thread in threading.enumerate() if thread.name == "paceline-rank-0").join()


GATES: dict[str, threading.Event] = {}


def test_the_driver_is_not_listed_as_a_worker(tmp_path: Path) -> None:
    group = InlineEngine().start_group(placement_in(tmp_path, 1))
    assert group.processes() == {}
    group.shutdown()


def test_a_second_group_is_refused_while_one_lives(tmp_path: Path) -> None:
    directory = os.getcwd()
    first = InlineEngine().start_group(placement_in(tmp_path / "first", 1))
    with pytest.raises(EngineError, match=r"inline engine.*engine='local'"):
        InlineEngine().start_group(placement_in(tmp_path / "second", 1))
    assert first.execute(os.getcwd) == [str(tmp_path / "first" / "rank_0")]
    first.shutdown()
    assert os.getcwd() == directory
    third = InlineEngine().start_group(placement_in(tmp_path / "third", 1))
    assert third.execute(os.getcwd) == [str(tmp_path / "third" / "rank_0")]
    third.shutdown()


def test_afterwards_the_driver_is_outside_a_session_again(tmp_path: Path) -> None:
    group = InlineEngine().start_group(placement_in(tmp_path, 1))
    group.execute(install_a_session)
    assert session.current() is not None
    group.shutdown()
    assert session.current() is None


def install_a_session() -> None:
    session.install(cast(SessionProtocol, object()))


def test_attachments_of_messages_that_nobody_polled_are_given_back(tmp_path: Path) -> None:
    def task(channel: WorkerChannel, argument: bytes) -> None:
        channel.send(b"with a file", [Attachment.written("paceline-test-unpolled", lambda file: file.write(b"x"))])

    engine = InlineEngine()
    group = engine.start_group(placement_in(tmp_path, 1))
    run_task(group, task)
    while not engine.wait([group], 1.0):
        pass
    assert any("paceline-test-unpolled" in name for name in open_files())
    group.shutdown(grace=5.0)
    assert not any("paceline-test-unpolled" in name for name in open_files())


def test_each_rank_has_a_session_and_the_threads_that_it_starts_have_it_too(tmp_path: Path) -> None:
    def task(channel: WorkerChannel, argument: bytes) -> None:
        from concurrent.futures import ThreadPoolExecutor

        mine = object()
        session.install(cast(SessionProtocol, mine))
        channel.send(b"installed")
        channel.receive()
        with ThreadPoolExecutor(1) as pool:
            deeper = pool.submit(lambda: pool.submit(session.current)).result().result()
        assert session.current() is deeper is mine

    start = threading.Thread.start
    group = InlineEngine().start_group(placement_in(tmp_path, 2))
    run_task(group, task)
    collect(group, lambda events: len(events) == 2)
    assert session.current() is None, "the driver is no rank"
    seen = []
    watcher = threading.Thread(target=lambda: seen.append(session.current()))
    watcher.start()
    watcher.join()
    assert seen == [None]
    for rank in (0, 1):
        group.reply(rank, b"go")
    assert {type(event) for event in collect_to_end(group)} == {TaskEnded}
    group.shutdown()
    assert threading.Thread.start is start
    assert session.current() is None


def test_ranks_see_the_gpus_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    engine = InlineEngine(num_gpus=2)
    group = engine.start_group(placement_in(tmp_path, 2, resources={"CPU": 1.0, "GPU": 1.0}))
    try:
        assert [place.gpus for place in group.places] == [("3",), ("5",)]
        assert group.execute(os.getenv, "CUDA_VISIBLE_DEVICES") == ["3,5"] * 2
    finally:
        group.shutdown()
