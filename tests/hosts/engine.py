"""An engine for tests whose workers share as little with the driver as workers on other machines do.

They are interpreters on hosts of tools/hosts.py, with their own network, processes, directories and clocks. All that
joins them and the driver are TCP connections: one of each host's agent, one of each worker.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.air.errors import EngineError, StartupTimeoutError, WorkerDiedError, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import Placement, WorkerGroup, WorkerRequest
from paceline.engine.channel_group import ChannelGroup, GroupMember, MemberState
from paceline.engine.failures import describe_exit
from paceline.engine.frames import FrameSocket
from paceline.engine.local.crash_file import tail_of, user_stacks
from paceline.engine.local.warden_client import absolute_sys_path
from paceline.engine.places import Node, lay_out, variables
from paceline.engine.reactor import READ, WRITE, Reactor, ReactorEngine
from tests.hosts import agent
from tools.hosts import Host, Hosts

START_TIMEOUT_S = 60.0
SILENT_S = 5.0
"""After that time without a sign of life from its agent, a host is taken for dead."""
EXIT_STATUS_WAIT_S = 1.0
"""How long the end of a worker's connection and its exit status may be apart."""
KILL_WAIT_S = 10.0
PROJECT = Path(__file__).parents[2]


class AgentLine:
    """The driver's handle on the agent of one host."""

    def __init__(self, host: Host, reactor: Reactor) -> None:
        self.host = host
        self.lost = False
        self.cpus = 0
        self.groups: dict[int, HostsGroup] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.reactor = reactor
        self._frames: FrameSocket | None = None
        self._last_heard = time.monotonic()

    @property
    def node(self) -> Node:
        host = self.host
        return Node(host.name, host.address, host.name, self.cpus)

    @property
    def is_ready(self) -> bool:
        return self.cpus > 0

    @property
    def is_dead(self) -> bool:
        return self.lost or time.monotonic() - self._last_heard > SILENT_S

    def attach(self, sock: socket.socket) -> None:
        self._frames = FrameSocket(sock)
        self.reactor.add(sock.fileno(), self._on_frames)

    def tell(self, message: agent.ToAgent) -> None:
        with self.reactor.lock:
            if self._frames is not None and not self.lost:
                self._frames.post(agent.TAG, agent.encode(message))
                self.reactor.watch_writable(self._frames)

    def _on_frames(self, mask: int) -> None:
        assert self._frames is not None
        if mask & WRITE:
            self._frames.flush()
            self.reactor.watch_writable(self._frames)
        if not mask & READ:
            return
        for _tag, body, _fds in self._frames.read():
            self._on_message(agent.decode_from_agent(body))
        self._last_heard = time.monotonic()
        if self._frames.closed:
            self.close()
            for group in list(self.groups.values()):
                group.on_agent_lost(self)

    def _on_message(self, message: agent.FromAgent) -> None:
        if isinstance(message, agent.Pulse):
            self.cpus = message.cpus
        else:
            group = self.groups.get(message.group)
            if group is not None:
                group.on_agent_message(self, message)

    def close(self) -> None:
        with self.reactor.lock:
            self.lost = True
            if self._frames is not None:
                self.reactor.remove(self._frames.fileno())
                self._frames.close()


class HostMember(GroupMember):
    """A worker on a host."""

    def __init__(self, request: WorkerRequest, frames: FrameSocket, line: AgentLine) -> None:
        super().__init__(request, frames)
        self.line = line
        self.end: WorkerFailure | None = None
        """How its process ended."""

    @property
    def has_ended(self) -> bool:
        """Its connection may be open still, in the hands of a child."""
        return self.gone or self.end is not None


