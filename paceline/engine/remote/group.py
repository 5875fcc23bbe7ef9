"""The driver's side: its handle on the agent of each machine, and a group of workers on several machines."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.air.errors import EngineError, StartupTimeoutError, WorkerDiedError, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import Placement, WorkerRequest
from paceline.engine.channel_group import ChannelGroup, GroupMember, MemberState
from paceline.engine.failures import describe_exit
from paceline.engine.frames import FrameSocket
from paceline.engine.local import linux
from paceline.engine.local.crash_file import tail_of, user_stacks
from paceline.engine.local.group import script_file
from paceline.engine.local.warden_client import absolute_sys_path
from paceline.engine.places import WorkerPlace, variables
from paceline.engine.reactor import READ, WRITE, Reactor
from paceline.engine.remote import messages
from paceline.engine.worker_loop import DRIVER_LOST_EXIT

EXIT_STATUS_WAIT_S = 1.0
"""How long the end of a worker's connection and its exit status may be apart."""
KILL_WAIT_S = 10.0
PING_S = 1.0


class AgentLine:
    """The driver's handle on the agent of one machine."""

    def __init__(self, label: str, reactor: Reactor) -> None:
        self.label = label
        """Names the machine in messages."""
        self.facts: messages.NodeFacts | None = None
        self.lost = ""
        """Why, if it is."""
        self.offsets = protocol.ClockOffsets()
        self.groups: dict[int, RemoteGroup] = {}
        self._reactor = reactor
        self._frames: FrameSocket | None = None
        self._last_heard = time.monotonic()
        self._last_ping = 0.0

    @property
    def heard_at(self) -> float:
        """When the agent last said something (monotonic time)."""
        return self._last_heard

    def attach(self, sock: socket.socket) -> None:
        self._frames = FrameSocket(sock)
        self._last_heard = time.monotonic()
        self._reactor.add(sock.fileno(), self._on_frames)

    def tell(self, message: messages.ToAgent) -> None:
        with self._reactor.lock:
            if self._frames is not None and not self.lost:
                self._frames.post(messages.CONTROL, messages.encode(message))
                self._reactor.watch_writable(self._frames)

    def look(self, now: float, silence_s: float | None) -> None:
        """Show that the driver is alive; notice a machine that says nothing any more."""
        if now - self._last_ping > PING_S:
            self._last_ping = now
            self.tell(messages.Ping())
        silent_s = now - self._last_heard
        if silence_s is not None and self._frames is not None and silent_s > silence_s:
            self.lose(f"{self.label} has given no sign of life for {silent_s:.0f} s")

    def _on_frames(self, mask: int) -> None:
        assert self._frames is not None
        if mask & WRITE:
            self._frames.flush()
            self._reactor.watch_writable(self._frames)
        if not mask & READ:
            return
        for _tag, body, _fds in self._frames.read():
            self._on_message(messages.decode_from_agent(body))
        self._last_heard = time.monotonic()
        if self._frames.closed or self._frames.broken:
            self.lose(f"the agent of {self.label} is gone")

    def _on_message(self, message: messages.FromAgent) -> None:
        if isinstance(message, messages.Pulse):
            self.offsets.note(message.clocks)
        elif isinstance(message, messages.NodeFacts):
            self.facts = message
        else:
            group = self.groups.get(message.group)
            if group is not None:
                group.on_agent_message(self, message)

    def lose(self, why: str) -> None:
        with self._reactor.lock:
            if self.lost:
                return
            self.lost = why
            self._hang_up()
            for group in list(self.groups.values()):
                group.on_agent_lost(self)

    def close(self) -> None:
        """The agent ends, with everything on its machine."""
        self.tell(messages.Quit())
        with self._reactor.lock:
            self.lost = self.lost or "the engine was closed"
            self._hang_up()

    def _hang_up(self) -> None:
        if self._frames is not None:
            self._reactor.remove(self._frames.fileno())
            self._frames.close()


class RemoteMember(GroupMember):
    """A worker on a machine with an agent."""

    def __init__(self, request: WorkerRequest, frames: FrameSocket, line: AgentLine) -> None:
        super().__init__(request, frames)
        self.line = line
        self.exited: messages.Exited | None = None
        self.killed_by_us = False

    @property
    def has_ended(self) -> bool:
        """Its connection may be open still, in the hands of a child."""
        return self.gone or self.exited is not None


