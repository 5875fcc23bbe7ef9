"""An engine whose nodes and workers are stand-ins (benchmarks/simulated_nodes.py): for measuring the driver alone."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import processes
from benchmarks.simulated_nodes import CORES, Settings
from paceline.air.attachment import Attachment
from paceline.engine.base import Event, Placement, WorkerGroup
from paceline.engine.local.engine import make_room_for_fds
from paceline.engine.places import Node, lay_out
from paceline.engine.reactor import ReactorEngine
from paceline.engine.remote import messages
from paceline.engine.remote.agent_line import AgentLine
from paceline.engine.remote.group import RemoteGroup
from paceline.engine.remote.line import AGENT, Caller, Listener

CONNECT_S = 30.0


@dataclass(frozen=True)
class Moment:
    """When something happened, and what the driver had spent by then."""

    at: float
    cpu_s: float
    memory_mb: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.perf_counter(), time.process_time(), processes.resident_mb())


@dataclass
class Times:
    """Of one group of workers."""

    asked: Moment
    ready: Moment | None = None
    at_work: Moment | None = None
    first_event: Moment | None = None
    reported: Moment | None = None
    """When the last report was here, and in the attempt in which workers return, the end of the last of them."""
    events: int = field(default=0)


class SimulatedEngine(ReactorEngine):
    """Nodes and workers that only speak the protocol."""

    name = "simulated"

    def __init__(
        self,
        nodes: int,
        workers_per_node: int,
        reports: int,
        *,
        pace_s: float = 0.0,
        dies: int | None = None,
        shows_logs: bool = True,
        processes: int = 2,
    ) -> None:
        """`dies`: the rank that is killed in the first attempt, once all have reported."""
        super().__init__(num_cpus=nodes * workers_per_node, num_gpus=0)
        self.times: list[Times] = []
        """Of each group."""
        self.dies = dies
        self.reports = reports
        self._numbers = itertools.count(1)
        self._token = secrets.token_bytes(32)
        self._listener = Listener("127.0.0.1", self._token, self.reactor, self._on_connected)
        self._lines = [AgentLine(f"node-{number}", self.reactor) for number in range(nodes)]
        self._by_number: dict[int, SimulatedGroup] = {}
        make_room_for_fds(nodes * (1 + workers_per_node * (2 if shows_logs else 1)))
        self._processes = [
            self._start(
                Settings(
                    self._listener.address,
                    self._token,
                    list(range(first, nodes, processes)),
                    reports,
                    pace_s,
                    survivors_wait=dies is not None,
                )
            )
            for first in range(processes)
        ]
        self._wait_for_agents()

    def _start(self, settings: Settings) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.simulated_nodes"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _project()})
        assert process.stdin is not None
        process.stdin.write(messages.encode(settings).hex().encode() + b"\n")
        process.stdin.flush()
        return process

    def _wait_for_agents(self) -> None:
        deadline = time.monotonic() + CONNECT_S
        while any(line.facts is None for line in self._lines):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the stand-ins did not connect within {CONNECT_S:g} s")
            self.reactor.run_once(0.1)

    def _on_connected(self, caller: Caller, sock: socket.socket) -> None:
        if caller.kind == AGENT:
            self._lines[caller.number].attach(sock)
        else:
            group = self._by_number.get(caller.number)
            sock.close() if group is None else group.on_connected(caller.rank, sock)

    def start_group(self, placement: Placement) -> WorkerGroup:
        times = Times(Moment.now())
        self.times.append(times)
        each = -(-placement.world_size // len(self._lines))
        nodes = [Node(line.label, "127.0.0.1", line.label, CORES) for line in self._lines]
        numbers = [rank // each for rank in range(placement.world_size)]
        places = lay_out(placement, [nodes[number] for number in numbers])
        lines = [self._lines[number] for number in numbers]
        group = SimulatedGroup(self, times, next(self._numbers), placement, places, lines, self.reactor)
        self._by_number = {group.number: group}  # There is one at a time.
        self.groups.add(group)
        group.launch()
        times.ready = Moment.now()
        return group

    def on_reported(self) -> None:
        """All reports of a group are here: the first one loses a worker."""
        if self.dies is not None and len(self.times) == 1:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(b"%d\n" % self.dies)
                process.stdin.flush()

    def release(self) -> None:
        for line in self._lines:
            line.close()
        self._listener.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()


class SimulatedGroup(RemoteGroup):
    """A RemoteGroup that counts what it hears."""

    def __init__(self, engine: SimulatedEngine, times: Times, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._engine = engine
        self._times = times
        survive = engine.dies is not None and self.number == 1
        self._expected = self.world_size * (engine.reports + (0 if survive else 2))  # The end of each worker is two.

    def start(self, task: bytes, arguments: Sequence[bytes], attachments: Sequence[Attachment] = ()) -> None:
        super().start(task, arguments, attachments)
        self._times.at_work = Moment.now()

    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        events = super().poll(timeout)
        times = self._times
        if events and times.first_event is None:
            times.first_event = Moment.now()
        times.events += len(events)
        if times.reported is None and times.events >= self._expected:
            times.reported = Moment.now()
            self._engine.on_reported()
        return events


def _project() -> str:
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
