"""What every engine must do, as one test class.

An engine's test module subclasses EngineContract and supplies the `engine` fixture::

    class TestMyEngine(EngineContract):
        max_workers = 4

        @pytest.fixture
        def engine(self):
            engine = MyEngine()
            yield engine
            engine.close()
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.air.attachment import Attachment
from paceline.air.errors import RemoteError, SerializationError, WorkerDiedError, WorkerError
from paceline.air.faults import FAULT_VARIABLE
from paceline.air.resources import usable_cores
from paceline.engine.base import (
    Engine,
    Event,
    Message,
    Placement,
    TaskEnded,
    TaskFailed,
    WorkerChannel,
    WorkerDied,
    WorkerGroup,
    WorkerRequest,
)
from paceline.engine.places import FAIR_SHARE, THREADS_VARIABLES, WorkerPlace
from paceline.engine.serialization import dumps, pickled

PATIENCE_S = 60.0
"""A guard against hanging; nothing here is expected to take long."""
PROMPT_S = 20.0
"""Far more than anything needs that does not wait for the end of a time-out."""
SECOND_NS = 1_000_000_000


def placement_in(folder: Path, workers: int, **settings: Any) -> Placement:
    """A placement whose workers live below `folder`."""
    env = settings.pop("env", {})
    places = tuple(
        WorkerRequest(rank, str(folder / f"rank_{rank}"), str(folder / "logs" / f"rank_{rank}.log"), env)
        for rank in range(workers)
    )
    return Placement(run_id=settings.pop("run_id", f"test-{folder.name}"), workers=places, **settings)


def run_task(group: WorkerGroup, task: Callable[[WorkerChannel, bytes], None], *arguments: bytes) -> None:
    """Start the same task on every rank."""
    group.start(dumps(task, "task"), list(arguments) or [b""] * group.world_size)


def collect(group: WorkerGroup, until: Callable[[list[Event]], bool], patience_s: float = PATIENCE_S) -> list[Event]:
    """Poll until the events seen so far satisfy the condition."""
    events: list[Event] = []
    deadline = time.monotonic() + patience_s
    while not until(events):
        assert time.monotonic() < deadline, f"waited too long; saw {[type(event).__name__ for event in events]}"
        events.extend(group.poll(1.0))
    return events


def collect_to_end(group: WorkerGroup) -> list[Event]:
    """Everything up to the end of the task on every rank, however it ended."""

    def over(events: list[Event]) -> bool:
        return len({event.rank for event in events if not isinstance(event, Message)}) == group.world_size

    return collect(group, over)


def bodies_of(events: list[Event], rank: int = 0) -> list[bytes]:
    return [event.body for event in events if isinstance(event, Message) and event.rank == rank]


def files_in_memory() -> int:
    """How many attachments this process holds, or has mapped, as far as the system tells."""
    maps = Path("/proc/self/maps")
    mapped = maps.read_text().count("paceline-attachment") if maps.exists() else 0
    descriptors = Path("/proc/self/fd")
    targets = [_target(entry) for entry in descriptors.iterdir()] if descriptors.exists() else []
    return mapped + sum("paceline-attachment" in target for target in targets)


def fork_child() -> int:
    """A child of this worker that holds all it has open, and never ends by itself."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


