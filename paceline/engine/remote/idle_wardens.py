"""Which wardens of an agent have had nothing to do for so long that their memory is worth more than their warmth.

A warden with a framework takes as much memory as all else that a node has between two fits. The one that was used last
most likely serves the next fit; the others have been replaced by it.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from typing import Protocol, TypeVar

WARM_S = 180.0
"""How long the warden that was used last is kept without workers: the next fit then begins with imports."""
SURPLUS_S = 20.0
"""How long the others are."""


class Warden(Protocol):
    @property
    def idle(self) -> bool: ...


Key = TypeVar("Key", bound=Hashable)


class IdleWardens:
    """Remembers when each was last seen at work, or asked for."""

    def __init__(self) -> None:
        self._used_at: dict[Hashable, float] = {}

    def used(self, key: Hashable) -> None:
        self._used_at[key] = time.monotonic()

    def overdue(self, wardens: Mapping[Key, Warden], now: float) -> list[Key]:
        """Those of the wardens, the one that was used last at the end, that are to be ended."""
        newest = next(reversed(list(wardens)), None)
        found = []
        for key, warden in wardens.items():
            if not warden.idle:
                self._used_at[key] = now
            elif now - self._used_at.setdefault(key, now) > (WARM_S if key == newest else SURPLUS_S):
                found.append(key)
        for key in found:
            del self._used_at[key]
        return found