class HostsGroup(ChannelGroup):
    """Workers on several hosts."""

    def __init__(self, number: int, placement: Placement, lines: Sequence[AgentLine], reactor: Reactor) -> None:
        super().__init__(placement, lay_out(placement, [line.node for line in lines]), reactor)
        self.number = number
        self._lines = list(lines)
        """By rank."""
        self._sockets: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._ends: dict[int, WorkerFailure] = {}
        self._stacks: dict[int, str] = {}
        self._gone: set[str] = set()
        self._hosted: list[HostMember] = []
        self._closed = False

    # Start

    def launch(self) -> None:
        try:
            with self.reactor.lock:
                for request, line in zip(self.placement.workers, self._lines, strict=True):
                    line.groups[self.number] = self
                    line.tell(self._spawn(request))
            self._wait_until(lambda: len(self._sockets) == self.world_size)
            with self.reactor.lock:
                for request, line in zip(self.placement.workers, self._lines, strict=True):
                    frames = FrameSocket(self._sockets[request.rank], read_limit=protocol.WORKER_FRAME_LIMIT)
                    member = HostMember(request, frames, line)
                    self._hosted.append(member)
                    self.attach(member)
            self._wait_until(lambda: all(member.state is not MemberState.STARTING for member in self.members))
        except BaseException:
            self.shutdown()
            raise

    def _spawn(self, request: WorkerRequest) -> agent.Spawn:
        heartbeat = self.placement.heartbeat_timeout_s
        return agent.Spawn(
            group=self.number,
            rank=request.rank,
            world_size=self.world_size,
            directory=os.path.basename(os.path.abspath(request.cwd)),
            defaults=dict(request.defaults),
            variables={
                **variables(self.placement, self.places[request.rank], request.defaults),
                protocol.RUN_ID_VARIABLE: self.placement.run_id,
            },
            sys_path=absolute_sys_path(),
            argv=sys.argv,
            threads=self.places[request.rank].threads,
            pulse_s=None if heartbeat is None else heartbeat / 5,
        )

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        if not self.wait_for(lambda: is_done() or bool(self._ends), self.placement.start_timeout_s):
            raise StartupTimeoutError(f"the workers were not ready within {self.placement.start_timeout_s:g} s")
        if self._ends:
            failure = next(iter(self._ends.values()))
            output = tail_of(self.placement.workers[failure.rank].log_path)
            raise WorkerDiedError(f"rank {failure.rank} could not be started: {failure.message}\n{output}", failure)

    def on_connected(self, rank: int, sock: socket.socket) -> None:
        self._sockets[rank] = sock

    # What happens to workers

    def on_agent_message(self, line: AgentLine, message: agent.FromAgent) -> None:
        if isinstance(message, agent.Spawned):
            self._pids[message.rank] = message.pid
        elif isinstance(message, agent.Output):
            self._write_log(message)
        elif isinstance(message, agent.Stacks):
            self._stacks[message.rank] = message.text
        elif isinstance(message, agent.GroupGone):
            self._gone.add(line.host.name)
        elif isinstance(message, agent.Exited):
            self._on_exit(message)

    def _write_log(self, output: agent.Output) -> None:
        path = Path(self.placement.workers[output.rank].log_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as log:
            log.write(output.data)

    def _on_exit(self, exited: agent.Exited) -> None:
        failure = describe_exit(
            exited.rank,
            os.waitstatus_to_exitcode(exited.status),
            exited.max_rss,
            crash_text=user_stacks(exited.crash),
            log_path=self.placement.workers[exited.rank].log_path,
        )
        self._ends[exited.rank] = failure
        if self._hosted:
            member = self._hosted[exited.rank]
            member.end = failure
            self._settle(member)

    def on_agent_lost(self, line: AgentLine) -> None:
        for member in self._hosted:
            if member.line is line and not member.gone:
                self.drain(member)
                member.gone = True
                self.fail(member, "engine", "the agent of its host is gone")

    def on_hangup(self, member: GroupMember) -> None:
        self._settle(self._hosted[member.rank])

    def _settle(self, member: HostMember) -> None:
        """What a worker sent last may still be under way when its agent tells of its end, and the other way round."""
        if member.end is not None and member.frames.closed:
            self._believe_in_end(member)
        elif member.death_deadline is None:
            member.death_deadline = time.monotonic() + EXIT_STATUS_WAIT_S

    def _believe_in_end(self, member: HostMember) -> None:
        member.death_deadline = None
        self.drain(member)
        member.gone = True
        if member.end is not None:
            self.fail_with(member, member.end)
        else:
            self.fail(member, "engine", "the worker closed its connection to the driver")

    def look_after(self, now: float) -> None:
        for member in self._hosted:
            if member.death_deadline is not None and now > member.death_deadline:
                self._believe_in_end(member)

    # Looking at workers

    def processes(self) -> dict[int, int]:
        return dict(self._pids)

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        self._stacks = {}
        asked = [member for member in self._hosted if not member.gone and not member.line.is_dead]
        for member in asked:
            member.line.tell(agent.ShowStacks(self.number, member.rank))
        self.wait_for(lambda: all(member.rank in self._stacks for member in asked), timeout)
        return {rank: text for rank, text in self._stacks.items() if text}

    # End

    def shutdown(self, grace: float = 0.0) -> list[str]:
        if self._closed or os.getpid() != self._pid:
            return []
        if grace > 0:
            for member in self.members:
                self.post(member, protocol.EXIT, b"")
            self.wait_for(lambda: all(member.has_ended or member.line.is_dead for member in self._hosted), grace)
        warnings = self._kill()
        with self.reactor.lock:
            self._closed = True
            self.close_events()
            for line in self._lines:
                line.groups.pop(self.number, None)
            for member in self._hosted:
                self.detach(member)
                if not member.has_ended and grace > 0 and member.state is MemberState.ENDED:
                    warnings.append(f"rank {member.rank} did not exit within {grace:g} s and was killed")
                member.gone = True
                member.frames.close()
            for sock in self._sockets.values():
                sock.close()
        return warnings

    def _kill(self) -> list[str]:
        lines = {line.host.name: line for line in self._lines}
        for line in lines.values():
            line.tell(agent.KillGroup(self.number))
        waiting = [line for line in lines.values() if not line.is_dead]
        killed = self.wait_for(
            lambda: all(line.is_dead or line.host.name in self._gone for line in waiting), KILL_WAIT_S
        )
        return [] if killed else ["some workers did not end"]


class HostsEngine(ReactorEngine):
    """Workers on the hosts of a set; ranks are dealt in blocks to the hosts that are alive."""

    name = "hosts"

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._token = secrets.token_bytes(16)
        self._by_number: dict[int, HostsGroup] = {}
        self._listener = hosts.listen()
        self._listener.setblocking(False)
        self.reactor.add(self._listener.fileno(), lambda _mask: self._on_connection())
        self._lines = [AgentLine(hosts[name], self.reactor) for name in hosts.names]
        for number, line in enumerate(self._lines):
            line.process = self._start_agent(hosts, line.host, number)
        self._wait_until_ready()

    def _start_agent(self, hosts: Hosts, host: Host, number: int) -> subprocess.Popen[bytes]:
        command = ["env", f"PYTHONPATH={PROJECT}", sys.executable, "-m", "tests.hosts.agent"]
        process: subprocess.Popen[bytes] = hosts.popen(host.name, command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(agent.encode(agent.Errand(self._listener.getsockname(), self._token, number)))
        process.stdin.close()
        return process

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(line.is_ready for line in self._lines):
            if time.monotonic() > deadline:
                self.close()
                raise EngineError("the agents of the hosts did not get ready")
            self.reactor.run_once(1.0)

    def _on_connection(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reactor.add(sock.fileno(), lambda _mask: self._on_hello(sock))

    def _on_hello(self, sock: socket.socket) -> None:
        """The connection is handed to whom it belongs once its first bytes are complete."""
        hello = sock.recv(agent.HELLO.size, socket.MSG_PEEK)
        if 0 < len(hello) < agent.HELLO.size:
            return
        self.reactor.remove(sock.fileno())
        if not hello:
            sock.close()
            return
        token, number, rank = agent.HELLO.unpack(sock.recv(agent.HELLO.size))
        if not secrets.compare_digest(token, self._token):
            sock.close()
        elif number == agent.AGENT:
            self._lines[rank].attach(sock)
        elif number in self._by_number:
            self._by_number[number].on_connected(rank, sock)
        else:
            sock.close()

    def resources(self) -> dict[str, float]:
        return {"CPU": float(sum(line.cpus for line in self._lines if not line.is_dead)), "GPU": 0.0}

    def start_group(self, placement: Placement) -> WorkerGroup:
        self.reactor.run_once(0.0)
        alive = [line for line in self._lines if not line.is_dead]
        if not alive:
            raise EngineError("all hosts are gone")
        number, size = next(self._numbers), placement.world_size
        first = number if size == 1 else 0  # Groups of one take turns.
        lines = [alive[(first + rank * len(alive) // size) % len(alive)] for rank in range(size)]
        group = HostsGroup(number, placement, lines, self.reactor)
        self._by_number[group.number] = group
        self.groups.add(group)
        group.launch()
        return group

    def release(self) -> None:
        for line in self._lines:
            line.close()
        for line in self._lines:
            if line.process is not None:
                line.process.wait(START_TIMEOUT_S)
        self._listener.close()
