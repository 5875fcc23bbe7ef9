"""The wardens of one process: at work, kept warm for the next fit, or due to end."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable

from paceline.engine.local.warden_client import WardenClient
from paceline.engine.reactor import Reactor

MOST_IDLE_WARDENS = 4
"""Each holds a framework in memory. The one that was not used for longest goes; one with workers never."""
WARM_S = 180.0
"""How long a node of a cluster keeps the warden that was used last. A warden with a framework takes
as much memory as everything else that a node has between two fits."""
SURPLUS_S = 20.0
"""How long it keeps the others: the one that was used last most likely serves the next fit."""


class Wardens:
    """Call its methods with the reactor's lock held. It never waits: whoever takes wardens from it ends them."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._by_key: dict[Hashable, WardenClient] = {}
        """The one that was used last is the last."""
        self._used_at: dict[Hashable, float] = {}
        self._unusable: list[WardenClient] = []

    def running(self) -> tuple[WardenClient, ...]:
        """The one that was used last is at the end."""
        return tuple(self._by_key.values())

    def get(self, preload: tuple[str, ...], circumstances: Hashable = None) -> WardenClient:
        """A warden that has loaded or is loading these modules, in the same circumstances."""
        key = preload, circumstances
        warden = self._by_key.pop(key, None)
        if warden is not None:
            warden.look()
        if warden is not None and (warden.lost or warden.load_error is not None):
            self._unusable.append(warden)
            warden = None
        if warden is None:
            warden = WardenClient(preload, self._reactor)
        self._by_key[key] = warden
        self._used_at[key] = time.monotonic()
        return warden

    def take_surplus(self) -> list[WardenClient]:
        """Those that cannot be used any more, and idle ones beyond the most that are kept."""
        unusable, self._unusable = self._unusable, []
        idle = [key for key, warden in self._by_key.items() if warden.idle]
        return unusable + self._take(idle[:-MOST_IDLE_WARDENS])

    def take_overdue(self) -> list[WardenClient]:
        """Those that have had no workers for so long that their memory is worth more than their warmth."""
        now = time.monotonic()
        newest = next(reversed(self._by_key), None)
        overdue = []
        for key, warden in self._by_key.items():
            if not warden.idle:
                self._used_at[key] = now
            elif now - self._used_at[key] > (WARM_S if key == newest else SURPLUS_S):
                overdue.append(key)
        return self._take(overdue)

    def take_all(self) -> list[WardenClient]:
        return self.take_surplus() + self._take(list(self._by_key))

    def _take(self, keys: Iterable[Hashable]) -> list[WardenClient]:
        taken = []
        for key in keys:
            taken.append(self._by_key.pop(key))
            del self._used_at[key]
        return taken
