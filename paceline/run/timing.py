"""Where the time of a rank goes: its steps, and what it waits for in them.

The rank's session owns a `RankClock`. Shards and prepared loaders tell it about batches, the session about waits. Each
report takes along what has been measured since the last one. The values go to the journal, never into metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

from msgspec import Struct

SHORTEST_S = 0.005
"""Reports that follow each other faster than this share one measurement: nobody needs it for each of them, and a
report should cost what it cost before."""
ALWAYS = 16
"""Each of the first reports has a measurement of its own, however short its steps are."""

LOOK_AGAIN_S = 1.0
"""How often the collectives are asked about, after the first reports: asking takes some ten microseconds."""

TIME_COLUMNS = ("step_time_s", "data_wait_s", "report_wait_s", "checkpoint_wait_s", "collective_wait_s")
NOT_MEASURED = dict.fromkeys(TIME_COLUMNS, math.nan)


class StepTimes(Struct, frozen=True, array_like=True):
    """The steps of a rank that ended between two of its reports, and the waits in these steps; in microseconds."""

    steps: int
    step_us: int
    """The whole of the steps, waits included."""
    data_us: int = 0
    """Inside next() of a shard or of a prepared loader."""
    report_us: int = 0
    """Blocked in report() without a checkpoint, or until other ranks make the same call."""
    checkpoint_us: int = 0
    """In report() with a checkpoint: writing it, and waiting until it is committed or others are."""
    collective_us: int = 0
    """Waiting in collective operations, in those of the steps in which it was measured."""
    collective_steps: int = 0

    @property
    def step_s(self) -> float:
        """Seconds per step, as all that follow."""
        return self.step_us / self.steps / 1e6

    @property
    def data_s(self) -> float:
        return self.data_us / self.steps / 1e6

    @property
    def collective_s(self) -> float | None:
        """None if it was not measured."""
        return self.collective_us / self.collective_steps / 1e6 if self.collective_steps else None

    @property
    def own_s(self) -> float:
        """What the rank needs for itself: its work, and waiting for data. The others may have to wait that long."""
        own = self.step_s - (self.report_us + self.checkpoint_us) / self.steps / 1e6
        return max(0.0, own - (self.collective_s or 0.0))

    def per_step(self) -> dict[str, float]:
        """Seconds per step, by the names that `rank_dataframe` has."""
        if not self.steps:  # a file may say anything
            return NOT_MEASURED
        report_s, checkpoint_s = (part / self.steps / 1e6 for part in (self.report_us, self.checkpoint_us))
        collective_s = math.nan if self.collective_s is None else self.collective_s
        parts = (self.step_s, self.data_s, report_s, checkpoint_s, collective_s)
        return dict(zip(TIME_COLUMNS, parts, strict=True))


def sum_of(first: StepTimes, second: StepTimes) -> StepTimes:
    """Both together."""
    return StepTimes(
        first.steps + second.steps,
        first.step_us + second.step_us,
        first.data_us + second.data_us,
        first.report_us + second.report_us,
        first.checkpoint_us + second.checkpoint_us,
        first.collective_us + second.collective_us,
        first.collective_steps + second.collective_steps,
    )


class RankClock:
    """Measures the steps of one rank. Used by the thread that trains; times are those of `perf_counter()`.

    A step ends when a batch is handed out, or with a report if no batch was taken since the report before it. Whatever
    happens before the first batch or report is not a step, so the time to set up does not count.
    """

    __slots__ = (
        "_ask_collectives",
        "_ask_next",
        "_checkpoint_s",
        "_data_s",
        "_ended",
        "_entered",
        "_open_checkpoint_s",
        "_open_data_s",
        "_open_report_s",
        "_quick_steps",
        "_quiet_until",
        "_report_s",
        "_sent",
        "_step_s",
        "_steps",
        "_took_batch",
        "_total",
        "stood_still_s",
    )

    def __init__(self) -> None:
        self.stood_still_s = 0.0
        """In all."""
        self._ended: float | None = None
        """When the last step did; None before the first one begins."""
        self._took_batch = False
        """Since the last report."""
        self._entered = 0.0
        """When report() was last called."""
        self._quiet_until = 0.0
        """Until then reports are only counted."""
        self._quick_steps = 0
        """Those that were, since the last step that was looked at."""
        self._sent = self._total = 0
        """Measurements, and the steps in them."""
        self._ask_collectives: Callable[[int], float | None] | None = None
        self._ask_next = 0.0
        self._open_data_s = self._open_report_s = self._open_checkpoint_s = 0.0
        """Waits of the step that is under way."""
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._step_s = self._data_s = self._report_s = self._checkpoint_s = 0.0

    # -- what shards and loaders call -----------------------------------------------------

    def took_batch(self, asked: float, given: float) -> None:
        """The loop has asked for a batch and been given it."""
        if self._ended is not None:
            self._data_s += given - asked
        self._end_step(given)
        self._took_batch = True

    def waited_for_data(self, seconds: float) -> None:
        """The loop has waited for rows that are not a batch: no step ends with them."""
        self._open_data_s += seconds

    def stood_still(self, seconds: float) -> None:
        """The rank was in the debugger, or waited for one that was: that says nothing about its steps."""
        self.stood_still_s += seconds
        if self._ended is not None:
            self._ended += seconds

    def measure_collectives(self, ask: Callable[[int], float | None]) -> None:
        """`ask` is given the number of steps so far. It says for how long the rank waited in the collective operations
        of a recent one, in seconds; None if it knows nothing new."""
        self._ask_collectives = ask

    # -- what the session calls -----------------------------------------------------------

    def reporting(self) -> StepTimes | None:
        """report() is called. Returns what it takes along."""
        self._entered = now = perf_counter()
        if self._took_batch:
            self._took_batch = False
        elif now < self._quiet_until:
            self._quick_steps += 1
            return None
        else:
            self._end_step(now)
        if (self._step_s < SHORTEST_S and self._sent >= ALWAYS) or not self._steps:
            return None
        self._sent += 1
        if self._sent >= ALWAYS:
            self._quiet_until = now + SHORTEST_S
        self._total += self._steps
        waited = self._waited_in_collectives(now) if self._ask_collectives is not None else None
        measured = StepTimes(
            self._steps,
            round(self._step_s * 1e6),
            round(self._data_s * 1e6),
            round(self._report_s * 1e6),
            round(self._checkpoint_s * 1e6),
            *((round(waited * 1e6), 1) if waited is not None else ()),
        )
        self._clear()
        return measured

    def _waited_in_collectives(self, now: float) -> float | None:
        if self._ask_collectives is None or (self._sent > ALWAYS and now < self._ask_next):
            return None
        self._ask_next = now + LOOK_AGAIN_S
        return self._ask_collectives(self._total)

    def reported(self, *, with_checkpoint: bool) -> None:
        """report() returns, after it had something to wait for."""
        spent = perf_counter() - self._entered
        if with_checkpoint:
            self.waited_for_checkpoint(spent)
        else:
            self.waited_for_ranks(spent)

    def waited_for_ranks(self, seconds: float) -> None:
        """The session was blocked until others had come as far."""
        self._open_report_s += seconds

    def waited_for_checkpoint(self, seconds: float) -> None:
        """The session was busy with a checkpoint, or waited for one."""
        self._open_checkpoint_s += seconds

    def _end_step(self, now: float) -> None:
        """A step ends and the next one begins. The first time, one only begins: what came before was setting up."""
        began, self._ended = self._ended, now
        if began is not None:
            self._steps += 1 + self._quick_steps
            self._step_s += now - began
        self._quick_steps = 0
        if self._open_data_s or self._open_report_s or self._open_checkpoint_s:
            if began is not None:
                self._data_s += self._open_data_s
                self._report_s += self._open_report_s
                self._checkpoint_s += self._open_checkpoint_s
            self._open_data_s = self._open_report_s = self._open_checkpoint_s = 0.0
