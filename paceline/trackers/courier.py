"""The thread that delivers: all runs of a driver to one tracker, one after the other.

Reports never wait for it. It looks at the runs' journals now and then. When the service fails, it tries again, at
longer and longer intervals, and says so once. One thread is enough however many trials a search has, and services'
libraries are not called by two threads at the same time. It is a daemon: a call that hangs does not keep the process
alive.
"""

from __future__ import annotations

import re
import threading
import time
import traceback
from collections import deque
from typing import NamedTuple

from paceline.air.errors import JournalCorruptError
from paceline.trackers.delivery import Delivery
from paceline.trackers.tracker import RejectedError, Tracker
from paceline.trackers.values import cut

LOOK_EVERY_S = 0.5
"""How often journals that did not grow are looked at."""
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
"""Between two tries to reach a service that is down; `LAST_DELAY_S` when nothing is left but to wait for it."""
LAST_DELAY_S = 0.5
IDLE_S = 30.0
"""A thread without anything to deliver ends after this; the next run begins a new one."""
MOST_REST = 9.0
"""How long to rest after work at most, as a multiple of the CPU time that the work took."""
LONGEST_REST_S = 3.0
MISTAKES = (AttributeError, ImportError, NameError, NotImplementedError, TypeError)
"""Errors of code rather than of a service."""
_LONGEST_PROBLEM = 300
"""Characters of an error in a warning."""


class Left(NamedTuple):
    """What could not be delivered in time."""

    deliveries: list[Delivery]
    problem: str
    """What the service said last; empty if it is only slow."""


