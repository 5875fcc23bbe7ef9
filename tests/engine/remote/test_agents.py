"""What becomes of workers whose agent is killed, stopped or cut off; what they write; what is told of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.air.errors import EngineError, StartupTimeoutError
from paceline.engine import protocol
from paceline.engine.base import Message, TaskEnded, WorkerChannel, WorkerDied
from paceline.engine.remote import messages
from paceline.engine.remote.group import RemoteGroup
from paceline.testing.engine_tools import collect, collect_to_end, placement_in, run_task
from paceline.testing.processes import Process, process, wait_for
from tests.engine.local import tasks
from tests.engine.remote.conftest import StartGroup
from tests.engine.remote.engine import AgentsEngine
from tests.engine.remote.proxy import Network

HEARTBEAT_S = 2.0
IMPATIENT_AGENT = """
from paceline.engine.local import wardens
from paceline.engine.remote import agent
wardens.WARM_S = wardens.SURPLUS_S = 0.2
agent.main()
"""


def families(group: RemoteGroup) -> dict[int, list[Process]]:
    """Start workers with children, detached children and daemons; all processes by rank."""
    run_task(group, tasks.start_a_family)
    found = {}
    for event in collect(group, lambda events: len(events) == group.world_size):
        assert isinstance(event, Message)
        members = [process(pid) for pid in json.loads(event.body)]
        found[event.rank] = [member for member in members if member is not None]
    return found


def wait_until_gone(*members: Process | None) -> None:
    wait_for(lambda: not any(member is not None and member.alive for member in members), "the end of every process")


def death_of(group: RemoteGroup) -> WorkerDied:
    (event,) = collect(group, bool)
    assert isinstance(event, WorkerDied)
    return event


def test_an_agent_that_is_killed_takes_its_workers_along(engine: AgentsEngine, start_group: StartGroup) -> None:
    group = start_group()
    family = families(group)
    os.kill(engine.nodes[1].agent, signal.SIGKILL)
    failure = death_of(group).failure
    assert (failure.rank, failure.kind) == (1, "engine")
    assert failure.message == "the agent of n2 (127.0.0.1) is gone"
    wait_until_gone(*family[1])
    assert all(member.alive for member in family[0])
    group.shutdown()
    wait_until_gone(*family[0])
    again = start_group()  # By a new agent on that node.
    assert again.execute(os.getpid) == [again.processes()[rank] for rank in (0, 1)]


def test_an_agent_that_stands_still_is_given_up(engine: AgentsEngine, start_group: StartGroup) -> None:
    """Its workers end when the driver hangs up, and it ends itself when it wakes up."""
    group = start_group(heartbeat_timeout_s=HEARTBEAT_S)
    family, agent = families(group), engine.nodes[1].agent
    found = process(agent)
    os.kill(agent, signal.SIGSTOP)
    stopped_at = time.monotonic()
    try:
        failure = death_of(group).failure
        assert (failure.rank, failure.kind) == (1, "node_lost")
        assert failure.message == "n2 (127.0.0.1) has given no sign of life for 2 s"
        assert time.monotonic() - stopped_at < HEARTBEAT_S + 1
        group.shutdown()
        wait_until_gone(*family[0], family[1][0])
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until_gone(*family[1], found)


def test_an_agent_that_fails_says_why(engine: AgentsEngine, start_group: StartGroup) -> None:
    group = start_group()
    run_task(group, hold_a_name)
    frames = engine.nodes[1].agent_line._frames
    assert frames is not None
    frames.post(messages.CONTROL, b"\xc1")  # What no driver sends.
    events = collect(group, lambda events: any(isinstance(event, WorkerDied) for event in events))
    failures = [event.failure for event in events if isinstance(event, WorkerDied)]
    assert [(failure.rank, failure.kind) for failure in failures] == [(1, "engine")]
    assert failures[0].message.startswith("the agent of n2 (127.0.0.1) ended with an error: ")
    assert "DecodeError" in failures[0].message


def test_a_driver_that_did_not_listen_for_long_blames_no_agent_when_it_ends_a_group(
    engine: AgentsEngine, start_group: StartGroup
) -> None:
    """It was busy with something else, while another thread told the agents that it is alive."""
    group = start_group(heartbeat_timeout_s=1.0)
    other = start_group(heartbeat_timeout_s=None)
    busy_until = time.monotonic() + 3.0
    while time.monotonic() < busy_until:
        for node in engine.nodes:
            node.agent_line.ping(time.monotonic())
        time.sleep(0.1)
    group.shutdown()
    assert [node.agent_line.lost for node in engine.nodes] == ["", ""]
    assert other.execute(os.getpid) == [other.processes()[rank] for rank in (0, 1)]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[AgentsEngine, Network]]:
    """An engine whose second node is behind a network of its own."""
    engine = AgentsEngine()
    network = Network(engine.listener.address)
    engine.nodes[1].dials = network.address
    yield engine, network
    network.close()
    engine.close()


def test_a_node_that_is_cut_off_ends_its_workers_and_can_be_used_again(
    network: tuple[AgentsEngine, Network], tmp_path: Path
) -> None:
    engine, net = network
    group = engine.start_group(placement_in(tmp_path, 2, heartbeat_timeout_s=HEARTBEAT_S))
    family, agent = families(group), process(engine.nodes[1].agent)
    net.cut()
    cut_at = time.monotonic()
    failure = death_of(group).failure
    noticed_s = time.monotonic() - cut_at
    assert failure.message == "n2 (127.0.0.1) has given no sign of life for 2 s"
    wait_until_gone(*family[1], agent)
    ended_s = time.monotonic() - cut_at
    group.shutdown()
    assert noticed_s < 2 * HEARTBEAT_S  # A busy machine may keep the driver from looking for a moment.
    assert ended_s < 4 * HEARTBEAT_S
    engine.nodes[1].dials = None
    again = engine.start_group(placement_in(tmp_path / "again", 2))
    assert len(again.execute(os.getpid)) == 2
    again.shutdown()


def test_a_new_agent_ends_the_one_before_it(network: tuple[AgentsEngine, Network], tmp_path: Path) -> None:
    """One that does not know yet that it was given up; nothing of it is left when the new one begins."""
    engine, net = network
    group = engine.start_group(placement_in(tmp_path, 2))
    family, agent = families(group), process(engine.nodes[1].agent)
    net.cut()
    engine.nodes[1].agent_line.lose("the test says so")
    group.shutdown()
    assert all(member.alive for member in family[1])
    engine.nodes[1].dials = None
    engine.prepare()
    assert not any(member.alive for member in family[1])
    wait_until_gone(agent)


# Output


def print_much(channel: WorkerChannel, argument: bytes) -> None:
    """Says when it begins; the agent must not take what the driver does not."""
    channel.send(b"printing")
    line = b"x" * 1023 + b"\n"
    for _ in range(int(argument)):
        os.write(1, line)


def memory_of(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_output_waits_for_a_driver_that_is_slow(engine: AgentsEngine, start_group: StartGroup) -> None:
    """The agent's memory does not grow meanwhile, and nothing is lost."""
    lines = 100 * 1024
    group = start_group(2)
    run_task(group, print_much, str(lines).encode(), str(lines).encode())
    collect(group, lambda events: len(events) == 2)
    workers = [found for pid in group.processes().values() if (found := process(pid))]
    agents = [node.agent for node in engine.nodes]
    before = [memory_of(agent) for agent in agents]

    readings: list[list[str]] = []

    def wait_in_pipes() -> bool:
        """All workers are in the middle of a write, and have been for many readings of how much they wrote."""
        readings.append([Path(f"/proc/{worker.pid}/io").read_text() for worker in workers])
        in_pipe = ["pipe" in Path(f"/proc/{worker.pid}/wchan").read_text() for worker in workers]
        return all(in_pipe) and len(readings) >= 50 and all(reading == readings[-1] for reading in readings[-50:])

    wait_for(wait_in_pipes, "workers that wait with their output")
    assert max(memory_of(agent) - size for agent, size in zip(agents, before, strict=True)) < 20 * 2**20
    assert {type(event) for event in collect_to_end(group)} == {TaskEnded}
    group.shutdown(grace=30.0)
    for request in group.placement.workers:
        assert os.path.getsize(request.log_path) == lines * 1024


