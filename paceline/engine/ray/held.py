"""Room that is held before a group starts: a search reserves it for its trials.

Room that is given back is held for a moment longer: the next trial most likely wants the same, and a new placement
group takes as long as the start of a worker. Where there is no room, one placement group of each shape waits in Ray's
own queue, so that a search gets its turn beside other programs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.engine import base
from paceline.engine.base import Placement
from paceline.engine.ray.agents import Agents
from paceline.engine.ray.connection import Connection
from paceline.engine.ray.reservation import Reservation, check_feasible, created, others
from paceline.engine.ray.room import bundles_of, fits

UNUSED_S = 0.5
"""How long room is held that nobody uses, and a place in the queue that nobody asks for."""
CREATION_S = 0.1
"""How long Ray may take for a placement group that there is room for."""
LOOK_S = 0.05
"""How often a placement group in the queue is looked at."""
ROUNDING = 1e-6

Shape = tuple[Any, ...]


def shape_of(placement: Placement, on: Sequence[str] | None) -> Shape:
    """Placements of the same shape can have the same room, one after the other."""
    bundles = tuple(tuple(sorted(bundle.items())) for bundle in bundles_of(placement))
    return bundles, placement.world_size, placement.strategy, None if on is None else tuple(on)


class HeldRoom(base.Reservation):
    """Room for one group after the other, until it is released."""

    def __init__(self, owner: HeldRooms, shape: Shape, room: Reservation) -> None:
        self.shape = shape
        self.room = room
        self.made_at = time.monotonic()
        self.is_released = False
        self._owner = owner

    @property
    def is_lost(self) -> bool:
        return self.is_released or self._owner.is_lost(self)

    def covers(self, placement: Placement) -> bool:
        """Whether such a group needs no more than was reserved."""
        bundles, world_size, *_ = self.shape
        wanted = bundles_of(placement)
        if placement.world_size != world_size or len(wanted) > len(bundles):
            return False
        pairs = zip(wanted, map(dict, bundles), strict=False)
        return all(need <= held.get(name, 0.0) + ROUNDING for want, held in pairs for name, need in want.items())

    def release(self) -> None:
        self._owner.take_back(self)


@dataclass
class _Queued:
    """Room that there is none of yet."""

    held: HeldRoom
    avoided: set[str]
    asked_at: float = field(default_factory=time.monotonic)
    looked_at: float = 0.0


class HeldRooms:
    """All of one engine. Any thread may use it."""

    def __init__(self, connection: Connection, agents: Agents) -> None:
        self._connection = connection
        self._agents = agents
        self._asking = threading.Lock()
        """Held while the cluster is asked, for as long as that takes: `take_back` does without it."""
        self._lock = threading.Lock()
        """Held for a moment only, when one of these changes."""
        self._unused: list[tuple[float, HeldRoom]] = []
        self._queued: dict[Shape, _Queued] = {}
        self._timer: threading.Timer | None = None

    def reserve(self, placement: Placement, on: Sequence[str] | None = None) -> HeldRoom | None:
        check_feasible(placement, self._agents)
        shape = shape_of(placement, on)
        with self._asking:
            try:
                return self._unused_of(shape) or self._from_queue(shape, placement, on)
            finally:
                self._watch()

    def take_back(self, held: HeldRoom) -> None:
        """The cluster, which may not answer, is not asked here: whoever reserves looks whether the room is sound."""
        with self._lock:
            if held.is_released:
                return
            held.is_released = True
            self._unused.append((time.monotonic(), held))
        self._watch()

    def is_lost(self, held: HeldRoom) -> bool:
        nodes, lost_at = self._agents.nodes(), self._agents.lost_at()
        used = {*held.room.node_ids, *held.room.beside_ids}
        return any(node_id not in nodes or lost_at.get(node_id, 0.0) > held.made_at for node_id in used)

    def what_is_gone(self, placement: Placement) -> str:
        """See `Engine.what_is_gone`."""
        if fits(placement, [node.resources for node in self._agents.nodes().values()]):
            return ""
        return ", ".join(sorted(node.label for node in self._agents.left.values()))

    def close(self) -> None:
        self.drop_unused()
        self._drop_queued()
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    # What is there, or will be

    def _unused_of(self, shape: Shape) -> HeldRoom | None:
        with self._lock:
            alike = [entry for entry in self._unused if entry[1].shape == shape]
        for entry in alike:
            if not self.is_lost(entry[1]) and self._take_out(entry):
                return HeldRoom(self, shape, entry[1].room)
        self.drop_unused()  # It may be what the new one would have to wait for.
        return None

    def _take_out(self, entry: tuple[float, HeldRoom]) -> bool:
        """False if its time was up meanwhile."""
        with self._lock:
            is_there = entry in self._unused
            if is_there:
                self._unused.remove(entry)
            return is_there

    def _from_queue(self, shape: Shape, placement: Placement, on: Sequence[str] | None) -> HeldRoom | None:
        with self._lock:
            queued = self._queued.pop(shape, None)  # While it is looked at, its time is not up.
        is_placed, wait_s = False, 0.0
        try:
            if queued is not None and not self._is_possible(queued, placement):
                queued.held.room.give_back()
                queued = None
            if queued is None:
                queued, wait_s = self._enqueue(shape, placement, on), CREATION_S
            if time.monotonic() - queued.looked_at >= LOOK_S:
                is_placed = queued.held.room.is_placed(wait_s)
                queued.looked_at = time.monotonic()
            return queued.held if is_placed else None
        finally:
            if queued is not None and not is_placed:
                queued.asked_at = time.monotonic()
                with self._lock:
                    self._queued[shape] = queued

    def _is_possible(self, queued: _Queued, placement: Placement) -> bool:
        """Nodes may have left since: those that were to be avoided are needed then."""
        remaining = [node.resources for node in others(self._agents, queued.avoided)]
        return not queued.avoided or fits(placement, remaining)

    def _enqueue(self, shape: Shape, placement: Placement, on: Sequence[str] | None) -> _Queued:
        avoided = self._agents.suspects() & self._agents.nodes().keys()
        if not fits(placement, [node.resources for node in others(self._agents, avoided)]):
            avoided = set()
        return _Queued(HeldRoom(self, shape, created(self._connection, placement, avoided, on)), avoided)

    # What nobody asks for

    def drop_unused(self, since: float = float("inf")) -> None:
        """Give back what was released before `since`: somebody else may need it."""
        with self._lock:
            late = [held for at, held in self._unused if at <= since]
            self._unused = [entry for entry in self._unused if entry[0] > since]
        for held in late:
            held.room.give_back()

    def _drop_queued(self, since: float = float("inf")) -> None:
        with self._lock:
            late = [shape for shape, queued in self._queued.items() if queued.asked_at <= since]
            dropped = [self._queued.pop(shape) for shape in late]
        for queued in dropped:
            queued.held.room.give_back()

    def _watch(self) -> None:
        """Look again in a moment, as long as there is something that may have to go."""
        with self._lock:
            if self._timer is None and (self._unused or self._queued):
                self._timer = threading.Timer(UNUSED_S / 2, self._let_go)
                self._timer.daemon = True
                self._timer.start()

    def _let_go(self) -> None:
        since = time.monotonic() - UNUSED_S
        self.drop_unused(since)
        self._drop_queued(since)
        with self._lock:
            self._timer = None
        self._watch()
