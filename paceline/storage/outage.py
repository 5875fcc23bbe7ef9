"""A store that is out of reach for a while.

A run that saves in the background outlasts that: its checkpoints wait on this disk, two at most, and are uploaded in
order when the store answers again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from paceline.air.errors import StorageError

OUTAGE_SECONDS = 600.0
"""How long such a run waits for its store before it fails."""
PAUSE_SECONDS = 1.0


class StoreAwayError(StorageError):
    """The store cannot be reached. It may answer again."""


def outlast(operation: Callable[[], None], limit_s: float, given_up: threading.Event) -> None:
    """Run an operation; while the store is away, run it again until `limit_s` have passed since it first was."""
    began: float | None = None
    while True:
        try:
            return operation()
        except StoreAwayError as error:
            began = began or time.monotonic()
            waited = time.monotonic() - began
            if waited >= limit_s or given_up.wait(min(PAUSE_SECONDS, limit_s)):
                if limit_s and not given_up.is_set():
                    raise StorageError(f"{error}. The store was out of reach for {waited:.0f} s") from error
                raise
