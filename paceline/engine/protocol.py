"""The tags of frames between a driver and its workers, and what their bodies hold."""

from __future__ import annotations

import struct
import time
from typing import Final

import msgspec

from paceline.air.errors import WorkerFailure

# Driver to worker
CALL: Final = 1
"""A Call: run a function now and answer RETURNED or RAISED."""
TASK: Final = 2
"""The pickled task, for the RUN that follows."""
RUN: Final = 3
"""Run the task; the body is its argument."""
MESSAGE: Final = 4
"""To or from the task; opaque here."""
EXIT: Final = 5
PING: Final = 6
"""Answer with a HEARTBEAT: its clocks are looked at."""

# Worker to driver
READY: Final = 16
"""The worker is set up; the body is `clocks()`."""
RETURNED: Final = 17
RAISED: Final = 18
ENDED: Final = 19
FAILED: Final = 20
"""A WorkerFailure: the task raised, or the worker could not be set up."""
HEARTBEAT: Final = 21
"""Nothing but a sign of life; the body is `clocks()`."""
LOADED: Final = 22
"""The task is unpickled; the user's own code runs from here on."""

RUN_ID_VARIABLE: Final = "PACELINE_RUN_ID"
"""Set for every worker: what it starts can be told from other runs by it."""
WORKER_FRAME_LIMIT: Final = 64 * 1024 * 1024
"""What a worker may send in one frame; checkpoints do not travel this way."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Call a pickled `(function, arguments)`."""

    number: int
    payload: bytes


class Returned(msgspec.Struct, frozen=True, array_like=True):
    """What a call returned, as plain data."""

    number: int
    value: msgspec.Raw


class Raised(msgspec.Struct, frozen=True, array_like=True):
    """A call raised, or returned something that is not plain data."""

    number: int
    failure: WorkerFailure


CLOCKS: Final = struct.Struct("<qq")


def clocks() -> bytes:
    """What the monotonic and the wall clock of this process show, in nanoseconds."""
    return CLOCKS.pack(time.monotonic_ns(), time.time_ns())


class ClockOffsets:
    """How far the clocks of a worker on another machine are behind those of this process.

    A message that shows a worker's clocks can only arrive late. The smallest difference seen is therefore the closest
    to the truth, and at most as wrong as the quickest message took.
    """

    ENOUGH: Final = 5
    """So many messages are asked for at the start; later ones come anyway."""
    WINDOW_NS: Final = 600 * 10**9
    """What was seen more than two of these ago is forgotten: clocks drift, and are set."""

    def __init__(self) -> None:
        self.monotonic_ns = 0
        self.wall_ns = 0
        self.seen = 0
        """How many messages have shown the clocks."""
        self._best: list[tuple[int, int]] = []
        """How far both clocks were behind in the quickest message of this window, and of the one before."""
        self._window_end = 0

    def note(self, shown: bytes) -> None:
        """The body of a frame that has just arrived."""
        if len(shown) != CLOCKS.size:  # From a worker that shows none.
            return
        monotonic_ns, wall_ns = CLOCKS.unpack(shown)
        now = time.monotonic_ns()
        behind = (now - monotonic_ns, time.time_ns() - wall_ns)
        self.seen += 1
        if not self._best or now > self._window_end:
            self._window_end = now + self.WINDOW_NS
            self._best = [behind, *self._best[:1]]
        else:
            self._best[0] = min(self._best[0], behind)
        self.monotonic_ns, self.wall_ns = min(self._best)

    def drivers_ns(self, monotonic_ns: int) -> int:
        """A time of the worker's monotonic clock by the driver's: at the latest, and if nothing is known of the
        worker's clock, now."""
        now = time.monotonic_ns()
        return min(now, monotonic_ns + self.monotonic_ns) if self.seen else now


encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_returned = msgspec.msgpack.Decoder(Returned).decode
decode_raised = msgspec.msgpack.Decoder(Raised).decode
decode_failure = msgspec.msgpack.Decoder(WorkerFailure).decode
