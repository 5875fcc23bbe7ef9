"""The driver's side of a group whose workers talk in frames: shared by the process engines.

Subclasses bring workers to life, notice their ends and shut them down; here frames become events.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from paceline.air.errors import EngineError, FailureKind, HangError, RemoteError, WorkerDiedError, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import Event, Message, Placement, TaskEnded, TaskFailed, WorkerDied, WorkerGroup, WorkerPlace
from paceline.engine.frames import FrameSocket, close_all
from paceline.engine.reactor import MAX_WAIT_S, READ, WRITE, Reactor
from paceline.engine.serialization import dumps

STALL_S = 1.0
"""A gap between two looks at the workers that is longer than this is the driver's own fault."""


class Member:
    """What the driver knows about one worker."""

    def __init__(self, place: WorkerPlace, frames: FrameSocket) -> None:
        self.place = place
        self.rank = place.rank
        self.frames = frames
        self.ready = False
        self.ended = False
        """The task returned or raised."""
        self.failure: WorkerFailure | None = None
        """Set once: after that the rank has nothing more to say."""
        self.gone = False
        """The process is known to be dead."""
        self.last_seen = time.monotonic()
        self.load_deadline: float | None = None
        """When the task must have been loaded; None once it has."""


class ChannelGroup(WorkerGroup):
    """Turns frames into events; keeps the answers to calls apart from them."""

    def __init__(self, placement: Placement, reactor: Reactor) -> None:
        self.placement = placement
        self._pid = os.getpid()
        """A forked child of the driver must leave the group alone."""
        self._reactor = reactor
        self._members: list[Member] = []
        self._events: list[Event] = []
        self._calls = 0
        self._answers: dict[int, msgspec.Raw | WorkerFailure] = {}
        self._last_look = time.monotonic()

    # What subclasses add

    def _on_ready(self, member: Member, fds: tuple[int, ...]) -> None:
        member.ready = True

    def _on_hangup(self, member: Member) -> None:
        """The channel ended; the process may live on."""

    def _look_after(self, now: float) -> None:
        """Timers of the subclass: called after every wait."""

    # Frames in

    def _attach(self, member: Member) -> None:
        self._members.append(member)
        self._reactor.add(member.frames.fileno(), lambda mask: self._on_channel(member, mask))

    def _detach(self, member: Member) -> None:
        if member.frames.fileno() >= 0:
            self._reactor.remove(member.frames.fileno())

    def _on_channel(self, member: Member, mask: int) -> None:
        if mask & WRITE:
            member.frames.flush()
            self._reactor.watch_writable(member.frames)
        if mask & READ:
            self._read(member)
            if member.frames.closed:
                self._detach(member)
                self._on_hangup(member)

    def _read(self, member: Member) -> bool:
        """Take what is in the channel; False if it held nothing."""
        try:
            frames = member.frames.read()
            events = self._events
            rank = member.rank
            for tag, body, fds in frames:
                if tag == protocol.MESSAGE and not member.failure:
                    events.append(Message(rank, body, fds))
                else:
                    self._on_control(member, tag, body, fds)
        except msgspec.MsgspecError as error:
            member.frames.broken = str(error)
        if member.frames.broken:
            self._detach(member)
            member.frames.close()
            self._fail(member, "engine", f"the worker sent something unreadable: {member.frames.broken}")
            return False
        if frames:
            member.last_seen = time.monotonic()
        return bool(frames)

    def _drain(self, member: Member) -> None:
        """Deliver everything a worker sent before it died."""
        while not member.frames.closed and self._read(member):
            pass

    def _on_control(self, member: Member, tag: int, body: bytes, fds: tuple[int, ...]) -> None:
        if tag == protocol.HEARTBEAT:
            return
        if member.failure is not None:
            close_all(fds)
        elif tag == protocol.LOADED:
            member.load_deadline = None
        elif tag == protocol.READY:
            self._on_ready(member, fds)
        elif tag == protocol.RETURNED:
            returned = protocol.decode_returned(body)
            if returned.number == self._calls:
                self._answers[member.rank] = returned.value
        elif tag == protocol.RAISED:
            raised = protocol.decode_raised(body)
            if raised.number == self._calls:
                self._answers[member.rank] = self._placed(member, raised.failure)
        elif tag == protocol.ENDED:
            member.ended = True
            self._events.append(TaskEnded(member.rank))
        elif tag == protocol.FAILED:
            member.ended = True
            member.load_deadline = None
            member.failure = self._placed(member, protocol.decode_failure(body))
            self._events.append(TaskFailed(member.rank, member.failure))
        else:
            member.frames.broken = f"a frame with the unknown tag {tag}"

    def _placed(self, member: Member, failure: WorkerFailure) -> WorkerFailure:
        return dataclasses.replace(failure, rank=member.rank, log_path=member.place.log_path)

    def _fail(self, member: Member, kind: FailureKind, message: str, **details: Any) -> None:
        details.setdefault("time_ns", time.monotonic_ns())
        self._died(member, WorkerFailure(member.rank, kind, message, log_path=member.place.log_path, **details))

    def _died(self, member: Member, failure: WorkerFailure) -> None:
        """The worker is lost; said once, and only if its task had not ended."""
        if member.failure is None and not member.ended:
            self._events.append(WorkerDied(member.rank, failure))
        member.failure = member.failure or failure

    # Waiting

    def _wait_once(self, timeout: float, seen: int | None = None) -> None:
        self._reactor.run_once(timeout, seen)
        self.look()

    def look(self) -> None:
        """Serve this group's timers. Time in which the driver did not look counts for nobody."""
        with self._reactor.lock:
            now = time.monotonic()
            gap = now - self._last_look
            if gap > STALL_S:
                for member in self._members:
                    member.last_seen += gap
                    if member.load_deadline is not None:
                        member.load_deadline += gap
            self._last_look = now
            self._look_after(now)
            self._look_for_late_loading(now)

    def _look_for_late_loading(self, now: float) -> None:
        """Loading a task imports the user's modules: that belongs to the start, which is limited."""
        late = [member for member in self._members if member.load_deadline is not None and now > member.load_deadline]
        late = [member for member in late if member.failure is None and not member.gone]
        if not late:
            return
        stacks = self.stacks()
        for member in late:
            member.load_deadline = None
            self._fail(
                member,
                "startup",
                f"the function was not loaded within start_timeout_s={self.placement.start_timeout_s:g} s",
                traceback=stacks.get(member.rank, ""),
                hint="Look at what its modules do at import, or raise FailureConfig(start_timeout_s=...).",
            )

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._reactor.rounds
            remaining = MAX_WAIT_S if deadline is None else deadline - time.monotonic()
            self._wait_once(0.0 if self._events else remaining, seen)
            if self._events or (deadline is not None and time.monotonic() >= deadline):
                with self._reactor.lock:
                    events, self._events = self._events, []
                return events

    def _drop_events(self) -> None:
        """Nobody will poll again: close the descriptors that came with messages."""
        for event in self._events:
            if isinstance(event, Message):
                close_all(event.fds)
        self._events.clear()

    # Frames out

    def _post(self, member: Member, tag: int, body: bytes, fds: Sequence[int] = ()) -> None:
        self._reactor.check_owner()  # Before the lock, which another thread may have held at the fork.
        with self._reactor.lock:
            if member.gone or member.frames.closed:
                return
            member.frames.post(tag, body, fds)
            if member.frames.unsent:
                self._reactor.watch_writable(member.frames)

    def start(self, task: bytes, arguments: Sequence[bytes]) -> None:
        if len(arguments) != self.world_size:
            raise ValueError(f"{self.world_size} workers need as many arguments, not {len(arguments)}")
        for member, argument in zip(self._members, arguments, strict=True):
            member.ended = False
            member.load_deadline = time.monotonic() + self.placement.start_timeout_s
            self._post(member, protocol.TASK, task)
            self._post(member, protocol.RUN, argument)

    def reply(self, rank: int, body: bytes, fds: Sequence[int] = ()) -> None:
        self._post(self._members[rank], protocol.MESSAGE, body, fds)

    def execute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        ranks: Sequence[int] | None = None,
        timeout: float = 60.0,
    ) -> list[Any]:
        wanted = list(range(self.world_size)) if ranks is None else list(ranks)
        name = getattr(fn, "__name__", type(fn).__name__)
        payload = dumps((fn, args), f"(function, arguments) of {name}")
        self._calls += 1
        self._answers = {}
        body = protocol.encode(protocol.Call(self._calls, payload))
        for rank in wanted:
            self._post(self._members[rank], protocol.CALL, body)
        self._gather(wanted, name, timeout)
        failures = [answer for answer in self._answers.values() if isinstance(answer, WorkerFailure)]
        if failures:
            first = min(failures, key=lambda failure: failure.time_ns)
            raise RemoteError(f"{name}() failed on rank {first.rank}: {first.message}\n{first.traceback}", first)
        return [msgspec.msgpack.decode(self._answers[rank]) for rank in wanted]  # type: ignore[arg-type]

    def _gather(self, wanted: list[int], name: str, timeout: float) -> None:
        """Wait until each of the ranks has answered the current call."""
        deadline = time.monotonic() + timeout
        while True:
            seen = self._reactor.rounds
            missing = [rank for rank in wanted if rank not in self._answers]
            if not missing:
                return
            for rank in missing:
                failure = self._members[rank].failure
                if failure is not None:
                    raise WorkerDiedError(f"rank {rank} was lost during {name}(): {failure.message}", failure)
                if self._members[rank].gone:
                    raise EngineError(f"rank {rank} has already ended; {name}() cannot be called there")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                stacks = self.stacks()
                member = self._members[missing[0]]
                failure = WorkerFailure(
                    member.rank,
                    "hang",
                    f"{name}() did not return within {timeout:g} s on rank(s) {missing}",
                    time_ns=time.monotonic_ns(),
                    traceback=stacks.get(member.rank, ""),
                    log_path=member.place.log_path,
                )
                raise HangError(failure.message, failure)
            self._wait_once(remaining, seen)


def wait_for_groups(reactor: Reactor, groups: Sequence[WorkerGroup], timeout: float | None) -> list[WorkerGroup]:
    """Those of the groups that have events; waits up to `timeout` seconds for one, or until it is woken."""
    own = [group for group in groups if isinstance(group, ChannelGroup)]
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        seen = reactor.rounds
        remaining = MAX_WAIT_S if deadline is None else deadline - time.monotonic()
        reactor.run_once(0.0 if reactor.woken or any(group.has_events for group in own) else remaining, seen)
        for group in own:
            group.look()
        ready: list[WorkerGroup] = [group for group in own if group.has_events]
        if ready or reactor.woken or (deadline is not None and time.monotonic() >= deadline):
            reactor.woken = False
            return ready
