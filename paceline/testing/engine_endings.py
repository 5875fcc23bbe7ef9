"""What every engine must do when tasks fail, workers end and groups are shut down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import WorkerDiedError, WorkerError
from paceline.air.faults import FAULT_VARIABLE
from paceline.engine.base import (
    Engine,
    Event,
    Message,
    TaskFailed,
    WorkerChannel,
    WorkerDied,
    WorkerGroup,
)
from paceline.testing.engine_tools import (
    PATIENCE_S,
    PROMPT_S,
    EngineTests,
    bodies_of,
    collect,
    collect_to_end,
    failure_of,
    fork_child,
    placement_in,
    run_task,
    running,
)


class EndingsContract(EngineTests):
    """Exceptions, deaths, silence, and what is left at the end."""

    # Failures

    def test_an_exception_arrives_with_type_message_and_traceback(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(b"before")
            raise KeyError("the key", channel.rank)

        run_task(group, task)
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            own = [event for event in events if event.rank == rank]
            assert bodies_of(own, rank) == [b"before"]
            assert isinstance(own[-1], TaskFailed)
            failure = own[-1].failure
            assert (failure.rank, failure.kind, failure.exception_type) == (rank, "exception", "builtins.KeyError")
            assert failure.arguments == ("the key", rank)
            assert failure.time_ns > 0
            first_frame = failure.traceback.splitlines()[1]
            assert "in task" in first_frame, "the traceback begins at the user's own frame"

    def test_an_exception_that_cannot_be_shown_still_arrives(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            class UnspeakableError(Exception):
                def __str__(self) -> str:
                    raise RuntimeError("no words")

                def __reduce__(self) -> Any:
                    raise RuntimeError("no pickle")

            raise UnspeakableError

        run_task(group, task)
        failure = failure_of(collect_to_end(group))
        assert failure.exception_type is not None
        assert failure.exception_type.endswith("UnspeakableError")
        assert "in task" in failure.traceback

    def test_an_exception_that_holds_much_data_stays_small(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            raise ValueError(b"x" * 200_000_000)

        run_task(group, task)
        failure = failure_of(collect_to_end(group))
        assert failure.exception_type == "builtins.ValueError"
        assert failure.arguments is None
        assert len(failure.message) + len(failure.traceback) < 1_000_000

    @pytest.mark.parametrize(("code", "kind"), [(3, "exit"), (0, "premature_exit"), (None, "premature_exit")])
    def test_sys_exit_in_a_task_is_a_failure(self, group: WorkerGroup, code: int | None, kind: str) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            raise SystemExit(code)

        run_task(group, task)
        failure = failure_of(collect_to_end(group))
        assert (failure.kind, failure.exit_code) == (kind, code or 0)

    def test_a_task_that_cannot_be_loaded_is_a_failed_start(self, group: WorkerGroup) -> None:
        group.start(b"cno_such_module_at_all\nfunction\n.", [b""] * self.max_workers)
        failure = failure_of(collect_to_end(group))
        assert failure.kind == "startup"
        assert "no_such_module_at_all" in failure.message
        assert failure.hint

    @pytest.mark.parametrize(("code", "kind"), [(3, "exit"), (0, "premature_exit")])
    def test_a_process_that_ends_itself_has_died(self, group: WorkerGroup, code: int, kind: str) -> None:
        self._needs_processes()

        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(b"last words")
            os._exit(code)

        run_task(group, task)
        events = collect_to_end(group)
        assert bodies_of(events) == [b"last words"]
        died = [event for event in events if isinstance(event, WorkerDied)]
        assert len(died) == self.max_workers
        assert (died[0].failure.kind, died[0].failure.exit_code) == (kind, code)

    def test_a_killed_worker_is_noticed_though_its_child_holds_the_channel(self, group: WorkerGroup) -> None:
        self._needs_processes()

        def task(channel: WorkerChannel, argument: bytes) -> None:
            if channel.rank == 0:
                fork_child()
                channel.send(b"last words")
                os.kill(os.getpid(), signal.SIGKILL)
            channel.receive()

        run_task(group, task)
        events = collect(group, lambda events: any(isinstance(event, WorkerDied) for event in events), PROMPT_S)
        assert bodies_of(events) == [b"last words"]
        assert isinstance(events[-1], WorkerDied)
        failure = events[-1].failure
        assert (failure.rank, failure.kind, failure.signal) == (0, "signal", signal.SIGKILL)

    def test_a_stopped_worker_is_given_up(self, engine: Engine, tmp_path: Path) -> None:
        self._needs_processes()
        if not self.has_heartbeat:
            pytest.skip("this engine has no heartbeat")

        def task(channel: WorkerChannel, argument: bytes) -> None:
            if channel.rank == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            channel.receive()

        group = engine.start_group(placement_in(tmp_path, self.max_workers, heartbeat_timeout_s=2.0))
        try:
            run_task(group, task)
            (event,) = collect(group, lambda events: bool(events), PROMPT_S)
            assert isinstance(event, WorkerDied)
            assert (event.rank, event.failure.kind) == (0, "unresponsive")
        finally:
            group.shutdown()

    def test_a_worker_that_is_killed_while_it_starts_ends_the_start(self, engine: Engine, tmp_path: Path) -> None:
        """The failure says so, and no other worker is left. Workers must pass the fault point of `serve_worker`."""
        self._needs_processes()
        asked = placement_in(tmp_path, self.max_workers, start_timeout_s=PATIENCE_S)
        *others, last = asked.workers
        killed = replace(last, env={FAULT_VARIABLE: "worker_start:SIGKILL"})
        began = time.monotonic()
        with pytest.raises(WorkerError) as caught:
            engine.start_group(replace(asked, workers=(*others, killed)))
        assert time.monotonic() - began < PROMPT_S
        failure = caught.value.failure
        assert failure is not None
        assert (failure.rank, failure.kind, failure.signal) == (last.rank, "signal", signal.SIGKILL)
        engine.start_group(asked).shutdown()

    def test_execute_on_a_worker_that_dies_raises(self, group: WorkerGroup) -> None:
        self._needs_processes()
        with pytest.raises(WorkerDiedError):
            group.execute(os._exit, 1, ranks=[0])
        with pytest.raises(WorkerDiedError):
            group.execute(lambda: 1, ranks=[0])
        group.reply(0, b"to nobody")

    # End

    def test_shutdown_lets_a_finished_worker_end_in_peace(self, group: WorkerGroup, tmp_path: Path) -> None:
        run_task(group, lambda channel, argument: None)
        collect_to_end(group)
        assert group.shutdown(grace=PATIENCE_S) == []
        assert group.shutdown() == []

    def test_shutdown_ends_a_task_that_waits_for_a_message(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(b"waiting")
            channel.receive()

        run_task(group, task)
        collect(group, lambda events: len(events) == self.max_workers)
        assert group.shutdown(grace=PATIENCE_S) == []

    def test_shutdown_stops_a_task_that_never_ends(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(b"busy")
            while True:
                time.sleep(0.001)

        run_task(group, task)
        collect(group, lambda events: len(events) == self.max_workers)
        group.shutdown()

    def test_a_clean_end_does_not_wait_for_children_of_workers(self, group: WorkerGroup) -> None:
        self._needs_processes()

        def task(channel: WorkerChannel, argument: bytes) -> None:
            fork_child()

        run_task(group, task)
        collect_to_end(group)
        began = time.monotonic()
        assert group.shutdown(grace=PATIENCE_S) == []
        assert time.monotonic() - began < PROMPT_S

    @pytest.mark.parametrize("detached", [False, True])
    def test_shutdown_ends_what_workers_have_started(self, engine: Engine, tmp_path: Path, detached: bool) -> None:
        self._needs_processes()
        if detached and not self.ends_detached:
            pytest.skip("this engine does not find processes that have left their worker's session")

        def start_some() -> list[int]:
            command = [sys.executable, "-c", "import signal; signal.pause()"]
            return [fork_child(), subprocess.Popen(command, start_new_session=detached).pid]

        first = engine.start_group(placement_in(tmp_path, self.max_workers))
        try:
            started = first.execute(start_some)
        finally:
            first.shutdown()
        second = engine.start_group(placement_in(tmp_path, self.max_workers))
        try:
            nodes = [place.node for place in second.places]  # A rank may be on another node than before.
            for pids, place in zip(started, first.places, strict=True):
                assert place.node in nodes, "the second group must use the same nodes"
                rank = nodes.index(place.node)
                deadline = time.monotonic() + PROMPT_S
                while left := second.execute_single(rank, running, pids):
                    assert time.monotonic() < deadline, f"process(es) {left} still run on {place.node.hostname}"
        finally:
            second.shutdown()

    def test_a_second_group_starts_after_the_first(self, engine: Engine, tmp_path: Path) -> None:
        for _ in range(3):
            group = engine.start_group(
                placement_in(tmp_path, self.max_workers, env={"PACELINE_TEST_GREETING": "hello"})
            )
            try:
                answers = group.execute(os.getenv, "PACELINE_TEST_GREETING")
                assert answers == ["hello"] * self.max_workers
            finally:
                group.shutdown(grace=PATIENCE_S)

    def test_groups_of_different_threads_do_not_disturb_each_other(self, engine: Engine, tmp_path: Path) -> None:
        self._needs_processes()

        def use_a_group(name: str) -> list[Event]:
            group = engine.start_group(placement_in(tmp_path / name, self.max_workers))
            try:
                run_task(group, lambda channel, argument: channel.send(argument), *[name.encode()] * self.max_workers)
                return collect_to_end(group)
            finally:
                group.shutdown()

        names = ["first", "second", "third"]
        with ThreadPoolExecutor(len(names)) as pool:
            for name, events in zip(names, pool.map(use_a_group, names), strict=True):
                assert [event.body for event in events if isinstance(event, Message)] == [
                    name.encode()
                ] * self.max_workers

    def test_stacks_show_where_a_task_is(self, group: WorkerGroup) -> None:
        def a_place_to_find(channel: WorkerChannel) -> None:
            channel.send(b"here")
            channel.receive()

        def another_place(channel: WorkerChannel) -> None:
            channel.send(b"there")
            channel.receive()

        def task(channel: WorkerChannel, argument: bytes) -> None:
            a_place_to_find(channel)
            another_place(channel)

        run_task(group, task)
        for here, not_here in [("a_place_to_find", "another_place"), ("another_place", "a_place_to_find")]:
            collect(group, lambda events: len(events) == self.max_workers)
            stacks = group.stacks(timeout=PATIENCE_S)
            assert sorted(stacks) == list(range(self.max_workers))
            for rank, text in stacks.items():
                assert here in text
                assert not_here not in text, "the answer to an earlier question"
                group.reply(rank, b"")

    def test_processes_names_every_rank(self, group: WorkerGroup) -> None:
        assert group.processes() == dict(enumerate(group.execute(os.getpid)))
