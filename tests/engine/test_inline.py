from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from paceline.air.errors import ConfigError
from paceline.engine.base import WorkerChannel
from paceline.engine.inline import InlineEngine
from paceline.testing.engine_contract import collect, placement_in, run_task


def test_more_than_one_worker_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine='local'"):
        InlineEngine().start_group(placement_in(tmp_path, 2))


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
