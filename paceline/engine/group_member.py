"""What the driver knows about one worker of a ChannelGroup."""

from __future__ import annotations

import dataclasses
import enum
import time
from typing import Any

from paceline.air.attachment import Arrivals
from paceline.air.errors import FailureKind, WorkerFailure
from paceline.engine import protocol
from paceline.engine.base import WorkerRequest
from paceline.engine.frames import FrameSocket


class MemberState(enum.Enum):
    """Where a worker is between its start and its end."""

    STARTING = "not ready yet"
    IDLE = "ready for calls and for a task"
    WORKING = "its task was started"
    ENDED = "its task returned"
    FAILED = "its task raised, or the worker was lost: it has nothing more to say"


class Listened:
    """How long the driver has listened to a group; a gap in which it could not counts little."""

    s = 0.0


class GroupMember:
    """What the driver knows about one worker."""

    def __init__(self, request: WorkerRequest, frames: FrameSocket) -> None:
        self.request = request
        self.rank = request.rank
        self.frames = frames
        self.arrivals = Arrivals()
        self.offsets: protocol.ClockOffsets | None = None
        """None: it has the driver's clocks."""
        self.state = MemberState.STARTING
        self.gone = False
        """The process is known to be dead."""
        self.last_seen = time.monotonic()
        self.listened = Listened()
        self.listened_before_s = 0.0
        """How long the driver had listened then."""
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

    def failed(self, kind: FailureKind, message: str, **details: Any) -> WorkerFailure:
        """What the driver says of the worker's failure; details are other fields."""
        details.setdefault("time_ns", time.monotonic_ns())
        return WorkerFailure(self.rank, kind, message, log_path=self.request.log_path, **details)

    def completed(self, failure: WorkerFailure) -> WorkerFailure:
        """What the worker itself says of its failure. Its time becomes the driver's: that puts failures in order."""
        time_ns = failure.time_ns if self.offsets is None else self.offsets.drivers_ns(failure.time_ns)
        return dataclasses.replace(failure, rank=self.rank, time_ns=time_ns, log_path=self.request.log_path)

    @property
    def is_awaited(self) -> bool:
        """It shall give signs of life."""
        return self.state is MemberState.IDLE or self.state is MemberState.WORKING

    def is_silent(self, now: float, limit: float, recheck_s: float) -> bool:
        """It gave no sign of life for longer than it may, though the driver has really listened for one."""
        is_late = now - self.last_seen > limit and self.listened.s - self.listened_before_s >= recheck_s
        return is_late and self.is_awaited and self.death_deadline is None

    def heard(self) -> None:
        self.last_seen = time.monotonic()
        self.listened_before_s = self.listened.s