def leave_a_chatterbox(channel: WorkerChannel, argument: bytes) -> None:
    subprocess.Popen(["yes"], start_new_session=True)
    os._exit(3)


def test_a_child_that_never_stops_writing_does_not_hide_the_end_of_its_worker(start_group: StartGroup) -> None:
    group = start_group(1)
    run_task(group, leave_a_chatterbox)
    assert "exit" in death_of(group).failure.message
    started = time.monotonic()
    group.shutdown()
    assert time.monotonic() - started < 5


# Starts


def test_a_group_that_is_ended_while_modules_are_imported_goes_at_once(start_group: StartGroup) -> None:
    started = time.monotonic()
    with pytest.raises(StartupTimeoutError) as raised:
        start_group(preload=("tests.engine.remote.endless_preload",), start_timeout_s=3.0)
    assert time.monotonic() - started < 12
    assert "rank(s) 0 on n1 (127.0.0.1), 1 on n2 (127.0.0.1) of 2 did not get ready within 3 s" in str(raised.value)
    assert "endless_preload.py" in str(raised.value)


def test_a_start_has_only_the_time_that_is_left(start_group: StartGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever places the workers may have used some of it."""
    launch = RemoteGroup.launch
    monkeypatch.setattr(RemoteGroup, "launch", lambda group: launch(group, time.monotonic() + 2.0))
    started = time.monotonic()
    with pytest.raises(StartupTimeoutError):
        start_group(preload=("tests.engine.remote.endless_preload",), start_timeout_s=60.0)
    assert time.monotonic() - started < 20


class HastyEngine(AgentsEngine):
    agent_arguments = ("-c", "from paceline.engine.remote import agent; agent.FIRST_DIAL_S = 0.2; agent.main()")


def test_a_start_survives_a_driver_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than workers wait for an answer when they dial: they dial again."""
    wait_until_ready = RemoteGroup._wait_until_ready

    def wait_later(group: RemoteGroup, deadline: float) -> None:
        time.sleep(2.0)  # As by Ctrl-Z.
        wait_until_ready(group, deadline)

    monkeypatch.setattr(RemoteGroup, "_wait_until_ready", wait_later)
    engine = HastyEngine()
    try:
        group = engine.start_group(placement_in(tmp_path, 2))
        assert group.execute(os.getpid) == [group.processes()[rank] for rank in (0, 1)]
    finally:
        engine.close()


def test_a_module_that_cannot_be_imported_is_named(start_group: StartGroup) -> None:
    with pytest.raises(EngineError, match=r"importing tests\.engine\.local\.broken_preload for the workers failed"):
        start_group(preload=("tests.engine.local.broken_preload",))


def test_a_worker_that_cannot_start_says_why_itself(start_group: StartGroup, tmp_path: Path) -> None:
    """Not only how it exited, also if others are not there yet."""
    (tmp_path / "group_0").mkdir()
    (tmp_path / "group_0" / "rank_1").write_text("in the way of its directory")
    with pytest.raises(EngineError, match=r"rank 1 on n2 .* NotADirectoryError"):
        start_group()


# Facts


def hold_a_name(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(b"")
    channel.receive()


def test_stacks_of_all_ranks_come_at_once(start_group: StartGroup) -> None:
    group = start_group(4)
    run_task(group, hold_a_name)
    collect(group, lambda events: len(events) == 4)
    for _ in range(2):
        stacks = group.stacks(10.0)
        assert sorted(stacks) == [0, 1, 2, 3]
        assert all("in hold_a_name" in text for text in stacks.values())


def test_a_rank_that_is_stopped_costs_only_its_own_stack(start_group: StartGroup) -> None:
    """Not those of the others on its node; and an answer that is late is not taken for that to the next question."""
    group = start_group(4, heartbeat_timeout_s=None)
    run_task(group, hold_a_name)
    collect(group, lambda events: len(events) == 4)
    stopped = group.processes()[3]
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert [sorted(group.stacks(timeout)) for timeout in (2.0, 2.0)] == [[0, 1, 2]] * 2
        group.stacks(0.0)
        os.kill(stopped, signal.SIGCONT)
        assert sorted(group.stacks(10.0)) == [0, 1, 2, 3]
    finally:
        os.kill(stopped, signal.SIGCONT)


def start_a_child(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(str(subprocess.Popen(["sleep", "1000"]).pid).encode())
    channel.receive()


def test_processes_show_whose_they_are(engine: AgentsEngine, start_group: StartGroup) -> None:
    """Their run, and the agent that they belong to: so nobody needs to guess, and nobody ends another's."""
    run_id = "0123456789abcdef" * 2
    group = start_group(1, run_id=run_id)
    (agent,) = [node.agent for node in engine.nodes if node.name == group.places[0].node.node_id]
    run_task(group, start_a_child)
    (said,) = collect(group, bool)
    assert isinstance(said, Message)
    for pid in (group.processes()[0], int(said.body)):
        shown = wait_for(Path(f"/proc/{pid}/environ").read_bytes, "the variables of a process that has just begun")
        variables = shown.split(b"\0")
        assert f"{protocol.RUN_ID_VARIABLE}={run_id}".encode() in variables
        (driver,) = [entry for entry in variables if entry.startswith(b"PACELINE_DRIVER=")]
        assert driver.startswith(f"PACELINE_DRIVER={agent}-".encode())


def test_two_drivers_do_not_touch_each_other(start_group: StartGroup, tmp_path: Path) -> None:
    """Also if the nodes of both have the same names, and the agents of one are killed."""
    group = start_group()
    other = AgentsEngine()
    try:
        others = other.start_group(placement_in(tmp_path / "other", 2))
        for node in other.nodes:
            os.kill(node.agent, signal.SIGKILL)
        collect(others, lambda events: len(events) == 2)
        others.shutdown()
        other.start_group(placement_in(tmp_path / "again", 2)).shutdown()
    finally:
        other.close()
    assert group.execute(os.getpid) == [group.processes()[rank] for rank in (0, 1)]


def crash(channel: WorkerChannel, argument: bytes) -> None:
    channel.send(b"")
    channel.receive()
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_crash_after_stacks_were_shown_is_told_with_its_own(start_group: StartGroup) -> None:
    group = start_group(1)
    run_task(group, crash)
    collect(group, bool)
    assert "in crash" in group.stacks(10.0)[0]
    group.reply(0, b"")
    failure = death_of(group).failure
    assert "Fatal Python error: Segmentation fault" in failure.traceback
    assert failure.traceback.count("in crash") == 1


def test_the_driver_can_have_many_workers(tmp_path: Path) -> None:
    """More than its limit of open files allows at first."""
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 4096))\n"
        "from pathlib import Path\n"
        "from paceline.testing.engine_tools import placement_in\n"
        "from tests.engine.remote.engine import AgentsEngine\n"
        "engine = AgentsEngine()\n"
        "group = engine.start_group(placement_in(Path(sys.argv[1]), 24, heartbeat_timeout_s=None))\n"
        "assert len(group.execute(int)) == 24; engine.close()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120)


class ImpatientEngine(AgentsEngine):
    agent_arguments = ("-c", IMPATIENT_AGENT)


def test_an_agent_ends_a_warden_without_workers_and_starts_another(tmp_path: Path) -> None:
    engine = ImpatientEngine(nodes=1)
    try:
        for number in range(2):
            group = engine.start_group(placement_in(tmp_path / str(number), 1))
            parent = psutil.Process(group.processes()[0]).parent()
            assert parent is not None
            assert parent.pid != engine.nodes[0].agent
            group.shutdown()
            wait_until_gone(process(parent.pid))
    finally:
        engine.close()
