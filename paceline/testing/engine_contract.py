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
from paceline.testing.engine_endings import EndingsContract
from paceline.testing.engine_messages import MessagesContract
from paceline.testing.engine_tools import (
    PATIENCE_S,
    SECOND_NS,
    collect,
    collect_to_end,
    failure_of,
    placement_in,
    run_task,
)
from paceline.testing.engine_usage import UsageContract


class EngineContract(MessagesContract, EndingsContract, UsageContract):
    """Subclasses supply the `engine` fixture."""

    def test_resources_name_cpus_and_gpus(self, engine: Engine) -> None:
        resources = engine.resources()
        assert resources["CPU"] > 0
        assert resources["GPU"] >= 0

    def test_capabilities_are_what_they_say(self, engine: Engine, group: WorkerGroup, tmp_path: Path) -> None:
        (tmp_path / "note").write_text("from the driver")
        path = str(tmp_path / "note")
        seen = group.execute(lambda: os.path.exists(path))
        assert all(seen) == group.shares_directory, "a worker beside the driver sees its files in any case"
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
