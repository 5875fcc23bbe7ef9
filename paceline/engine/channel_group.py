"""The driver's side of a group whose workers talk in frames: shared by the process engines.

Subclasses bring workers to life, notice their ends and shut them down; here frames become events.

For subclasses: they write `launch` (by any name), `shutdown`, `stacks`, `processes` and `on_hangup`:

================  ================================================================================================
`attach`          takes a worker in and listens to it. In the order of ranks: `members[rank]` is used everywhere.
`detach`          stops listening; before `member.frames.close()`. May be called again.
`post`            sends a frame of `protocol`; ignored if the worker is gone.
`wait_for`        listens until a condition holds, tried at least every 0.1 s. No timers run meanwhile.
`drain`           reads what a dead worker had sent. Before `fail_with`: after that, nothing of it is delivered.
`fail`            makes the failure and passes it to `fail_with`; details are other fields of WorkerFailure.
`fail_with`       the worker is lost: its event is WorkerDied. Ignored if how its task ended is known already.
`first_lost`      the earliest failure of a worker; for the start, when nobody polls for events yet.
`close_events`    at the end of `shutdown`: what is not polled yet is dropped.
`member.gone`     the subclass sets it, when the process is known to have ended; then nothing is posted any more.
================  ================================================================================================

What it calls, always with the reactor's lock held, so that none of them may wait:

================  ================================================================================================
`on_hangup`       the channel has ended; it was detached before. Find out how the process ended, if it did.
`look_after`      timers of the subclass, about every 0.05 to 0.1 s while somebody polls, waits or executes.
`overdue`         right after it: which workers took too long. They are asked for their stacks and failed. Add
                  `silent(now)` to what super returns if workers have a pulse, a fifth of heartbeat_timeout_s.
================  ================================================================================================
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from paceline.air.attachment import Attachment
from paceline.air.errors import EngineError, FailureKind, HangError, RemoteError, WorkerDiedError, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import (
    Event,
    Message,
    Placement,
    TaskEnded,
    TaskFailed,
    WorkerDied,
    WorkerGroup,
)
from paceline.engine.frames import ATTACHED, close_all
from paceline.engine.member import ClockOffsets, GroupMember, MemberState, Overdue
from paceline.engine.places import WorkerPlace
from paceline.engine.reactor import MAX_WAIT_S, READ, WRITE, Reactor
from paceline.engine.serialization import dumps

LOOK_EVERY_S = 0.05
"""How often the timers of a group are looked at."""
STALL_S = 1.0
"""The most that a gap between two looks counts: beyond it the driver was busy or stopped, and perhaps everybody was."""
RECHECK_S = 3.0
"""How long a silent worker is listened to before it counts as unresponsive. That its time is up is not enough: if the
driver was stopped, perhaps all were."""
STACKS_WAIT_S = 0.5
"""How long ranks that are about to be given up may take to show where they are."""
LATE_LOAD_HINT = "Look at what its modules do at import, or raise FailureConfig(start_timeout_s=...)."
LOSS_SETTLE_S = 0.15
"""How long after one rank's exception the death of another, which may be its cause, is waited for."""


