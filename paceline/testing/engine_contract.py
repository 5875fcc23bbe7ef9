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
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.air.attachment import Attachment
from paceline.air.errors import RemoteError, SerializationError, WorkerError
from paceline.air.resources import usable_cores
from paceline.engine.base import (
    Engine,
    Message,
    TaskEnded,
    WorkerChannel,
    WorkerGroup,
)
from paceline.engine.places import FAIR_SHARE, THREADS_VARIABLES, WorkerPlace
from paceline.engine.serialization import pickled
from paceline.testing.engine_endings import EndingsContract
from paceline.testing.engine_tools import (
    PATIENCE_S,
    SECOND_NS,
    bodies_of,
    collect,
    collect_to_end,
    failure_of,
    files_in_memory,
    placement_in,
    run_task,
)


class EngineContract(EndingsContract):
    """Subclasses supply the `engine` fixture."""

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
            failure = failure_of(collect(group, lambda events: bool(events)))
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


def _node_facts() -> tuple[str, int]:
    return socket.gethostname(), usable_cores()
