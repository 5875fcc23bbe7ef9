"""What the driver knows about one worker that talks in frames: its state, its clocks, when it was heard last."""

from __future__ import annotations

import dataclasses
import enum
import time
from collections.abc import Mapping
from typing import Final

from paceline.air.errors import FailureKind, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import WorkerRequest
from paceline.engine.frames import Arrivals, FrameSocket


class ClockOffsets:
    """How far the clocks of a worker on another machine are behind those of this process.

    A message that shows a worker's clocks can only arrive late. The smallest difference seen is therefore the closest
    to the truth, and at most as wrong as the quickest message took.
    """

    ENOUGH: Final = 5
    """So many messages are asked for at the start; later ones come anyway."""

    def __init__(self) -> None:
        self.monotonic_ns = 0
        self.wall_ns = 0
        self.seen = 0
        """How many messages have shown the clocks."""

    def note(self, shown: bytes) -> None:
        """The body of a frame that has just arrived."""
        if len(shown) != protocol.CLOCKS.size:  # From a worker that shows none.
            return
        monotonic_ns, wall_ns = protocol.CLOCKS.unpack(shown)
        behind = time.monotonic_ns() - monotonic_ns
        self.seen += 1
        if self.seen == 1 or behind < self.monotonic_ns:
            self.monotonic_ns, self.wall_ns = behind, time.time_ns() - wall_ns

    def drivers_ns(self, monotonic_ns: int) -> int:
        """A time of the worker's monotonic clock by the driver's: at the latest, and if nothing is known of the
        worker's clock, now."""
        now = time.monotonic_ns()
        return min(now, monotonic_ns + self.monotonic_ns) if self.seen else now


class MemberState(enum.Enum):
    """Where a worker is between its start and its end."""

    STARTING = "not ready yet"
    IDLE = "ready for calls and for a task"
    WORKING = "its task was started"
    ENDED = "its task returned"
    FAILED = "its task raised, or the worker was lost: it has nothing more to say"


class GroupMember:
    """What the driver knows about one worker."""

    def __init__(self, request: WorkerRequest, frames: FrameSocket) -> None:
        self.request = request
        self.rank = request.rank
        self.frames = frames
        self.arrivals = Arrivals()
        self.offsets: ClockOffsets | None = None
        """None: it has the driver's clocks."""
        self.state = MemberState.STARTING
        self.failure: WorkerFailure | None = None
        """Why the state is FAILED."""
        self.gone = False
        """The process is known to be dead."""
        self.last_seen = time.monotonic()
        self.watched_s = 0.0
        """How long the driver has listened since then; a gap in which it could not counts little."""
        self.time_to_load_s: float | None = None
        """What is left of the time to load the task; None once it is loaded."""
        self.death_deadline: float | None = None
        """Set when the process or its channel is gone, and how it ended is still to come."""

    @property
    def is_over(self) -> bool:
        """How its task ended is known."""
        return self.state in (MemberState.ENDED, MemberState.FAILED)

    @property
    def has_left(self) -> bool:
        """It does not answer any more."""
        return self.gone or (self.state is MemberState.ENDED and self.frames.closed)

    def hangs(self, message: str, stacks: Mapping[int, str]) -> WorkerFailure:
        """The failure to answer in time."""
        return WorkerFailure(
            self.rank,
            "hang",
            message,
            time_ns=time.monotonic_ns(),
            traceback=stacks.get(self.rank, ""),
            log_path=self.request.log_path,
        )

    def is_silent(self, now: float, limit: float, recheck_s: float) -> bool:
        """It gave no sign of life for longer than it may, though the driver has really listened for one."""
        is_awaited = self.state in (MemberState.IDLE, MemberState.WORKING) and self.death_deadline is None
        return is_awaited and now - self.last_seen > limit and self.watched_s >= recheck_s

    def heard(self) -> None:
        self.last_seen = time.monotonic()
        self.watched_s = 0.0


@dataclasses.dataclass(frozen=True)
class Overdue:
    """A worker that took longer than it may."""

    member: GroupMember
    kind: FailureKind
    message: str
    hint: str = ""
