"""One driver per place on remote storage.

No system drops a lock there when its holder dies, so the right to write is a lease that its holder renews. The leases
of a place are numbered files in one folder, and the highest number counts. Only its holder writes such a file. Taking
over means creating the next number, which the store lets one caller do. A holder that comes back after it was replaced
finds a higher number than its own; what it still writes to its own file harms nobody.

Nobody compares the clocks of two machines. A lease expires when its file has not changed for `LEASE_SECONDS`: before
the contender came by the store's own timestamps, from then on by the contender's clock. The holder counts from the
moment before its last renewal and stops `LEASE_SECONDS - GIVE_UP_SECONDS` before anybody may replace it.

A holder with `patience_s` does not give up then. It writes nothing while it cannot renew, and when the store answers
again, it takes the next number as any contender would: if somebody was faster, it has lost the lease for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from paceline.air.errors import RunLockedError, StorageError
from paceline.storage.filesystem import Filesystem
from paceline.storage.lock import describe_this_process, is_of_this_process, is_provably_dead
from paceline.storage.outage import StoreAwayError

LEASE_SECONDS = 60.0
"""A lease that was not renewed for this long may be taken over."""
RENEW_SECONDS = 15.0
GIVE_UP_SECONDS = 45.0
"""A holder that could not renew for this long never writes again."""
POLL_SECONDS = 1.0
"""How often a contender looks, and how soon a failed renewal is tried again."""

_NUMBER = re.compile(r"\d{6,}")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that nobody can set, and that keeps counting while the machine is suspended."""

_held: set[str] = set()
"""The tokens of the leases that this process holds."""