class ChannelGroup(WorkerGroup):
    """Turns frames into events; keeps the answers to calls apart from them."""

    def __init__(self, placement: Placement, places: tuple[WorkerPlace, ...], reactor: Reactor) -> None:
        self.placement = placement
        self.places = places
        self._pid = os.getpid()
        """A forked child of the driver must leave the group alone."""
        self.reactor = reactor
        self.members: list[GroupMember] = []
        self._events: list[Event] = []
        self._calls = 0
        self._answers: dict[int, msgspec.Raw | WorkerFailure] = {}
        self._last_look = time.monotonic()
        self._recheck_s = min(placement.heartbeat_timeout_s or RECHECK_S, RECHECK_S)

    # What subclasses add

    def on_hangup(self, member: GroupMember) -> None:
        """The channel ended; the process may live on."""

    def look_after(self, now: float) -> None:
        """Timers of the subclass."""

    # Frames in

    def attach(self, member: GroupMember) -> None:
        """Listen to this worker; workers are attached in the order of their ranks."""
        if not self.places[member.rank].node.is_drivers:
            member.offsets = ClockOffsets()
        self.members.append(member)
        self.reactor.add(member.frames.fileno(), lambda mask: self._on_channel(member, mask))

    def detach(self, member: GroupMember) -> None:
        """Do not listen any more."""
        if member.frames.fileno() >= 0:
            self.reactor.remove(member.frames.fileno())

    def _on_channel(self, member: GroupMember, mask: int) -> None:
        if mask & WRITE:
            member.frames.flush()
            self.reactor.watch_writable(member.frames)
        if mask & READ:
            self._read(member)
            if member.frames.closed:
                self.detach(member)
                self.on_hangup(member)

    def _read(self, member: GroupMember) -> bool:
        """Take what is in the channel; False if it held nothing."""
        frames = iter(member.frames.read())
        try:
            events = self._events
            rank = member.rank
            arrivals = member.arrivals
            for tag, body, fds in frames:
                if tag == protocol.MESSAGE and member.state is not MemberState.FAILED:
                    events.append(Message(rank, body, arrivals.take(fds) if fds or arrivals.complete else ()))
                elif tag == ATTACHED and member.state is not MemberState.FAILED:
                    arrivals.take_in(body, fds)
                else:
                    self._on_control(member, tag, body, fds)
        except (msgspec.MsgspecError, ValueError) as error:
            member.frames.broken = str(error)
            for _, _, fds in frames:  # Those behind it.
                close_all(fds)
        if member.frames.broken:
            self.detach(member)
            member.frames.close()
            self.fail(member, "engine", f"the worker sent something unreadable: {member.frames.broken}")
            return False
        if member.frames.took_something:
            member.heard()
        return member.frames.took_something

    def drain(self, member: GroupMember) -> None:
        """Deliver everything a worker sent before it died; a large message takes several reads."""
        while not member.frames.closed and self._read(member):
            pass

    def _on_control(self, member: GroupMember, tag: int, body: bytes, fds: tuple[int, ...]) -> None:
        if member.offsets is not None and tag in (protocol.HEARTBEAT, protocol.READY):
            member.offsets.note(body)
            if member.offsets.seen < member.offsets.ENOUGH:
                self.post(member, protocol.PING, b"")
        if tag == protocol.HEARTBEAT:
            return
        if member.state is MemberState.FAILED:
            close_all(fds)
        elif tag == protocol.LOADED:
            member.time_to_load_s = None
        elif tag == protocol.READY:
            member.state = MemberState.IDLE
        elif tag == protocol.RETURNED:
            returned = protocol.decode_returned(body)
            if returned.number == self._calls:
                self._answers[member.rank] = returned.value
        elif tag == protocol.RAISED:
            raised = protocol.decode_raised(body)
            if raised.number == self._calls:
                self._answers[member.rank] = self._placed(member, raised.failure)
        elif tag == protocol.ENDED:
            member.state = MemberState.ENDED
            self._events.append(TaskEnded(member.rank))
        elif tag == protocol.FAILED:
            failure = self._placed(member, protocol.decode_failure(body))
            self._end_badly(member, failure, TaskFailed(member.rank, failure))
        else:
            member.frames.broken = f"a frame with the unknown tag {tag}"

    def _placed(self, member: GroupMember, failure: WorkerFailure) -> WorkerFailure:
        """What a worker says of its failure, completed. Its time becomes the driver's: that puts failures in order."""
        time_ns = failure.time_ns if member.offsets is None else member.offsets.drivers_ns(failure.time_ns)
        return dataclasses.replace(failure, rank=member.rank, time_ns=time_ns, log_path=member.request.log_path)

    def wall_offset(self, rank: int) -> float:
        offsets = self.members[rank].offsets
        return 0.0 if offsets is None else offsets.wall_ns / 1e9

    def fail(self, member: GroupMember, kind: FailureKind, message: str, **details: Any) -> None:
        details.setdefault("time_ns", time.monotonic_ns())
        self.fail_with(member, WorkerFailure(member.rank, kind, message, log_path=member.request.log_path, **details))

    def fail_with(self, member: GroupMember, failure: WorkerFailure) -> None:
        """The worker is lost; of interest only if how its task ended is not known."""
        if not member.is_over:
            self._end_badly(member, failure, WorkerDied(member.rank, failure))

    def _end_badly(self, member: GroupMember, failure: WorkerFailure, event: Event) -> None:
        """The one place where a worker fails: its state, the reason and the event go together."""
        member.state = MemberState.FAILED
        member.failure = failure
        member.time_to_load_s = None
        self._events.append(event)

    # Waiting

    def _wait_once(self, timeout: float, seen: int | None = None) -> None:
        self.reactor.run_once(timeout, seen)
        self.look()

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Serve events until the condition holds; False once `timeout` seconds have passed."""
        deadline = time.monotonic() + timeout
        while True:
            seen = self.reactor.rounds
            if condition():
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self.reactor.run_once(remaining, seen)

    def look(self) -> None:
        """Serve this group's timers. Call it after the reactor has served what was there to be heard."""
        with self.reactor.lock:
            now = time.monotonic()
            gap = now - self._last_look
            if gap < LOOK_EVERY_S:
                return
            self._last_look = now
            watched = min(gap, STALL_S, self._recheck_s / 2)  # Never all of it by one look.
            for member in self.members:
                member.watched_s += watched
                if member.time_to_load_s is not None:
                    member.time_to_load_s -= min(gap, STALL_S)
            self.look_after(now)
            overdue = self.overdue(now)
        if overdue:
            self._give_up_on(overdue)

    def _give_up_on(self, overdue: list[Overdue]) -> None:
        """All are asked for their stacks at once, and without the lock: other groups are served meanwhile."""
        rounds = self.reactor.rounds
        stacks = self.stacks(STACKS_WAIT_S)
        with self.reactor.lock:
            if self.reactor.rounds != rounds:  # Another thread has listened meanwhile.
                still_late = {late.member for late in self.overdue(time.monotonic())}
                overdue = [late for late in overdue if late.member in still_late]
            for late in overdue:
                text = stacks.get(late.member.rank, "")
                self.fail(late.member, late.kind, late.message, traceback=text, hint=late.hint)

    def overdue(self, now: float) -> list[Overdue]:
        """Loading a task imports the user's modules: that belongs to the start, which is limited."""
        text = f"the function was not loaded within start_timeout_s={self.placement.start_timeout_s:g} s"
        late = [member for member in self.members if (member.time_to_load_s or 0.0) < 0 and not member.gone]
        return [Overdue(member, "startup", text, hint=LATE_LOAD_HINT) for member in late]

    def silent(self, now: float) -> list[Overdue]:
        """For groups whose workers have a pulse: those that give no sign of life."""
        limit = self.placement.heartbeat_timeout_s or math.inf
        text = f"no sign of life for {limit:g} s: the process is stopped, or something holds the interpreter"
        silent = [member for member in self.members if member.is_silent(now, limit, self._recheck_s)]
        return [Overdue(member, "unresponsive", text) for member in silent]

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self.reactor.rounds
            remaining = MAX_WAIT_S if deadline is None else deadline - time.monotonic()
            self._wait_once(0.0 if self._events else remaining, seen)
            if self._events or (deadline is not None and time.monotonic() >= deadline):
                return self._take_events()

    def _take_events(self) -> list[Event]:
        """The only place where events leave the queue."""
        with self.reactor.lock:
            events, self._events = self._events, []
            return events

    def close_events(self) -> None:
        """The group has ended and nobody will poll again: let go what came with messages."""
        self._take_events()
        for member in self.members:
            member.arrivals.close()

    # Frames out

    def post(self, member: GroupMember, tag: int, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        self.reactor.check_owner()  # Before the lock, which another thread may have held at the fork.
        with self.reactor.lock:
            if member.gone or member.frames.closed:
                return
            member.frames.post_attached(tag, body, attachments)
            if member.frames.unsent:
                self.reactor.watch_writable(member.frames)

    def start(self, task: bytes, arguments: Sequence[bytes], attachments: Sequence[Attachment] = ()) -> None:
        if len(arguments) != self.world_size:
            raise ValueError(f"{self.world_size} workers need as many arguments, not {len(arguments)}")
        for member, argument in zip(self.members, arguments, strict=True):
            with self.reactor.lock:
                if member.state is MemberState.FAILED:
                    continue  # The event that says so is there to be polled.
                member.state = MemberState.WORKING
                member.time_to_load_s = self.placement.start_timeout_s
            self.post(member, protocol.TASK, task, attachments)
            self.post(member, protocol.RUN, argument)

    def reply(self, rank: int, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        self.post(self.members[rank], protocol.MESSAGE, body, attachments)

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
            self.post(self.members[rank], protocol.CALL, body)
        self._gather(wanted, name, timeout)
        failures = [answer for answer in self._answers.values() if isinstance(answer, WorkerFailure)]
        if failures:
            if self.world_size > 1:
                self.wait_for(lambda: self.first_lost() is not None, LOSS_SETTLE_S)
                self._raise_if_one_is_lost(name)
            first = min(failures, key=lambda failure: failure.time_ns)
            raise RemoteError(f"{name}() failed on rank {first.rank}: {first.message}\n{first.traceback}", first)
        return [msgspec.msgpack.decode(self._answers[rank]) for rank in wanted]  # type: ignore[arg-type]

    def first_lost(self) -> WorkerFailure | None:
        lost = [member.failure for member in self.members if member.failure is not None]
        return min(lost, key=lambda failure: failure.time_ns, default=None)

    def _raise_if_one_is_lost(self, name: str) -> None:
        """Whichever rank it is: the others may wait for it in a collective call, or fail because of it."""
        lost = self.first_lost()
        if lost is not None:
            raise WorkerDiedError(f"rank {lost.rank} was lost during {name}(): {lost.message}", lost)

    def _gather(self, wanted: list[int], name: str, timeout: float) -> None:
        """Wait until each of the ranks has answered the current call."""
        deadline = time.monotonic() + timeout
        while True:
            seen = self.reactor.rounds
            missing = [rank for rank in wanted if rank not in self._answers]
            if not missing:
                return
            self._raise_if_one_is_lost(name)
            if left := [rank for rank in missing if self.members[rank].has_left]:
                raise EngineError(f"rank {left[0]} has already ended; {name}() cannot be called there")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                text = f"{name}() did not return within {timeout:g} s on rank(s) {missing}"
                raise HangError(text, self.members[missing[0]].hangs(text, self.stacks()))
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
