"""Workers that really die, stop or get lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from paceline.air.errors import WorkerDiedError
from paceline.engine import channel_group
from paceline.engine.base import Event, Message, Task, TaskEnded, WorkerDied, WorkerGroup
from paceline.engine.local.engine import LocalEngine
from paceline.testing.engine_tools import bodies_of, collect, collect_to_end, placement_in, run_task
from paceline.testing.processes import Process, process, wait_for
from tests.engine.local import tasks
from tests.engine.local.conftest import StartGroup


def deaths(events: list[Event]) -> list[WorkerDied]:
    return [event for event in events if isinstance(event, WorkerDied)]


def first_death(group: WorkerGroup) -> tuple[WorkerDied, list[Event]]:
    events = collect(group, lambda events: bool(deaths(events)))
    return deaths(events)[0], events


def all_said(group: WorkerGroup) -> list[Event]:
    return collect(group, lambda events: len({event.rank for event in events}) == group.world_size)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGUSR1])
def test_a_signal_is_decoded_and_last_words_arrive(start_group: StartGroup, number: int) -> None:
    group = start_group()
    run_task(group, tasks.wait_then_signal, *[str(int(number)).encode()] * 2)
    died, events = first_death(group)
    assert (died.rank, died.failure.kind, died.failure.signal) == (1, "signal", number)
    assert signal.Signals(number).name in died.failure.message
    assert died.failure.log_path == group.placement.workers[1].log_path
    assert bodies_of(events, 1) == [b"last words"]


def test_a_crash_brings_its_python_stack(start_group: StartGroup) -> None:
    group = start_group()
    run_task(group, tasks.wait_then_signal, *[str(int(signal.SIGSEGV)).encode()] * 2)
    died, _ = first_death(group)
    assert died.failure.signal == signal.SIGSEGV
    assert "Segmentation fault" in died.failure.traceback
    assert "wait_then_signal" in died.failure.traceback
    assert "Segmentation fault" in Path(died.failure.log_path or "").read_text()


def test_killed_from_outside_while_idle(start_group: StartGroup) -> None:
    group = start_group()
    os.kill(group.processes()[0], signal.SIGKILL)
    died, _ = first_death(group)
    assert (died.rank, died.failure.signal) == (0, signal.SIGKILL)


def family_of(events: list[Event]) -> list[Process]:
    pids = [pid for event in events if isinstance(event, Message) for pid in json.loads(event.body)]
    family = [process(pid) for pid in pids]
    assert None not in family
    return [member for member in family if member is not None]


def start_family(group: WorkerGroup) -> list[Process]:
    """The workers, with children, detached children and daemons."""
    run_task(group, tasks.start_a_family)
    return family_of(all_said(group))


def test_shutdown_ends_everything_that_workers_started(start_group: StartGroup) -> None:
    group = start_group()
    family = start_family(group)
    assert len(family) == 10
    group.shutdown()
    assert [member for member in family if member.alive] == []


def test_children_of_a_killed_worker_are_found(start_group: StartGroup) -> None:
    group = start_group()
    family = start_family(group)
    for pid in group.processes().values():
        os.kill(pid, signal.SIGKILL)
    collect_to_end(group)
    group.shutdown()
    assert [member for member in family if member.alive] == []


def test_one_group_ends_without_touching_another(start_group: StartGroup) -> None:
    first, second = start_group(run_id="the same"), start_group(run_id="the same")
    first_family, second_family = start_family(first), start_family(second)
    first.shutdown()
    assert [member for member in second_family if not member.alive] == []
    assert [member for member in first_family if member.alive] == [], "daemons too, forked or executed"
    second.shutdown()
    assert [member for member in second_family if member.alive] == []


def test_daemons_of_workers_that_ended_go_while_another_group_runs(start_group: StartGroup) -> None:
    first, second = start_group(run_id="the same"), start_group(run_id="the same")
    second_family = start_family(second)
    run_task(first, tasks.start_a_family_and_return)
    daemons = family_of([event for event in collect_to_end(first) if isinstance(event, Message)])
    assert all(daemon.alive for daemon in daemons)
    first.shutdown(grace=30)
    assert [daemon for daemon in daemons if daemon.alive] == []
    assert [member for member in second_family if not member.alive] == []


def engine_with_a_family(folder: Path) -> tuple[LocalEngine, WorkerGroup, list[Process]]:
    """An engine of its own, whose warden can be harmed."""
    engine = LocalEngine()
    group = engine.start_group(placement_in(folder, 2))
    return engine, group, start_family(group)


def test_a_stopped_warden_keeps_nothing_alive(tmp_path: Path) -> None:
    engine, group, family = engine_with_a_family(tmp_path)
    (warden,) = engine.wardens
    os.kill(warden.pid, signal.SIGSTOP)
    assert group.shutdown() == []
    assert [member for member in family if member.alive] == []
    engine.close()


@pytest.mark.parametrize(
    ("task", "stack"), [(tasks.hold_the_interpreter, "hold_the_interpreter"), (tasks.stop_itself, "")]
)
def test_a_worker_without_a_sign_of_life_is_unresponsive(start_group: StartGroup, task: Task, stack: str) -> None:
    group = start_group(heartbeat_timeout_s=1.0)
    run_task(group, task)
    died, _ = first_death(group)
    assert (died.rank, died.failure.kind) == (1, "unresponsive")
    assert stack in died.failure.traceback
    group.reply(0, b"go on")
    collect(group, lambda events: TaskEnded(0) in events)


def test_a_busy_worker_is_not_called_unresponsive(start_group: StartGroup) -> None:
    def compute(channel: tasks.WorkerChannel, argument: bytes) -> None:
        import time

        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            sum(range(1000))

    group = start_group(heartbeat_timeout_s=0.5)
    run_task(group, compute)
    assert deaths(collect_to_end(group)) == []


def waiting_group(start_group: StartGroup) -> WorkerGroup:
    group = start_group(heartbeat_timeout_s=0.5)
    run_task(group, tasks.say_and_wait)
    all_said(group)
    return group


def be_busy(seconds: float) -> None:
    """What a slow callback does to the driver: it does not look."""
    time.sleep(seconds)


def test_a_driver_that_was_busy_blames_nobody(start_group: StartGroup) -> None:
    group = waiting_group(start_group)
    be_busy(0.7)
    assert group.poll(0.2) == []


def test_a_driver_that_was_stopped_with_its_workers_blames_nobody(start_group: StartGroup) -> None:
    group = waiting_group(start_group)
    for pid in group.processes().values():
        os.kill(pid, signal.SIGSTOP)
    be_busy(0.7)  # The driver does not run either.
    assert group.poll(0.0) == [], "it looks before the workers had a chance to speak"
    for pid in group.processes().values():
        os.kill(pid, signal.SIGCONT)
    assert group.poll(0.7) == []


def test_a_slow_driver_notices_a_stopped_worker(start_group: StartGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_group, "STALL_S", 0.1)
    group = waiting_group(start_group)
    os.kill(group.processes()[1], signal.SIGSTOP)
    events: list[Event] = []
    for _ in range(40):
        be_busy(0.12)  # Each time longer than what counts as the driver's own fault.
        events += group.poll(0.0)
        if deaths(events):
            break
    assert [(died.rank, died.failure.kind) for died in deaths(events)] == [(1, "unresponsive")]


def test_silent_workers_are_asked_for_their_stacks_together_and_without_the_lock(
    start_group: StartGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, another_group = start_group(4, heartbeat_timeout_s=0.5), start_group(1)
    run_task(group, tasks.speak_when_asked)
    asked: list[str] = []
    stacks = group.stacks

    def serve_another_group() -> None:
        another_group.poll(0.0)
        asked.append("another thread could serve its group")

    def watched_stacks(timeout: float = 1.0) -> dict[int, str]:
        other = threading.Thread(target=serve_another_group)
        other.start()
        other.join(10)
        assert not other.is_alive(), "the lock is held"
        return stacks(timeout)

    monkeypatch.setattr(group, "stacks", watched_stacks)
    for rank, place in enumerate(group.placement.workers):
        group.reply(rank, b"speak")
        wait_for((Path(place.cwd) / "spoke").exists, "its message")
    for pid in group.processes().values():
        os.kill(pid, signal.SIGSTOP)
    events = collect(group, lambda events: bool(deaths(events)))  # The driver has heard all of them at one moment.
    assert bodies_of(events, 0) == [b"spoke"]
    assert sorted(died.rank for died in deaths(events)) == [0, 1, 2, 3]
    assert len(asked) == 1, "all at once"


def test_large_messages_sent_before_the_death_arrive(start_group: StartGroup) -> None:
    """They take more reads than messages, and all of them wait in the channel when the driver looks."""
    size = 66_000

    def task(channel: tasks.WorkerChannel, argument: bytes) -> None:
        channel.send(b"x" * size)
        channel.send(b"x" * size)
        channel.send(b"last words")
        os.kill(os.getpid(), signal.SIGKILL)

    group = start_group(1)
    (pid,) = group.processes().values()
    run_task(group, task)
    wait_for(lambda: process(pid) is None, "the end of the worker, while the driver does not look")
    events = collect_to_end(group)
    assert [len(body) for body in bodies_of(events)] == [size, size, len(b"last words")]


def test_a_death_elsewhere_is_the_cause_of_a_call_that_fails(start_group: StartGroup) -> None:
    """Its peer's exception is there first; the death is what matters."""
    group = start_group(2)

    def fail_because_of_the_peer() -> None:
        raise ConnectionError("peer closed")

    os.kill(group.processes()[1], signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"rank 1 .*fail_because_of_the_peer") as caught:
        group.execute(fail_because_of_the_peer, ranks=[0])
    assert caught.value.failure is not None
    assert caught.value.failure.signal == signal.SIGKILL