def running(pids: list[int]) -> list[int]:
    """Those of the processes that run here; one that has ended may not have been waited for."""
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not _is_dead(pid)]


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def _target(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # The one that listed the directory.
        return ""


class EngineContract:
    """Subclasses supply the `engine` fixture."""

    max_workers = 1
    isolated = True
    """False if a worker shares the driver's process: then it cannot die alone."""
    has_heartbeat = True
    """False if a worker that is stopped, or hangs in C code, is waited for without a limit."""
    ends_detached = True
    """False if processes that a worker has started in a session of their own outlive the group."""

    @pytest.fixture
    def group(self, engine: Engine, tmp_path: Path) -> Iterator[WorkerGroup]:
        group = engine.start_group(placement_in(tmp_path, self.max_workers))
        yield group
        group.shutdown()

    def test_resources_name_cpus_and_gpus(self, engine: Engine) -> None:
        resources = engine.resources()
        assert resources["CPU"] > 0
        assert resources["GPU"] >= 0

    def test_capabilities_are_what_they_say(self, engine: Engine, group: WorkerGroup, tmp_path: Path) -> None:
        (tmp_path / "note").write_text("from the driver")
        path = str(tmp_path / "note")
        seen = group.execute(lambda: os.path.exists(path))
        assert seen == [engine.capabilities.shares_filesystem] * self.max_workers
        in_driver = [pid == os.getpid() for pid in group.execute(os.getpid)]
        assert all(in_driver) == engine.capabilities.in_driver_process == (not self.isolated)

    # Places

    def test_the_group_says_where_each_rank_is(self, group: WorkerGroup) -> None:
        """Ranks of one node are counted there; nodes are numbered as they come."""
        assert [place.rank for place in group.places] == list(range(self.max_workers))
        by_node: dict[int, list[WorkerPlace]] = {}
        for place in group.places:
            by_node.setdefault(place.node_rank, []).append(place)
        assert list(by_node) == list(range(len(by_node)))
        for places in by_node.values():
            assert len({place.node for place in places}) == 1
            assert [place.local_rank for place in places] == list(range(len(places)))
            assert {place.local_world_size for place in places} == {len(places)}
        assert len({place.node.node_id for place in group.places}) == len(by_node)
        for place, (hostname, cores) in zip(group.places, group.execute(_node_facts), strict=True):
            assert (place.node.hostname, place.node.cores) == (hostname, cores)

    def test_workers_reach_each_other_at_their_addresses(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            with socket.create_server((argument.decode(), 0)) as server:
                channel.send(str(server.getsockname()[1]).encode())
                where = channel.receive()
                assert where is not None
                host, port = where.decode().split()
                with socket.create_connection((host, int(port)), PATIENCE_S):
                    server.accept()[0].close()

        addresses = [place.node.address for place in group.places]
        run_task(group, task, *[address.encode() for address in addresses])
        events = collect(group, lambda events: len(events) >= self.max_workers)
        ports = {event.rank: event.body.decode() for event in events if isinstance(event, Message)}
        for rank in range(self.max_workers):
            neighbour = (rank + 1) % self.max_workers
            group.reply(rank, f"{addresses[neighbour]} {ports[neighbour]}".encode())
        assert {type(event) for event in collect_to_end(group)} == {TaskEnded}

    def test_variables_that_give_way_to_the_environment(self, engine: Engine, tmp_path: Path) -> None:
        names = ["PATH", "PACELINE_TEST_GREETING", "PACELINE_TEST_DEFAULT"]
        asked = placement_in(tmp_path, self.max_workers, env={"PACELINE_TEST_GREETING": "hello"})
        defaults = {"PATH": "no", "PACELINE_TEST_GREETING": "no", "PACELINE_TEST_DEFAULT": "yes"}
        workers = tuple(replace(request, defaults=defaults) for request in asked.workers)
        group = engine.start_group(replace(asked, workers=workers))
        try:
            for path, greeting, default in group.execute(lambda: [os.environ[name] for name in names]):
                assert (path != "no", greeting, default) == (True, "hello", "yes")
        finally:
            group.shutdown()

    def test_workers_use_the_threads_of_their_places(self, engine: Engine, tmp_path: Path) -> None:
        for threads in (3, FAIR_SHARE):
            group = engine.start_group(placement_in(tmp_path, self.max_workers, threads=threads))
            try:
                wanted = [place.threads for place in group.places]
                assert all(number and (not threads or number == threads) for number in wanted)
                if self.isolated:  # One that shares the driver's process has the driver's threads.
                    assert group.execute(os.getenv, THREADS_VARIABLES[0]) == [str(number) for number in wanted]
            finally:
                group.shutdown()

    # Clocks and output

    def test_failures_are_stamped_by_the_clock_of_the_driver(self, group: WorkerGroup) -> None:
        """Also where the clocks of workers are off: which of them failed first is told by these times."""

        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.receive()
            raise RuntimeError("now")

        run_task(group, task)
        times = []
        for rank in reversed(range(self.max_workers)):
            before = time.monotonic_ns()
            group.reply(rank, b"")
            failure = _failure_of(collect(group, lambda events: bool(events)))
            assert failure.rank == rank
            assert before - SECOND_NS < failure.time_ns < time.monotonic_ns() + SECOND_NS
            times.append(failure.time_ns)
        assert times == sorted(times)

    def test_the_wall_clock_of_each_worker_is_known(self, group: WorkerGroup) -> None:
        before = time.time()
        shown = group.execute(time.time)
        after = time.time()
        for rank, seconds in enumerate(shown):
            assert before - 1 < seconds + group.wall_offset(rank) < after + 1

    def test_output_is_in_the_log_that_was_asked_for(self, group: WorkerGroup) -> None:
        self._needs_processes()

        def task(channel: WorkerChannel, argument: bytes) -> None:
            print("before")
            channel.receive()
            os.write(2, b"after\n")

        run_task(group, task)
        for request in group.placement.workers:
            log = Path(request.log_path)
            deadline = time.monotonic() + PATIENCE_S
            while not log.exists() or log.read_text() != "before\n":
                assert time.monotonic() < deadline, "the output did not come"
                assert group.poll(0.01) == []
            os.truncate(log, 0)  # As the driver does with one that is too long.
        for rank in range(self.max_workers):
            group.reply(rank, b"")
        collect_to_end(group)
        group.shutdown(grace=PATIENCE_S)
        assert {Path(request.log_path).read_text() for request in group.placement.workers} == {"after\n"}

    # Calls

    def test_execute_returns_plain_values_in_rank_order(self, group: WorkerGroup) -> None:
        def facts(number: int) -> dict[str, Any]:
            return {"number": number, "pair": (1, 2), "directory": os.getcwd(), "nothing": None}

        answers = group.execute(facts, 7)
        assert [answer["number"] for answer in answers] == [7] * self.max_workers
        assert [answer["pair"] for answer in answers] == [[1, 2]] * self.max_workers
        assert [Path(answer["directory"]).name for answer in answers] == [f"rank_{r}" for r in range(self.max_workers)]

    def test_execute_on_some_ranks_only(self, group: WorkerGroup) -> None:
        last = self.max_workers - 1
        assert group.execute(lambda: "here", ranks=[last]) == ["here"]
        assert group.execute_single(last, max, 3, 4) == 4

    def test_execute_raises_what_the_function_raised(self, group: WorkerGroup) -> None:
        def fail() -> None:
            raise LookupError("no such thing")

        with pytest.raises(RemoteError, match="no such thing") as caught:
            group.execute(fail)
        failure = caught.value.failure
        assert failure is not None
        assert failure.exception_type == "builtins.LookupError"
        assert "in fail" in failure.traceback
        assert group.execute(lambda: 1) == [1] * self.max_workers

    def test_execute_refuses_a_result_that_is_not_plain(self, group: WorkerGroup) -> None:
        with pytest.raises(WorkerError, match="object"):
            group.execute(object)

    def test_execute_refuses_what_cannot_be_pickled_before_sending_it(self, group: WorkerGroup) -> None:
        lines = (line for line in "abc")
        with pytest.raises(SerializationError, match="lines"):
            group.execute(lambda: next(lines))
        assert group.execute(lambda: 1) == [1] * self.max_workers

    def test_execute_that_takes_too_long_says_so(self, group: WorkerGroup) -> None:
        with pytest.raises(WorkerError, match="did not return within"):
            group.execute(time.sleep, 1.0, ranks=[0], timeout=0.05)
        assert group.execute(lambda: "next") == ["next"] * self.max_workers

    # Tasks and messages

    def test_a_task_gets_its_argument_and_ends(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(argument + f" of {channel.rank}/{channel.world_size}".encode())

        run_task(group, task, *[f"argument {rank}".encode() for rank in range(self.max_workers)])
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            assert bodies_of(events, rank) == [f"argument {rank} of {rank}/{self.max_workers}".encode()]
            assert TaskEnded(rank) in events

    def test_messages_keep_their_order_and_come_before_the_end(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            for number in range(5000):
                channel.send(number.to_bytes(4, "little") + b"x" * (number % 300))

        run_task(group, task)
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            own = [event for event in events if event.rank == rank]
            assert isinstance(own[-1], TaskEnded)
            assert [int.from_bytes(body[:4], "little") for body in bodies_of(own, rank)] == list(range(5000))

    def test_a_reply_reaches_the_task(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            while (answer := channel.receive()) != b"stop":
                assert answer is not None
                channel.send(answer.upper())

        run_task(group, task)
        for rank in range(self.max_workers):
            for word in (b"one", b"two", b"stop"):
                group.reply(rank, word)
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            assert bodies_of(events, rank) == [b"ONE", b"TWO"]

    def test_receive_returns_none_when_its_time_is_up(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(repr([channel.receive(timeout=0), channel.receive(timeout=0.01)]).encode())

        run_task(group, task)
        assert bodies_of(collect_to_end(group)) == [b"[None, None]"]

    def test_a_large_payload_travels_both_ways(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(argument[::-1])
            answer = channel.receive()
            assert answer is not None
            channel.send(len(answer).to_bytes(8, "little"))

        argument = b"ab" * (25 * 1024 * 1024)
        run_task(group, task, *[argument] * self.max_workers)
        events = collect(group, lambda events: len(bodies_of(events)) == 1)
        assert bodies_of(events)[0] == argument[::-1]
        for rank in range(self.max_workers):
            group.reply(rank, argument)
        assert bodies_of(collect_to_end(group))[-1] == len(argument).to_bytes(8, "little")

    @pytest.mark.parametrize("size", [0, 1, 70_000, 20_000_000])
    def test_attachments_of_any_size_travel_both_ways(self, group: WorkerGroup, size: int) -> None:
        content = (b"0123456789abcdef" * (size // 16 + 1))[:size]

        def task(channel: WorkerChannel, argument: bytes) -> None:
            message = channel.receive()
            first, second = channel.take_attachments()
            assert not channel.take_attachments(), "they are taken once"
            assert (message, bytes(second.view())) == (b"two for you", b"small")
            written = Attachment.written("paceline-test-reversed", lambda file: file.write(bytes(first.view())[::-1]))
            channel.send(b"and back", [written, Attachment(b"%d" % first.size)])

        run_task(group, task)
        for rank in range(self.max_workers):
            group.reply(rank, b"two for you", [Attachment(content), Attachment(b"small")])
        messages = [event for event in collect_to_end(group) if isinstance(event, Message)]
        assert [message.body for message in messages] == [b"and back"] * self.max_workers
        for message in messages:
            first, second = message.attachments
            assert first.size == size
            assert bytes(first.view()) == content[::-1]
            assert bytes(second.view()) == b"%d" % size

    def test_many_attachments_stay_with_their_messages_and_in_order(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            while (body := channel.receive()) != b"stop":
                assert body is not None
                found = [bytes(attachment.view()) for attachment in channel.take_attachments()]
                assert found == [b"%s, number %d" % (body, number) for number in range(int(body))]
                channel.send(body, [Attachment(content.upper()) for content in found])

        counts = [b"3", b"0", b"40", b"1", b"0"]
        run_task(group, task)
        for rank in range(self.max_workers):
            for count in counts:
                contents = [b"%s, number %d" % (count, number) for number in range(int(count))]
                group.reply(rank, count, [Attachment(content) for content in contents])
            group.reply(rank, b"stop")
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            found = [event for event in events if isinstance(event, Message) and event.rank == rank]
            assert [message.body for message in found] == counts
            for message in found:
                wanted = [b"%s, NUMBER %d" % (message.body, number) for number in range(int(message.body))]
                assert [bytes(attachment.view()) for attachment in message.attachments] == wanted

    def test_a_task_gets_the_attachments_that_it_refers_to(self, group: WorkerGroup) -> None:
        held = {"rows": Attachment(b"many rows"), "more": Attachment(b"x" * 1_000_000)}

        def task(channel: WorkerChannel, argument: bytes) -> None:
            channel.send(bytes(held["rows"].view()) + b" and %d" % held["more"].size)

        packed = pickled(task, "task")
        assert len(packed.content) < 100_000, "they are not part of the pickle"
        group.start(packed.content, [b""] * self.max_workers, packed.attachments)
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            assert bodies_of(events, rank) == [b"many rows and 1000000"]

    def test_attachments_are_given_back_when_nobody_needs_them(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            while (body := channel.receive()) != b"stop":
                if body == b"take":
                    (received,) = channel.take_attachments()
                    view = received.view()
                    received.close()
                    channel.send(bytes(view[:5]), [Attachment(bytes(view))])
                    del received, view
                # Those of any other message nobody takes.
            channel.send(b"%d" % files_in_memory())

        before = files_in_memory()
        run_task(group, task)
        for rank in range(self.max_workers):
            for word in (b"take", b"leave", b"take", b"stop"):
                group.reply(rank, word, [Attachment(b"hello" * 20_000)] if word != b"stop" else ())
        events = collect_to_end(group)
        for rank in range(self.max_workers):
            *echoes, count = bodies_of(events, rank)
            assert echoes == [b"hello", b"hello"]
            assert int(count) == 0 or not self.isolated
        del events
        assert group.poll(0) == []
        assert files_in_memory() == before

    def test_calls_work_again_after_the_task(self, group: WorkerGroup) -> None:
        run_task(group, lambda channel, argument: None)
        collect_to_end(group)
        assert group.execute(lambda: "after") == ["after"] * self.max_workers

    def test_wait_names_the_groups_that_have_events(self, engine: Engine, group: WorkerGroup) -> None:
        assert engine.wait([group], 0) == []
        run_task(group, lambda channel, argument: channel.send(b"x"))
        assert engine.wait([group], PATIENCE_S) == [group]
        assert collect_to_end(group)

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
        failure = _failure_of(collect_to_end(group))
        assert failure.exception_type is not None
        assert failure.exception_type.endswith("UnspeakableError")
        assert "in task" in failure.traceback

    def test_an_exception_that_holds_much_data_stays_small(self, group: WorkerGroup) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            raise ValueError(b"x" * 200_000_000)

        run_task(group, task)
        failure = _failure_of(collect_to_end(group))
        assert failure.exception_type == "builtins.ValueError"
        assert failure.arguments is None
        assert len(failure.message) + len(failure.traceback) < 1_000_000

    @pytest.mark.parametrize(("code", "kind"), [(3, "exit"), (0, "premature_exit"), (None, "premature_exit")])
    def test_sys_exit_in_a_task_is_a_failure(self, group: WorkerGroup, code: int | None, kind: str) -> None:
        def task(channel: WorkerChannel, argument: bytes) -> None:
            raise SystemExit(code)

        run_task(group, task)
        failure = _failure_of(collect_to_end(group))
        assert (failure.kind, failure.exit_code) == (kind, code or 0)

    def test_a_task_that_cannot_be_loaded_is_a_failed_start(self, group: WorkerGroup) -> None:
        group.start(b"cno_such_module_at_all\nfunction\n.", [b""] * self.max_workers)
        failure = _failure_of(collect_to_end(group))
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
            assert [place.node for place in second.places] == [place.node for place in first.places]
            for rank, pids in enumerate(started):
                deadline = time.monotonic() + PROMPT_S
                while left := second.execute_single(rank, running, pids):
                    assert time.monotonic() < deadline, f"process(es) {left} of rank {rank} still run"
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

    def _needs_processes(self) -> None:
        if not self.isolated:
            pytest.skip("the worker shares the driver's process")


def _node_facts() -> tuple[str, int]:
    return socket.gethostname(), usable_cores()


def _failure_of(events: list[Event]) -> Any:
    return next(event.failure for event in events if isinstance(event, TaskFailed))
