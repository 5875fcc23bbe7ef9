"""The driver's side of a group whose workers talk in frames: shared by the process engines.

Subclasses bring workers to life, notice their ends and shut them down; here frames become events.

For subclasses: they write `launch` (by any name), `shutdown`, `stacks`, `processes` and `on_hangup`:

================  ================================================================================================
`attach`          takes a worker in and listens to it. In the order of ranks: `members[rank]` is used everywhere.
`enlist`, `hear`  the two halves of `attach`, where workers connect in any order; until then `frames` are closed ones.
`detach`          stops listening; before `member.frames.close()`. May be called again.
`post`            sends a frame of `protocol`; ignored if the worker is gone.
`wait_for`        listens until a condition holds, tried at least every 0.1 s. No timers run meanwhile.
`drain`           reads what a dead worker had sent. Before `fail_with`: after that, nothing of it is delivered.
`fail`            makes the failure and passes it to `fail_with`; details are other fields of WorkerFailure.
`fail_with`       the worker is lost: its event is WorkerDied. Ignored if how its task ended is known already.
`first_lost`      the earliest failure of a worker; for the start, when nobody polls for events yet.
`close_events`    at the end of `shutdown`: what is not polled yet is dropped.
`has_pulse`       False for workers without one: else those that are silent are asked for their stacks, and failed.
`member.gone`     the subclass sets it, when the process is known to have ended; then nothing is posted any more.
================  ================================================================================================

What it calls, always with the reactor's lock held, so that none of them may wait:

================  ================================================================================================
`on_hangup`       the channel has ended; it was detached before. Find out how the process ended, if it did.
`look_after`      timers of the subclass, about every 0.05 to 0.1 s while somebody polls, waits or executes.
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
from paceline.air.errors import FailureKind, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import (
    Event,
    Message,
    NodeDrains,
    Placement,
    TaskEnded,
    TaskFailed,
    WorkerDied,
    WorkerGroup,
)
from paceline.engine.calls import Calls
from paceline.engine.frames import ATTACHED, READ_SIZE, close_all
from paceline.engine.group_member import GroupMember, Listened, MemberState
from paceline.engine.places import WorkerPlace
from paceline.engine.reactor import READ, WRITE, Reactor

__all__ = ["ChannelGroup", "GroupMember", "MemberState"]

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


class ChannelGroup(WorkerGroup):
    """Turns frames into events; keeps the answers to calls apart from them."""

    has_pulse = True
    """Its workers give signs of life by themselves, every fifth of heartbeat_timeout_s."""

    def __init__(self, placement: Placement, places: tuple[WorkerPlace, ...], reactor: Reactor) -> None:
        self.placement = placement
        self.places = places
        self._pid = os.getpid()
        """A forked child of the driver must leave the group alone."""
        self.reactor = reactor
        self.members: list[GroupMember] = []
        self._events: list[Event] = []
        self._calls = Calls()
        self._starting: set[int] = set()
        """Ranks that are not ready yet."""
        self._time_to_load_s: dict[int, float] = {}
        """What is left to the ranks that have not loaded their task."""
        self._failures: list[WorkerFailure] = []
        self._draining: set[str] = set()
        """Machines of which it was said."""
        self._listened = Listened()
        self._silent_from = 0.0
        """Before that time, no worker can have been silent for too long."""
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
        self.enlist(member)
        self.hear(member)

    def enlist(self, member: GroupMember) -> None:
        if not self.places[member.rank].node.is_drivers:
            member.offsets = protocol.ClockOffsets()
        member.listened = self._listened
        self.members.append(member)
        self._starting.add(member.rank)

    def hear(self, member: GroupMember) -> None:
        self.reactor.add(member.frames.fileno(), lambda mask: self._on_channel(member, mask))

    def detach(self, member: GroupMember) -> None:
        """Do not listen any more."""
        if member.frames.fileno() >= 0:
            self.reactor.remove(member.frames.fileno())

    def _on_channel(self, member: GroupMember, mask: int) -> None:
        if mask & WRITE:
            self.reactor.flush(member.frames)
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

    def drain(self, member: GroupMember, *, is_alive: bool = False) -> None:
        """Deliver everything a worker sent before it died; a large message takes several reads. A worker that
        may be alive could keep sending: only what has arrived by now is read."""
        reads = 1 + member.frames.unread_bytes // READ_SIZE if is_alive else math.inf
        while reads > 0 and not member.frames.closed and self._read(member):
            reads -= 1

    def _on_control(self, member: GroupMember, tag: int, body: bytes, fds: tuple[int, ...]) -> None:
        offsets = member.offsets if tag in (protocol.HEARTBEAT, protocol.READY) else None
        if offsets is not None and offsets.note(body) and (question := offsets.question()) is not None:
            self.post(member, protocol.PING, question)
        if tag == protocol.HEARTBEAT:
            return
        if member.state is MemberState.FAILED:
            close_all(fds)
        elif tag == protocol.LOADED:
            self._time_to_load_s.pop(member.rank, None)
        elif tag == protocol.READY:
            member.state = MemberState.IDLE
            self._starting.discard(member.rank)
        elif tag == protocol.RETURNED:
            returned = protocol.decode_returned(body)
            self._calls.take(member.rank, returned.number, returned.value)
        elif tag == protocol.RAISED:
            raised = protocol.decode_raised(body)
            self._calls.take(member.rank, raised.number, member.completed(raised.failure))
        elif tag == protocol.ENDED:
            member.state = MemberState.ENDED
            self._events.append(TaskEnded(member.rank))
        elif tag == protocol.FAILED:
            failure = member.completed(protocol.decode_failure(body))
            self._end_badly(member, failure, TaskFailed(member.rank, failure))
        else:
            member.frames.broken = f"a frame with the unknown tag {tag}"

    def wall_offset(self, rank: int) -> float:
        offsets = self.members[rank].offsets
        return 0.0 if offsets is None else offsets.wall_ns / 1e9

    def fail(self, member: GroupMember, kind: FailureKind, message: str, **details: Any) -> None:
        self.fail_with(member, member.failed(kind, message, **details))

    def fail_with(self, member: GroupMember, failure: WorkerFailure) -> None:
        """The worker is lost; of interest only if how its task ended is not known."""
        if not member.is_over:
            self._end_badly(member, failure, WorkerDied(member.rank, failure))

    def _end_badly(self, member: GroupMember, failure: WorkerFailure, event: Event) -> None:
        """The one place where a worker fails: its state, the reason and the event go together."""
        member.state = MemberState.FAILED
        self._failures.append(failure)
        self._starting.discard(member.rank)
        self._time_to_load_s.pop(member.rank, None)
        self._events.append(event)

    # Waiting

    def listen(self, timeout: float, seen: int | None = None) -> None:
        """Serve what there is, or the first that comes within `timeout` seconds; then timers."""
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

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def look(self) -> None:
        """Serve this group's timers. Call it after the reactor has served what was there to be heard."""
        with self.reactor.lock:
            now = time.monotonic()
            gap = now - self._last_look
            if gap < LOOK_EVERY_S:
                return
            self._last_look = now
            self._listened.s += min(gap, STALL_S, self._recheck_s / 2)  # Never all of it by one look.
            for rank in self._time_to_load_s:
                self._time_to_load_s[rank] -= min(gap, STALL_S)
            self.look_after(now)
            overdue = self._overdue(now)
        if overdue:
            self._give_up_on(overdue)

    def _give_up_on(self, overdue: list[WorkerFailure]) -> None:
        """All are asked for their stacks at once, and without the lock: other groups are served meanwhile."""
        rounds = self.reactor.rounds
        traced = {rank for rank, usage in self.usage(STACKS_WAIT_S).items() if usage.is_traced}
        stacks = self.stacks(STACKS_WAIT_S)
        with self.reactor.lock:
            for rank in traced:  # Somebody looks at it in a debugger, and lets it go on later.
                self.members[rank].heard()
            overdue = [failure for failure in overdue if failure.rank not in traced]
            if self.reactor.rounds != rounds:  # Another thread has listened meanwhile.
                still_late = {failure.rank for failure in self._overdue(time.monotonic())}
                overdue = [failure for failure in overdue if failure.rank in still_late]
            for failure in overdue:
                text = stacks.get(failure.rank, "")
                self.fail_with(self.members[failure.rank], dataclasses.replace(failure, traceback=text))

    def _overdue(self, now: float) -> list[WorkerFailure]:
        """Of workers that took longer than they may: to load the task, or to give a sign of life."""
        # Loading a task imports the user's modules: that belongs to the start, which is limited.
        text = f"the function was not loaded within start_timeout_s={self.placement.start_timeout_s:g} s"
        late = [self.members[rank] for rank, left in self._time_to_load_s.items() if left < 0]
        failures = [member.failed("startup", text, hint=LATE_LOAD_HINT) for member in late if not member.gone]
        limit = self.placement.heartbeat_timeout_s
        if self.has_pulse and limit is not None and now > self._silent_from:
            text = f"no sign of life for {limit:g} s: the process is stopped, or something holds the interpreter"
            silent = [member for member in self.members if member.is_silent(now, limit, self._recheck_s)]
            failures += [member.failed("unresponsive", text) for member in silent]
            last_seen = (member.last_seen for member in self.members if member.is_awaited)
            self._silent_from = min(last_seen, default=now) + limit
        return failures

    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            seen = self.reactor.rounds
            self.listen(0.0 if self._events else deadline - time.monotonic(), seen)
            if self._events or time.monotonic() >= deadline:
                return self._take_events()

    def note_drain(self, node_id: str, seconds_left: float | None) -> None:
        """A machine is about to be taken away. May be called by any thread, and again."""
        with self.reactor.lock:
            if node_id not in self._draining:
                self._draining.add(node_id)
                nodes = [(place.rank, place.node) for place in self.places if place.node.node_id == node_id]
                self._events += [
                    NodeDrains(rank, f"{node.hostname} ({node.address})", seconds_left) for rank, node in nodes
                ]
                self.reactor.wake()

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
                self._time_to_load_s[member.rank] = self.placement.start_timeout_s
            self.post(member, protocol.TASK, task, attachments)
            self.post(member, protocol.RUN, argument)

    def reply(self, rank: int, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        self.post(self.members[rank], protocol.MESSAGE, body, attachments)

    def execute(
        self, fn: Callable[..., Any], *args: Any, ranks: Sequence[int] | None = None, timeout: float = 60.0
    ) -> list[Any]:
        return self._calls.run(self, fn, args, range(self.world_size) if ranks is None else ranks, timeout)

    def first_lost(self) -> WorkerFailure | None:
        return min(self._failures, key=lambda failure: failure.time_ns, default=None)

    @property
    def all_ready(self) -> bool:
        return not self._starting