def test_a_worker_that_closes_its_channel_is_lost(start_group: StartGroup) -> None:
    group = start_group(heartbeat_timeout_s=1.0)
    run_task(group, tasks.close_the_channel)
    died, _ = first_death(group)
    assert died.failure.kind == "engine"
    assert "connection" in died.failure.message


def test_garbage_from_a_worker_ends_only_that_worker(start_group: StartGroup) -> None:
    group = start_group()
    run_task(group, tasks.send_garbage)
    events = collect(group, lambda events: len(deaths(events)) == 2)
    assert bodies_of(events, 0) == [b"good"]
    assert {died.failure.kind for died in deaths(events)} == {"engine"}


def test_losing_the_warden_is_an_engine_failure_and_leaves_nothing(tmp_path: Path) -> None:
    engine, group, family = engine_with_a_family(tmp_path)
    (warden,) = engine.wardens
    os.kill(warden.pid, signal.SIGKILL)
    events = collect(group, lambda events: len(deaths(events)) == 2)
    assert {died.failure.kind for died in deaths(events)} == {"engine"}
    group.shutdown()
    assert [member for member in family if member.alive] == []
    again = engine.start_group(placement_in(tmp_path, 2))
    assert again.execute(lambda: "back") == ["back", "back"]
    engine.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_warden_leaves_its_workers_alone(tmp_path: Path, number: signal.Signals) -> None:
    """A batch system sends it to every process of a job: the workers still have to save."""
    engine, group, family = engine_with_a_family(tmp_path)
    (warden,) = engine.wardens
    os.kill(warden.pid, number)
    again = engine.start_group(placement_in(tmp_path / "again", 1))  # by the same warden, after the signal
    assert again.execute(lambda: "still here") == ["still here"]
    assert all(member.alive for member in family)
    group.shutdown()
    assert not any(member.alive for member in family)
    engine.close()


def test_stacks_asked_for_earlier_are_not_taken_for_last_words(start_group: StartGroup) -> None:
    group = start_group()
    run_task(group, tasks.say_and_wait)
    all_said(group)
    assert "say_and_wait" in group.stacks(timeout=30)[1]
    os.kill(group.processes()[1], signal.SIGKILL)
    died, _ = first_death(group)
    assert died.failure.traceback == ""