class RemoteGroup(ChannelGroup):
    """Workers on several machines."""

    def __init__(
        self,
        number: int,
        placement: Placement,
        places: tuple[WorkerPlace, ...],
        lines: Sequence[AgentLine],
        reactor: Reactor,
    ) -> None:
        super().__init__(placement, places, reactor)
        self.number = number
        """Tells the groups of one engine apart."""
        self._lines = list(lines)
        """By rank."""
        self._sockets: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._problems: list[WorkerFailure] = []
        """Of the start."""
        self._load_error = ""
        self._stacks: dict[int, str] = {}
        self._gone: set[AgentLine] = set()
        self._remote: list[RemoteMember] = []
        self._closed = False

    # Start

    def launch(self) -> None:
        """Start all workers and wait until each is ready; on any failure none is left."""
        deadline = time.monotonic() + self.placement.start_timeout_s
        try:
            with self.reactor.lock:
                for request, line in zip(self.placement.workers, self._lines, strict=True):
                    line.groups[self.number] = self
                    line.tell(self._spawn(request, line))
                for line in self._lines:
                    if line.lost:
                        self.on_agent_lost(line)
            self._wait_until(lambda: len(self._sockets) == self.world_size, deadline)
            with self.reactor.lock:
                for request, line in zip(self.placement.workers, self._lines, strict=True):
                    frames = FrameSocket(self._sockets.pop(request.rank), read_limit=protocol.WORKER_FRAME_LIMIT)
                    member = RemoteMember(request, frames, line)
                    self._remote.append(member)
                    self.attach(member)
            self._wait_until(lambda: all(member.state is not MemberState.STARTING for member in self.members), deadline)
        except BaseException:
            self.shutdown()
            raise

    def _spawn(self, request: WorkerRequest, line: AgentLine) -> messages.SpawnWorker:
        place, heartbeat = self.places[request.rank], self.placement.heartbeat_timeout_s
        main_file = script_file()
        return messages.SpawnWorker(
            group=self.number,
            run_id=self.placement.run_id,
            rank=request.rank,
            world_size=self.world_size,
            preload=list(self.placement.preload),
            fresh=self.placement.fresh,
            cwd=os.path.abspath(request.cwd),
            shares_files=place.node.is_drivers,
            env=variables(self.placement, place, request.defaults),
            defaults=dict(request.defaults),
            sys_path=absolute_sys_path(),
            argv=list(sys.argv),
            main_file=None if main_file is None else os.fsdecode(main_file),
            threads=place.threads,
            thread_setters=list(self.placement.thread_setters),
            pulse_s=None if heartbeat is None else heartbeat / 5,
            umask=linux.current_umask(),
        )

    def _wait_until(self, is_done: Callable[[], bool], deadline: float) -> None:
        done = self.wait_for(
            lambda: is_done() or bool(self._problems) or bool(self._load_error) or self.first_lost() is not None,
            deadline - time.monotonic(),
        )
        if self._load_error:
            raise EngineError(
                f"importing {', '.join(self.placement.preload)} for the workers failed:\n{self._load_error}"
            )
        failure = next(iter(self._problems), None) or self.first_lost()
        if failure is not None:
            self._raise(failure)
        if not done:
            late = [rank for rank in range(self.world_size) if not self._is_ready(rank)]
            ranks = ", ".join(f"{rank} on {self._lines[rank].label}" for rank in late)
            raise StartupTimeoutError(
                f"rank(s) {ranks} of {self.world_size} did not get ready within {self.placement.start_timeout_s:g} s"
            )

    def _is_ready(self, rank: int) -> bool:
        return rank < len(self.members) and self.members[rank].state is not MemberState.STARTING

    def _raise(self, failure: WorkerFailure) -> None:
        parts = [
            f"rank {failure.rank} on {self._lines[failure.rank].label} could not be started: {failure.message}",
            failure.traceback or tail_of(self.placement.workers[failure.rank].log_path),
        ]
        text = "\n".join(part for part in parts if part)
        if failure.kind == "startup":
            raise EngineError(text)
        raise WorkerDiedError(text, replace(failure, message=f"{failure.message}, while it was starting"))

    def on_connected(self, rank: int, sock: socket.socket) -> None:
        if self._remote or rank in self._sockets or not 0 <= rank < self.world_size:
            sock.close()
        else:
            self._sockets[rank] = sock

    # What happens to workers

    def on_agent_message(self, line: AgentLine, message: messages.OfGroup) -> None:
        if isinstance(message, messages.Output):
            self._write_log(message)
        elif isinstance(message, messages.GroupGone):
            self._gone.add(line)
        elif isinstance(message, messages.LoadFailed):
            self._load_error = message.error
        elif isinstance(message, messages.WardenLost):
            text = "the process that watches over the workers was killed; the workers ended with it"
            self._lose_workers(line, text, message.diagnosis)
        elif isinstance(message, messages.Spawned):
            self._pids[message.rank] = message.pid
        elif isinstance(message, messages.Stacks):
            self._stacks[message.rank] = message.text
        elif isinstance(message, messages.SpawnFailed):
            self._problems.append(self._failure(message.rank, "startup", message.error))
        else:
            self._on_exit(message)

    def _failure(self, rank: int, kind: str, message: str) -> WorkerFailure:
        return WorkerFailure(rank, kind, message, time_ns=time.monotonic_ns())  # type: ignore[arg-type]

    def _write_log(self, output: messages.Output) -> None:
        path = self.placement.workers[output.rank].log_path
        if not path:
            os.write(1, output.data)
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as log:
            log.write(output.data)

    def _on_exit(self, exited: messages.Exited) -> None:
        if not self._remote:
            self._problems.append(self._failure_of(exited))
            return
        member = self._remote[exited.rank]
        member.exited = exited
        self._settle(member)

    def _failure_of(self, exited: messages.Exited) -> WorkerFailure:
        offsets = self._lines[exited.rank].offsets
        return describe_exit(
            exited.rank,
            os.waitstatus_to_exitcode(exited.status),
            exited.max_rss,
            memory_limit=exited.memory_limit,
            out_of_memory_kills=exited.out_of_memory_kills,
            crash_text=user_stacks(exited.crash),
            log_path=self.placement.workers[exited.rank].log_path,
            time_ns=offsets.drivers_ns(exited.time_ns),
        )

    def on_agent_lost(self, line: AgentLine) -> None:
        self._gone.add(line)
        self._lose_workers(line, line.lost)

    def _lose_workers(self, line: AgentLine, why: str, details: str = "") -> None:
        if not self._remote:
            rank = self._lines.index(line)
            self._problems.append(replace(self._failure(rank, "engine", why), traceback=details))
        for member in self._remote:
            if member.line is line and not member.gone:
                self.drain(member)
                member.gone = True
                self.fail(member, "engine", why, traceback=details)

    def on_hangup(self, member: GroupMember) -> None:
        self._settle(self._remote[member.rank])

    def _settle(self, member: RemoteMember) -> None:
        """What a worker sent last may still be under way when its agent reports its end, and the other way round."""
        if member.exited is not None and member.frames.closed:
            self._believe_in_end(member)
        elif member.death_deadline is None:
            member.death_deadline = time.monotonic() + EXIT_STATUS_WAIT_S

    def _believe_in_end(self, member: RemoteMember) -> None:
        member.death_deadline = None
        self.drain(member)
        exited = member.exited
        if exited is not None:
            member.gone = True
        if exited is None or exited.status == DRIVER_LOST_EXIT << 8:
            self.fail(member, "engine", "the worker closed its connection to the driver")
        else:
            self.fail_with(member, self._failure_of(exited))

    def look_after(self, now: float) -> None:
        for line in dict.fromkeys(self._lines):
            line.look(now, self.placement.heartbeat_timeout_s)
        for member in self._remote:
            if member.death_deadline is not None and now > member.death_deadline:
                self._believe_in_end(member)

    # Looking at workers

    def processes(self) -> dict[int, int]:
        return dict(self._pids)

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        self._stacks = {}
        asked = [member for member in self._remote if not member.has_ended and not member.line.lost]
        for member in asked:
            member.line.tell(messages.ShowStacks(self.number, member.rank))
        self.wait_for(lambda: all(member.rank in self._stacks for member in asked), timeout)
        return {rank: text for rank, text in self._stacks.items() if text}

    # End

    def shutdown(self, grace: float = 0.0) -> list[str]:
        if self._closed or os.getpid() != self._pid:
            return []
        if grace > 0:
            for member in self.members:
                self.post(member, protocol.EXIT, b"")
            self.wait_for(lambda: all(member.has_ended for member in self._remote), grace)
        warnings = self._kill()
        with self.reactor.lock:
            self._closed = True
            self.close_events()
            for line in self._lines:
                line.groups.pop(self.number, None)
            for member in self._remote:
                self.detach(member)
                if member.killed_by_us and grace > 0 and member.state is MemberState.ENDED:
                    text = (
                        f"rank {member.rank} did not exit within {grace:g} s after its function returned and was killed"
                    )
                    warnings.append(text)
                member.gone = True
                member.frames.close()
            for sock in self._sockets.values():
                sock.close()
        return warnings

    def _kill(self) -> list[str]:
        for member in self._remote:
            member.killed_by_us = not member.has_ended
        lines = [line for line in dict.fromkeys(self._lines) if not line.lost]
        for line in lines:
            line.tell(messages.KillGroup(self.number))
        if self.wait_for(lambda: all(line in self._gone for line in lines), KILL_WAIT_S):
            return []
        late = [line.label for line in lines if line not in self._gone]
        return [f"some processes of the group did not end within {KILL_WAIT_S:g} s, on {', '.join(late)}"]