class Courier:
    """Delivers runs to a tracker, from `take` until `finish`."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._changed = threading.Condition()
        """Guards the attributes below."""
        self._deliveries: deque[Delivery] = deque()
        self._is_finishing = False
        self._is_over = False
        self._problem = ""
        self._is_broken = False
        """The tracker's own code fails. It is tried again, but nobody waits for it at the end."""
        self._has_warned = False
        self._warnings: list[str] = []
        self._rejections = 0
        self._manners = _Manners()
        self._thread: threading.Thread | None = None

    def take(self, delivery: Delivery) -> None:
        """Deliver this one too."""
        with self._changed:
            self._deliveries.append(delivery)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name=f"paceline-tracker-{self._tracker.name}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def take_warnings(self) -> list[str]:
        """What the user should know, each text once."""
        with self._changed:
            warnings, self._warnings = self._warnings, []
        return warnings

    @property
    def has_been_down(self) -> bool:
        """The user was warned that the service is not accepting data."""
        return self._has_warned

    def wait(self, timeout_s: float) -> bool:
        """Nothing new will come: wait until everything is delivered; False if that takes longer, but may happen."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._deliveries, timeout_s) or self._is_broken

    def finish(self, timeout_s: float, timeout_when_down_s: float) -> Left:
        """Wait until everything is delivered, for at most so long; the other limit holds while the service fails.

        The thread ends, or is left alone if it hangs.
        """
        began = time.monotonic()
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()
            while self._deliveries:
                limit = 0.0 if self._is_broken else min(timeout_s, timeout_when_down_s) if self._problem else timeout_s
                left_s = began + limit - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, LAST_DELAY_S))
            self._is_over = True
            self._changed.notify_all()
            left = Left(list(self._deliveries), self._problem)
            self._deliveries.clear()
        for delivery in left.deliveries:
            delivery.abandon()
        return left

    # -- in the thread --------------------------------------------------------------------

    def _serve(self) -> None:
        idle, failures = 0, 0
        while (delivery := self._next()) is not None:
            try:
                has_moved = delivery.advance()
            except Exception as error:  # the next try may succeed, and training does not depend on it
                failures += 1
                self._failed(delivery, error)
                longest = LAST_DELAY_S if self._is_finishing else LONGEST_DELAY_S
                self._rest(min(FIRST_DELAY_S * 2 ** (failures - 1), longest))
                continue
            if has_moved:
                idle, failures, self._problem, self._is_broken = 0, 0, "", False
                self._tell_of_rejections(delivery)
                if not self._is_finishing:
                    self._rest(self._manners.rest_s())
            else:
                idle += 1
            if not self._put_away(delivery) and idle >= len(self._deliveries):
                idle = 0
                delivery.notice_end()
                self._rest(LOOK_EVERY_S)

    def _next(self) -> Delivery | None:
        """The one whose turn it is; None if there is nothing to do, for now or for good."""
        with self._changed:
            self._changed.wait_for(lambda: self._deliveries or self._is_over, IDLE_S)
            if self._is_over or not self._deliveries:
                self._thread = None
                return None
            self._deliveries.rotate(-1)
            return self._deliveries[-1]

    def _rest(self, seconds: float) -> None:
        """Wait, unless something changes."""
        if seconds > 0:
            with self._changed:
                was_finishing = self._is_finishing
                self._changed.wait_for(lambda: self._is_over or self._is_finishing != was_finishing, seconds)

    def _put_away(self, delivery: Delivery) -> bool:
        """Forget a delivery that is done."""
        if not delivery.is_done:
            return False
        with self._changed:
            if delivery in self._deliveries:
                self._deliveries.remove(delivery)
            self._changed.notify_all()
        return True

    def _failed(self, delivery: Delivery, error: Exception) -> None:
        self._problem = _in_short(error)
        self._is_broken = isinstance(error, MISTAKES)
        what = delivery.run_dir.root.name
        if isinstance(error, RejectedError):
            why = f"{self._tracker.label} rejected {what}, which is no longer sent: {error}"
            self._give_up(delivery, f"{why.rstrip('.')}. The rows stay in the journal.")
        elif isinstance(error, JournalCorruptError):  # not the service's fault, and trying again does not repair it
            self._give_up(delivery, f"{what} is no longer sent to {self._tracker.label}: {error}")
        elif not self._has_warned:
            self._has_warned = True
            what = "fails in the tracker's own code" if self._is_broken else "is not accepting data"
            then = "works" if self._is_broken else "answers again"
            self._warn(
                f"{self._tracker.label} {what} ({self._problem}). Training continues. The rows stay in the run's "
                f"journal, and are sent when the tracker {then}."
            )

    def _give_up(self, delivery: Delivery, why: str) -> None:
        self._warn(_cleaned(why))
        delivery.abandon()
        self._put_away(delivery)

    def _tell_of_rejections(self, delivery: Delivery) -> None:
        notes, delivery.notes = delivery.notes, []
        if notes and not self._rejections:
            what = delivery.run_dir.root.name
            self._warn(
                f"{self._tracker.label} rejected parts of {what}, which are left out. The first is {_cleaned(notes[0])}"
            )
        self._rejections += len(notes)

    def _warn(self, text: str) -> None:
        with self._changed:
            self._warnings.append(text)


def _in_short(error: Exception) -> str:
    """What a service's library says, on one line; of a mistake, also where it is."""
    what = str(error) if type(error) in (ConnectionError, TimeoutError) else f"{type(error).__name__}: {error}"
    text = cut((_cleaned(what).splitlines() or [""])[0], _LONGEST_PROBLEM)
    if isinstance(error, MISTAKES) and error.__traceback__ is not None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text += f", at {frame.filename}:{frame.lineno}"
    return text


def _cleaned(text: str) -> str:
    """Without the password that the address of a service may contain."""
    return re.sub(r"://[^/@\s]*@", "://", text)


class _Manners:
    """Leaves the interpreter to those who need it more.

    The driver answers its workers in another thread of this interpreter, of which one can run at a time. Where that
    thread is busy, each second of work here is followed by several of rest; where it is not, nobody is disturbed.
    """

    def __init__(self) -> None:
        self._own = self._all = self._clock = 0.0

    def rest_s(self) -> float:
        """How long to rest now, after what was done since this was last called."""
        own, everybody, clock = time.thread_time(), time.process_time(), time.monotonic()
        spent, passed = own - self._own, max(clock - self._clock, 1e-3)
        others = max(0.0, everybody - self._all - spent) / passed
        is_first, self._own, self._all, self._clock = not self._clock, own, everybody, clock
        return 0.0 if is_first else min(LONGEST_REST_S, spent * min(MOST_REST, 20.0 * others))
