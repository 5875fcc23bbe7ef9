"""The driver's side of a group of workers on several machines, each of which has an agent."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.air.attachment import Attachment
from paceline.air.errors import EngineError, FailureKind, StartupTimeoutError, WorkerDiedError, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import Placement
from paceline.engine.channel_group import ChannelGroup, GroupMember
from paceline.engine.failures import describe_exit
from paceline.engine.frames import FrameSocket
from paceline.engine.local import linux
from paceline.engine.local.crash_file import append_to_log, tail_of, user_stacks
from paceline.engine.local.engine import make_room_for_fds
from paceline.engine.local.group import CLOSED_HINT, script_file
from paceline.engine.local.warden_client import absolute_sys_path
from paceline.engine.places import WorkerPlace, variables
from paceline.engine.reactor import Reactor
from paceline.engine.remote import messages
from paceline.engine.remote.agent_line import AgentLine
from paceline.engine.remote.member import RemoteMember
from paceline.engine.remote.questions import Answer, Asking, Questions, time_for_stacks
from paceline.engine.remote.sharing import SharedDirectories
from paceline.engine.usage import Usage
from paceline.engine.worker_loop import DRIVER_LOST_EXIT

EXIT_STATUS_WAIT_S = 1.0
"""How long the end of a worker's connection and its exit status may be apart."""
KILL_WAIT_S = 10.0


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
        """`lines` are those of the machines on which the ranks are, in their order."""
        super().__init__(placement, places, reactor)
        self.number = number
        """Tells the groups of one engine apart."""
        self._lines = list(dict.fromkeys(lines))
        self._load_error = ""
        self._is_late = False
        """It did not get ready in time."""
        self._stacks: Questions[str] = Questions()
        self._usage: Questions[Usage] = Questions()
        self._gone: set[AgentLine] = set()
        self._log_error = ""
        self._ending: set[RemoteMember] = set()
        """Those with a deadline for their death."""
        self._closed = False
        nobody = FrameSocket(socket.socket())
        nobody.close()
        self._remote = [
            RemoteMember(request, nobody, line) for request, line in zip(placement.workers, lines, strict=True)
        ]
        for member in self._remote:
            self.enlist(member)

    # Start

    def launch(self, deadline: float | None = None) -> None:
        """Start all workers and wait until each is ready; on any failure none is left.

        `deadline` (monotonic time) is for who has used some of start_timeout_s already.
        """
        if deadline is None:
            deadline = time.monotonic() + self.placement.start_timeout_s
        try:
            lines = [member.line for member in self._remote]
            make_room_for_fds(sum(line.fds_per_worker for line in lines))
            sharing = SharedDirectories(self.placement, self.places, lines, self.reactor, deadline)
            self.shares_directory = sharing.shares_directory
            with self.reactor.lock:
                self._spawn_all(sharing)
            self._wait_until_ready(deadline)
        except BaseException:
            self.shutdown()
            raise

    def _spawn_all(self, sharing: SharedDirectories) -> None:
        requests = spawn_requests(self.number, self.placement, self.places, sharing)
        for member, request in zip(self._remote, requests, strict=True):
            member.line.groups[self.number] = self
            member.line.tell(request)
        for line in self._lines:
            if line.lost:  # Before this group was there to be told.
                self.on_agent_lost(line)

    def _wait_until_ready(self, deadline: float) -> None:
        while True:
            seen = self.reactor.rounds
            self._raise_if_start_failed()
            if self.all_ready and all(member.pid is not None for member in self._remote):
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise StartupTimeoutError(self._late_start_text())
            self.listen(remaining, seen)

    def _raise_if_start_failed(self) -> None:
        if self._load_error:
            raise EngineError(
                f"importing {', '.join(self.placement.preload)} for the workers failed:\n{self._load_error}"
            )
        failure = self.first_lost()
        if failure is None:
            return
        parts = [
            f"rank {failure.rank} on {self._remote[failure.rank].line.label} could not be started: {failure.message}",
            failure.traceback or tail_of(self.placement.workers[failure.rank].log_path),
        ]
        text = "\n".join(part for part in parts if part)
        if failure.kind == "startup":
            raise EngineError(text)
        raise WorkerDiedError(text, replace(failure, message=f"{failure.message}, while it was starting"))

    def _late_start_text(self) -> str:
        self._is_late = True
        late = [member for member in self._remote if not member.is_ready]
        stacks = self.stacks()
        ranks = ", ".join(f"{member.rank} on {member.line.label}" for member in late)
        head = (
            f"rank(s) {ranks} of {self.world_size} did not get ready within {self.placement.start_timeout_s:g} s. "
            "Where they were:"
        )
        where = {member.rank: stacks.get(member.rank) or tail_of(member.request.log_path) for member in late}
        texts = [f"rank {rank}:\n{text or '(no stack and no output)'}" for rank, text in where.items()]
        return "\n".join([head, *texts])

    def on_connected(self, rank: int, sock: socket.socket) -> None:
        """A worker has dialled. Nobody may do so twice, or take another's place."""
        member = self._remote[rank] if 0 <= rank < self.world_size and not self._closed else None
        if member is None or member.has_dialled or member.is_over:
            sock.close()
            return
        member.has_dialled = True
        member.frames = FrameSocket(sock, read_limit=protocol.WORKER_FRAME_LIMIT)
        member.heard()
        self.hear(member)

    # Attachments

    def post(self, member: GroupMember, tag: int, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        remote = self._remote[member.rank]
        if not attachments and not remote.waiting:
            super().post(member, tag, body)
            return
        self.reactor.check_owner()
        with self.reactor.lock:
            if not member.gone and not member.frames.closed:
                remote.waiting.append((tag, body, tuple(attachments)))
                self._post_waiting(remote)

    def _post_waiting(self, member: RemoteMember) -> None:
        member.post_waiting(self.number)
        if member.frames.unsent:
            self.reactor.watch_writable(member.frames)

    def on_shipped(self, line: AgentLine) -> None:
        for member in self._remote:
            if member.line is line and member.waiting and not member.gone and not member.frames.closed:
                self._post_waiting(member)

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
            self._lose_workers(line, text, "engine", message.diagnosis)
        elif isinstance(message, messages.Spawned):
            self._remote[message.rank].pid = message.pid
        elif isinstance(message, messages.Stacks):
            self._stacks.take(line, message.number, message.texts)
        elif isinstance(message, messages.Usages):
            self._usage.take(line, message.number, message.of_ranks)
        elif isinstance(message, messages.SpawnFailed):
            self.fail(self._remote[message.rank], "startup", message.error)
        else:
            self._on_exit(message)

    def _write_log(self, output: messages.Output) -> None:
        try:
            write_output(self.placement.workers[output.rank].log_path, output.data)
        except OSError as error:  # A full disk must not end the run.
            self._log_error = f"some output of rank {output.rank} could not be written: {error}"

    def _on_exit(self, exited: messages.Exited) -> None:
        member = self._remote[exited.rank]
        member.exited = exited
        self._settle(member)

    def _failure_of(self, exited: messages.Exited) -> WorkerFailure:
        offsets = self._remote[exited.rank].line.offsets
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
        self._lose_workers(line, line.lost, line.lost_as)

    def _lose_workers(self, line: AgentLine, why: str, kind: FailureKind, details: str = "") -> None:
        for member in self._remote:
            if member.line is line and not member.gone:
                self.drain(member, is_alive=True)
                member.gone = True
                self.fail(member, kind, why, traceback=details)

    def on_hangup(self, member: GroupMember) -> None:
        self._settle(self._remote[member.rank])

    def _settle(self, member: RemoteMember) -> None:
        """What a worker sent last may still be under way when its agent reports its end, and the other way round."""
        if member.exited is not None and member.has_dialled and member.frames.closed:
            self._believe_in_end(member)
        elif member.death_deadline is None:
            member.death_deadline = time.monotonic() + EXIT_STATUS_WAIT_S
            self._ending.add(member)

    def _believe_in_end(self, member: RemoteMember) -> None:
        member.death_deadline = None
        self._ending.discard(member)
        self.drain(member)
        exited = member.exited
        if exited is not None:
            member.gone = True
        if exited is not None and exited.crash:
            append_to_log(member.request.log_path, exited.crash)
        if exited is None or exited.status == DRIVER_LOST_EXIT << 8:
            self.fail(member, "engine", "the worker closed its connection to the driver", hint=CLOSED_HINT)
        else:
            self.fail_with(member, self._failure_of(exited))

    def look_after(self, now: float) -> None:
        limit = self.placement.heartbeat_timeout_s
        for line in self._lines:
            line.look(now, limit)
        for rank in self._time_to_load_s:
            if self._remote[rank].waiting:  # It has not even got the task.
                self._time_to_load_s[rank] = self.placement.start_timeout_s
        for member in list(self._ending):
            if member.death_deadline is not None and now > member.death_deadline:
                self._believe_in_end(member)
        if limit is not None and now > self._silent_from:
            for member in self._remote:
                if self._is_cut_off(member, now, limit):
                    member.line.lose_silent(limit)

    def _is_cut_off(self, member: RemoteMember, now: float, limit: float) -> bool:
        """If its agent says nothing either, it is not the worker that hangs. The agent may have spoken last."""
        return member.is_silent(now, limit, self._recheck_s) and member.line.is_silent(now, limit / 2)

    # Looking at workers

    def processes(self) -> dict[int, int]:
        return {member.rank: member.pid for member in self._remote if member.pid is not None}

    def stacks(self, timeout: float = 1.0) -> dict[int, str]:
        wait_s = time_for_stacks(timeout)
        texts = self._ask(
            self._stacks, lambda ranks, number: messages.ShowStacks(self.number, ranks, number, wait_s), timeout
        )
        return {rank: text for rank, text in texts.items() if text}

    def usage(self, timeout: float = 1.0) -> dict[int, Usage]:
        return self._ask(self._usage, lambda ranks, number: messages.ShowUsage(self.number, ranks, number), timeout)

    def _ask(self, questions: Questions[Answer], asking: Asking, timeout: float) -> dict[int, Answer]:
        asked: dict[AgentLine, list[int]] = {}
        for member in self._remote:
            if not member.has_ended and not member.line.lost:
                asked.setdefault(member.line, []).append(member.rank)
        with self.reactor.lock:
            question = questions.ask(asked, asking)
        self.wait_for(lambda: question.is_answered, timeout)
        with self.reactor.lock:
            return questions.close(question)

    # End

    def shutdown(self, grace: float = 0.0) -> list[str]:
        if self._closed or os.getpid() != self._pid:
            return []
        if grace > 0:
            for member in self._remote:
                self.post(member, protocol.EXIT, b"")
            left = list(self._remote)
            self.wait_for(lambda: _have_ended(left), grace)
        warnings = self._kill()
        with self.reactor.lock:
            self._closed = True
            self.close_events()
            for line in self._lines:
                line.groups.pop(self.number, None)
            for member in self._remote:
                self.detach(member)
                member.gone = True
                member.waiting.clear()
                member.frames.close()
        bad_ends = [member.bad_end(grace) for member in self._remote]
        return [*warnings, *filter(None, [*bad_ends, self._log_error])]

    def _kill(self) -> list[str]:
        for member in self._remote:
            member.killed_by_us = not member.has_ended
        lines = [line for line in self._lines if not line.lost]
        for line in lines:
            line.tell(messages.KillGroup(self.number, self._is_late))
        self.reactor.run_once(0.0)  # Nobody may have listened for long; what is here by now was said in time.
        if self.wait_for(lambda: self._are_gone(lines), KILL_WAIT_S):
            return []
        late = [line.label for line in lines if line not in self._gone]
        return [f"some processes of the group did not end within {KILL_WAIT_S:g} s, on {', '.join(late)}"]

    def _are_gone(self, lines: Sequence[AgentLine]) -> bool:
        with self.reactor.lock:
            for line in lines:
                line.look(time.monotonic(), self.placement.heartbeat_timeout_s)
        return all(line in self._gone for line in lines)


def spawn_requests(
    group: int, placement: Placement, places: Sequence[WorkerPlace], sharing: SharedDirectories
) -> list[messages.SpawnWorker]:
    """What the agents are told of the workers of a group, by rank."""
    sys_path, main_file, umask = absolute_sys_path(), script_file(), linux.current_umask()
    return [
        messages.SpawnWorker(
            group=group,
            run_id=placement.run_id,
            rank=request.rank,
            world_size=placement.world_size,
            preload=list(placement.preload),
            fresh=placement.fresh,
            cwd=os.path.abspath(request.cwd),
            shares_files=sharing.sees_cwd(request.rank),
            env=variables(placement, place, request.defaults),
            defaults=dict(request.defaults),
            sys_path=sys_path,
            argv=list(sys.argv),
            main_file=None if main_file is None else os.fsdecode(main_file),
            threads=place.threads,
            thread_setters=list(placement.thread_setters),
            heartbeat_timeout_s=placement.heartbeat_timeout_s,
            umask=umask,
        )
        for request, place in zip(placement.workers, places, strict=True)
    ]


def write_output(log_path: str, data: bytes) -> None:
    """Append what a worker wrote to its log, or to the output of this process if it has none."""
    if not log_path:
        os.write(linux.own_output()[0], data)
        return
    try:
        log = open(log_path, "ab")  # noqa: SIM115
    except FileNotFoundError:
        Path(log_path).parent.mkdir(parents=True, exist_ok=True)
        log = open(log_path, "ab")  # noqa: SIM115
    with log:
        log.write(data)


def _have_ended(members: list[RemoteMember]) -> bool:
    """Whether all have; those that have are taken out, so that nobody looks at them again."""
    while members and members[-1].has_ended:
        members.pop()
    return not members
