"""The driver's handle on the agent of one machine."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Protocol

import msgspec

from paceline.air.attachment import Attachment
from paceline.air.errors import FailureKind
from paceline.engine import protocol
from paceline.engine.channel_group import RECHECK_S, STALL_S
from paceline.engine.frames import ATTACHED, FrameSocket
from paceline.engine.reactor import READ, WRITE, Reactor
from paceline.engine.remote import messages
from paceline.engine.remote.shipments import Shipments
from paceline.engine.remote.tls import FDS_PER_CONNECTION

PING_S = 1.0
"""How often the driver shows that it is alive; more often where heartbeat_timeout_s is short."""
MOST_ROUNDS = 100
END_WAIT_S = 3.0
"""How long agents may take to end everything on their machines."""


class GroupOfLine(Protocol):
    """A group with workers on the machine."""

    def on_agent_message(self, line: AgentLine, message: messages.OfGroup) -> None: ...

    def on_agent_lost(self, line: AgentLine) -> None: ...

    def on_shipped(self, line: AgentLine) -> None: ...


class AgentLine:
    """It is lost when the agent hangs up, talks nonsense or falls silent; then another agent must be started."""

    def __init__(self, label: str, reactor: Reactor, *, is_encrypted: bool = False) -> None:
        """`is_encrypted` says that connections to the machine are."""
        self.label = label
        """Names the machine in messages."""
        self.fds_per_worker = FDS_PER_CONNECTION if is_encrypted else 1
        """What each worker on the machine costs the driver."""
        self.facts: messages.NodeFacts | None = None
        self.lost = ""
        """Why the agent was lost; empty while it is not."""
        self.lost_as: FailureKind = "engine"
        """Whether the machine is taken to be gone ("node_lost") or only the agent on it."""
        self.lost_at = 0.0
        self.offsets = protocol.ClockOffsets()
        self.groups: dict[int, GroupOfLine] = {}
        self.sees: dict[str, bool] = {}
        """By directory of the driver's: whether the machine sees it. Only those that it was asked about."""
        self.found: dict[str, bytes | None] = {}
        """By path: what the machine has read in a file that it was asked to look for; None until it answers."""
        self.late: dict[str, str] = {}
        """By path of such a file: its directory, if the answer did not come in time."""
        self._reactor = reactor
        self._pid = os.getpid()
        self._frames: FrameSocket | None = None
        self._last_heard = self._last_look = time.monotonic()
        self._watched_s = 0.0
        """How long the driver has listened since then; a gap in which it could not counts little."""
        self._last_ping = 0.0
        self._shipments = Shipments()

    @property
    def heard_at(self) -> float:
        """When the agent last said something (monotonic time)."""
        return self._last_heard

    @property
    def is_connected(self) -> bool:
        return self._frames is not None and not self._frames.closed

    def attach(self, sock: socket.socket) -> None:
        """The agent has dialled. One that has a connection already gets no second one."""
        if self._frames is not None or self.lost:
            sock.close()
            return
        self._frames = FrameSocket(sock)
        self._heard()
        self._reactor.add(sock.fileno(), self._on_frames)

    def tell(self, message: messages.ToAgent) -> None:
        with self._reactor.lock:
            if self._frames is not None and not self.lost:
                self._reactor.post(self._frames, messages.CONTROL, messages.encode(message))

    # Attachments: the agent has each of them once, and hands it to its workers

    def ship(self, attachment: Attachment) -> bool:
        """Whether the agent has all of it. If not, it is on its way: groups are told whenever one has arrived."""
        with self._reactor.lock:
            if not self._shipments.is_known(attachment):
                weakref.finalize(attachment, self._drop, self._shipments.add(attachment)).atexit = False
                self._ship_on()
            return self._shipments.is_there(attachment)

    def lend(self, attachment: Attachment, group: int, rank: int) -> None:
        self.tell(messages.Lend(self._shipments.number_of(attachment), group, rank))

    def _ship_on(self) -> None:
        """Have the next piece written, if there is nothing else to write: so nothing waits for more than a piece."""
        if self._frames is None:
            return
        while not self.lost and not self._frames.unsent:
            there = self._shipments.there
            piece = self._shipments.next_piece()
            if piece is not None:
                self._frames.queue(ATTACHED, piece)
                self._reactor.watch_writable(self._frames)
            while self._shipments.unwanted:
                self.tell(messages.Drop(self._shipments.unwanted.pop()))
            if self._shipments.there != there:
                for group in list(self.groups.values()):
                    group.on_shipped(self)
            elif piece is None:
                return

    def _drop(self, number: int) -> None:
        """The driver has no use for it any more. That is noticed anywhere, also in the middle of a `tell`."""
        if os.getpid() == self._pid and not self.lost:
            threading.Thread(target=self._drop_if_there, args=(number,), daemon=True).start()

    def _drop_if_there(self, number: int) -> None:
        with self._reactor.lock:
            if number < self._shipments.there:  # Else it is dropped when its turn has come.
                self.tell(messages.Drop(number))

    # Signs of life

    def look(self, now: float, heartbeat_timeout_s: float | None) -> None:
        """Show that the driver is alive; notice a machine that says nothing any more. Only for those who listen."""
        recheck_s = min(heartbeat_timeout_s or RECHECK_S, RECHECK_S)
        self._watched_s += min(now - self._last_look, STALL_S, recheck_s / 2)
        self._last_look = now
        self.ping(now, heartbeat_timeout_s)
        if self._frames is None or self.lost:
            return
        if heartbeat_timeout_s is not None and self.is_silent(now, heartbeat_timeout_s):
            self.lose_silent(heartbeat_timeout_s)

    def ping(self, now: float, heartbeat_timeout_s: float | None = None) -> None:
        """Show that the driver is alive. Also for those who do not listen: it does not count as a look."""
        if self._frames is None or self.lost:
            return
        if now - self._last_ping > min(PING_S, (heartbeat_timeout_s or PING_S) / 5):
            self._last_ping = now
            if not self._frames.unsent:  # Else what is on its way shows it.
                self.tell(messages.Ping())

    def is_silent(self, now: float, limit: float) -> bool:
        """For longer than `limit`, though the driver has really listened: if it was stopped, perhaps all were."""
        return now - self._last_heard > limit and self._watched_s >= min(limit, RECHECK_S)

    def lose_silent(self, limit: float) -> None:
        self.lose(f"{self.label} has given no sign of life for {limit:g} s", "node_lost")

    def _heard(self) -> None:
        self._last_heard = time.monotonic()
        self._watched_s = 0.0

    # What the agent says

    def _on_frames(self, mask: int) -> None:
        assert self._frames is not None
        if mask & WRITE:
            self._reactor.flush(self._frames)
            self._ship_on()
        if not mask & READ:
            return
        try:
            for _tag, body, _fds in self._frames.read():
                self._on_message(messages.decode_from_agent(body))
        except msgspec.MsgspecError as error:  # Of another version, say.
            self.lose(f"the agent of {self.label} sent something unreadable: {error}")
            return
        if self._frames.took_something:
            self._heard()
        if self._frames.closed or self._frames.broken:
            self.lose(f"the agent of {self.label} is gone")

    def _on_message(self, message: messages.FromAgent) -> None:
        if isinstance(message, messages.Pulse):
            self.offsets.note(message.clocks)
        elif isinstance(message, messages.NodeFacts):
            self.facts = message
        elif isinstance(message, messages.LastWords):
            self.lose(f"the agent of {self.label} ended with an error: {message.error}")
        elif isinstance(message, messages.Seen):
            if message.path in self.found:
                self.found[message.path] = message.content
            elif message.path in self.late:  # It answers at last: whether it sees the directory is open again.
                self.sees.pop(self.late.pop(message.path), None)
        else:
            group = self.groups.get(message.group)
            if group is not None:
                group.on_agent_message(self, message)

    # End

    def lose(self, why: str, kind: FailureKind = "engine") -> None:
        with self._reactor.lock:
            if self.lost:
                return
            self.lost, self.lost_as, self.lost_at = why, kind, time.monotonic()
            self._shipments.clear()
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


def catch_up(reactor: Reactor) -> None:
    """Hear what was said while nobody listened, such as that an agent has ended. For before a group is started."""
    for _ in range(MOST_ROUNDS):
        seen = reactor.rounds
        reactor.run_once(0.0)
        if reactor.rounds == seen:
            return


def end_agents(lines: Sequence[AgentLine], reactor: Reactor) -> None:
    """All at once; returns when they have ended everything on their machines, or do not answer."""
    for line in lines:
        line.tell(messages.Quit())
    deadline = time.monotonic() + END_WAIT_S
    while any(line.is_connected for line in lines) and time.monotonic() < deadline:
        reactor.run_once(deadline - time.monotonic())
    for line in lines:
        line.close()
