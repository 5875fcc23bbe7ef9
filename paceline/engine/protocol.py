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
"""Answer with a HEARTBEAT that repeats the body: its clocks are looked at."""

# Worker to driver
READY: Final = 16
"""The worker is set up; the body is `clocks()`."""
RETURNED: Final = 17
RAISED: Final = 18
ENDED: Final = 19
FAILED: Final = 20
"""A WorkerFailure: the task raised, or the worker could not be set up."""
HEARTBEAT: Final = 21
"""Nothing but a sign of life; the body is `clocks()`, with the question if it answers a PING."""
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
QUESTION: Final = struct.Struct("<q")
"""When it was asked, by the monotonic clock of the driver."""


def clocks(question: bytes = b"") -> bytes:
    """What this process's monotonic and wall clocks show, in nanoseconds, then the question if this answers one."""
    return CLOCKS.pack(time.monotonic_ns(), time.time_ns()) + question


class _Window:
    """What was seen of a worker's clocks for a while."""

    def __init__(self, behind: tuple[int, int], end_ns: int) -> None:
        self.end_ns = end_ns
        self.most = behind
        """How far both clocks are behind at the most: as far as they seemed in the message that came quickest."""
        self.least: int | None = None
        """The same for the monotonic clock at the least: a worker answers after it was asked."""
        self.asked = 0


class ClockOffsets:
    """How far the clocks of a worker on another machine are behind those of this process.

    A message that shows a worker's clocks can only arrive late, so they are at most as far behind as they seem. When it
    answers a question, its clocks were read after the question was sent, so they are at least as far behind as they
    seemed to be then. The truth is taken to be in the middle: a busy machine may well be slow to read all messages, but
    that makes it wrong by no more than half of what the quickest way there and back takes.
    """

    ENOUGH: Final = 5
    """So many questions are asked at the start of each window."""
    CLOSE_NS: Final = 500_000
    """More are asked as long as the quickest way there and back takes longer than this."""
    MOST: Final = 40
    """But not more than so many."""
    WINDOW_NS: Final = 600 * 10**9
    """What was seen more than two of these ago is forgotten: clocks drift, and are set."""

    def __init__(self) -> None:
        self.monotonic_ns = 0
        self.wall_ns = 0
        self._windows: list[_Window] = []
        """This one, and the one before."""
        self._awaits_answer = False

    def question(self) -> bytes | None:
        """What to ask a worker that has shown its clocks, so that it does so again; None if that is not needed now."""
        window = self._windows[0]
        if self._awaits_answer or self._is_known(window):
            return None
        window.asked += 1
        self._awaits_answer = True
        return QUESTION.pack(time.monotonic_ns())

    def _is_known(self, window: _Window) -> bool:
        if window.asked < self.ENOUGH:
            return False
        is_close = window.least is not None and window.most[0] - window.least <= self.CLOSE_NS
        return is_close or window.asked >= self.MOST

    def note(self, shown: bytes) -> bool:
        """Look at the body of a frame that has just arrived; False if it shows no clocks."""
        if len(shown) < CLOCKS.size:
            return False
        monotonic_ns, wall_ns = CLOCKS.unpack_from(shown)
        now = time.monotonic_ns()
        behind = (now - monotonic_ns, time.time_ns() - wall_ns)
        if not self._windows or now > self._windows[0].end_ns:
            self._windows = [_Window(behind, now + self.WINDOW_NS), *self._windows[:1]]
        window = self._windows[0]
        window.most = min(window.most, behind)
        if len(shown) == CLOCKS.size + QUESTION.size:
            (asked_ns,) = QUESTION.unpack_from(shown, CLOCKS.size)
            least = asked_ns - monotonic_ns
            window.least = least if window.least is None else max(window.least, least)
            self._awaits_answer = False
        self._conclude()
        return True

    def _conclude(self) -> None:
        most, wall_ns = min(window.most for window in self._windows)
        least = max((window.least for window in self._windows if window.least is not None), default=most)
        late = max(0, most - least) // 2  # Clocks that drift may contradict what they showed before.
        self.monotonic_ns, self.wall_ns = most - late, wall_ns - late

    def drivers_ns(self, monotonic_ns: int) -> int:
        """A time of the worker's monotonic clock by the driver's; if nothing is known of the worker's clock, now."""
        now = time.monotonic_ns()
        return min(now, monotonic_ns + self.monotonic_ns) if self._windows else now


encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_returned = msgspec.msgpack.Decoder(Returned).decode
decode_raised = msgspec.msgpack.Decoder(Raised).decode
decode_failure = msgspec.msgpack.Decoder(WorkerFailure).decode