class Lease:
    """The exclusive right to write one place on remote storage."""

    def __init__(self, filesystem: Filesystem, folder: str = "lease") -> None:
        self._filesystem = filesystem
        self._folder = folder
        self.patience_s = 0.0
        """For how long after GIVE_UP_SECONDS the holder waits for a store that is out of reach."""
        self._pid = os.getpid()
        self._number = 0
        """0: never acquired."""
        self._holder: dict[str, Any] = {}
        self._renewed_at = 0.0
        self._why_not = ""
        """Why the last renewal failed."""
        self._lost = ""
        """Why this driver may not write any more."""
        self._released = threading.Event()
        self._writing = threading.Lock()
        """The release is the last thing that is written."""

    # -- getting it -----------------------------------------------------------------------

    def acquire(self, announce: Callable[[str], None] | None = None) -> None:
        """Take the lease. Waits at most LEASE_SECONDS for that of a silent holder; a live one raises RunLockedError.

        Before a wait, `announce` is called once with a message that says how long it may take.
        """
        number, text = self._look()
        if number and not _is_free(text):
            number = self._wait_for_expiry(number, text, announce)
        self._take(number + 1)

    def _wait_for_expiry(self, number: int, text: str, announce: Callable[[str], None] | None) -> int:
        if is_of_this_process(_parsed(text)):
            raise self._refusal(text, "It is this very process")
        deadline = now() + LEASE_SECONDS - self._filesystem.age(self._name(number))
        if announce is not None and deadline > now():
            announce(
                f"Waiting at most {deadline - now():.0f} s for {_named(text)}, which was writing "
                f"{self._filesystem.label} and may be gone. Press Ctrl-C to give up."
            )
        while True:
            seen, seen_text = self._look()
            if _is_free(seen_text):
                return seen
            if (seen, seen_text) != (number, text):
                raise self._refusal(seen_text, "It has just renewed its lease")
            left = deadline - now()
            if left <= 0:
                return number
            pause(min(POLL_SECONDS, left))

    def _take(self, number: int) -> None:
        self._holder = {**describe_this_process(), "token": secrets.token_hex(16), "renewals": 0}
        began, text, name = now(), json.dumps(self._holder), self._name(number)
        # A put whose answer got lost is sent again and then finds its own file.
        if not self._filesystem.create_exclusive(name, text) and self._read(number) != text:
            raise self._refusal(self._read(number), "It was faster")
        numbers = self._numbers()
        if numbers[-1:] != [number]:  # the file that the number follows was cleaned up meanwhile, by a later holder
            self._filesystem.delete(name)
            raise self._refusal(self._read(max(numbers, default=0)), "It was faster")
        self._number, self._renewed_at = number, began
        self._lost = ""
        _held.add(self._holder["token"])
        with contextlib.suppress(StorageError):  # the next holder tries again
            for earlier in numbers[:-1]:
                self._filesystem.delete(self._name(earlier))
        self._released = threading.Event()
        threading.Thread(target=self._keep_renewing, args=[self._released], name="paceline-lease", daemon=True).start()

    # -- holding it -----------------------------------------------------------------------

    def _keep_renewing(self, released: threading.Event) -> None:
        wait_s = RENEW_SECONDS
        while not released.wait(wait_s) and not self._lost:
            try:
                self.renew()
                wait_s = RENEW_SECONDS
            except Exception as error:
                self._why_not = str(error)
                wait_s = min(POLL_SECONDS, RENEW_SECONDS)

    def renew(self) -> None:
        """Show others that the holder is alive. Called every RENEW_SECONDS by a thread of the lease."""
        with self._writing:
            self.raise_if_lost()
            if self.has_lapsed:
                self._take_next()
                return
            began = now()
            self._holder["renewals"] += 1
            self._filesystem.write_text(self._name(self._number), json.dumps(self._holder))
            self._require_newest()
            self._raise_if_lapsed()  # too late is never made good: somebody may be about to take over
            self._renewed_at, self._why_not = began, ""

    def _take_next(self) -> None:
        """Nobody else has the lease, as far as is known here: take it like somebody who comes anew."""
        began, text, name = now(), json.dumps(self._holder), self._name(self._number + 1)
        # A put whose answer got lost is sent again and then finds its own file.
        if not self._filesystem.create_exclusive(name, text) and self._read(self._number + 1) != text:
            self._lose(f"{_named(self._read(self._number + 1))} has taken over")
            self.raise_if_lost()
        self._number += 1
        self._require_newest()
        self._renewed_at, self._why_not = began, ""
        with contextlib.suppress(StorageError):  # the next holder tries again
            self._filesystem.delete(self._name(self._number - 1))

    def check(self) -> None:
        """Raise StorageError unless this driver holds the lease, as the store says. Call it before each commit."""
        if not self._number:
            return
        self._raise_if_lapsed()
        self._require_newest()
        self._raise_if_lapsed()  # asking may have taken long

    @property
    def has_lapsed(self) -> bool:
        """It was not renewed for so long that somebody else may be about to take it."""
        return bool(self._number) and now() - self._renewed_at > GIVE_UP_SECONDS

    def _raise_if_lapsed(self) -> None:
        self.raise_if_lost()
        if self.has_lapsed:
            raise StoreAwayError(f"{self._filesystem.label} is out of reach: {self._why_not or 'it did not answer'}")

    def raise_if_lost(self) -> None:
        """Raise StorageError if this driver may not write any more, as far as is known here."""
        if not self._number:
            return
        silent = now() - self._renewed_at
        if not self._lost and silent > GIVE_UP_SECONDS + self.patience_s:
            reason = self._why_not or "the store did not answer, or this process was stopped"
            self._lose(f"the lease could not be renewed for {silent:.0f} s: {reason}")
        if not self._lost and self._released.is_set():
            self._lose("the lease was released")
        if self._lost:
            raise StorageError(
                f"this driver may no longer write {self._filesystem.label}: {self._lost}. Nothing more is stored "
                "there; restore the run to continue it"
            )

    def _require_newest(self) -> None:
        newest = max(self._numbers(), default=0)
        if newest != self._number:
            self._lose(f"{_named(self._read(newest))} has taken over" if newest else "the lease was deleted")
            self.raise_if_lost()

    def _lose(self, reason: str) -> None:
        self._lost = reason
        _held.discard(self._holder["token"])

    @property
    def failing(self) -> str:
        """Why the last renewal failed; "" if it did not, or if the lease is lost anyway."""
        return "" if self._lost else self._why_not

    def abandon(self) -> None:
        """Write no more. Nobody tells the store: the lease expires by itself."""
        if self._number:
            self._released.set()
            _held.discard(self._holder["token"])

    def release(self) -> None:
        """Release the lease. The file stays, so that a number is never used twice."""
        if not self._number or self._released.is_set() or os.getpid() != self._pid:
            return
        self.abandon()
        if self._lost or self._why_not:  # it expires by itself, and the store may be out of reach
            return
        if not self._writing.acquire(timeout=GIVE_UP_SECONDS):
            raise StorageError(f"the lease of {self._filesystem.label} could not be released: a renewal hangs")
        try:
            self._filesystem.write_text(self._name(self._number), json.dumps({**self._holder, "released": True}))
        finally:
            self._writing.release()

    # -- the store ------------------------------------------------------------------------

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:06d}"

    def _numbers(self) -> list[int]:
        names = (name.rpartition("/")[2] for name in self._filesystem.list(self._folder))
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def _look(self) -> tuple[int, str]:
        """The newest lease and its text; 0 if there never was one."""
        number = max(self._numbers(), default=0)
        return number, self._read(number)

    def _read(self, number: int) -> str:
        try:
            return self._filesystem.read_text(self._name(number))
        except FileNotFoundError:
            return ""

    def _refusal(self, text: str, why: str) -> RunLockedError:
        return RunLockedError(
            f"another driver is writing {self._filesystem.label}: {_named(text)}. {why}. Wait for it to end or stop "
            f"it; the lease is released when it ends normally, and expires {LEASE_SECONDS:.0f} s after it dies"
        )


def is_held(filesystem: Filesystem, folder: str = "lease") -> bool:
    """Whether a driver holds the lease of a place: it was neither released nor silent for `LEASE_SECONDS`.

    Nothing is written, so that it works where one may only read.
    """
    lease = Lease(filesystem, folder)
    number, text = lease._look()
    return bool(number) and not _is_free(text) and filesystem.age_seen(lease._name(number)) < LEASE_SECONDS


def _is_free(text: str) -> bool:
    holder = _parsed(text)
    if is_of_this_process(holder):
        return holder.get("token") not in _held
    return bool(holder.get("released")) or is_provably_dead(holder)


def _named(text: str) -> str:
    holder = _parsed(text)
    return (
        f"pid {holder.get('pid', 'unknown')} on host {holder.get('host', 'unknown')}, "
        f"since {holder.get('since', 'unknown')}"
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def now() -> float:
    return time.clock_gettime(_CLOCK)


def pause(seconds: float) -> None:
    time.sleep(seconds)
