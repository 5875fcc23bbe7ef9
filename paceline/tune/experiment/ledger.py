"""Who holds how many of the machine's resources: plain bookkeeping, nothing is enforced.

A trial that asks for more than there is runs alone. GPUs are handed out by name, so that two
trials never share one by accident; a trial that asks for a part of one shares it on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.air.errors import ConfigError

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Request:
    """What one trial needs while it runs."""

    amounts: Mapping[str, float]
    gpus_per_worker: float = 0.0
    workers: int = 1

    @property
    def gpu_parts(self) -> tuple[int, float]:
        """(how many cards, how much of each)."""
        share = self.gpus_per_worker
        if share <= 0:
            return 0, 0.0
        if share >= 1:
            return math.ceil(share) * self.workers, 1.0
        per_card = int(1 / share + _ROUNDING)
        cards = -(-self.workers // per_card)
        return cards, min(1.0, share * min(self.workers, per_card))


@dataclass(frozen=True)
class Grant:
    """What a trial holds; given back as a whole."""

    amounts: Mapping[str, float]
    devices: tuple[str, ...] = ()
    share_of_each: float = 0.0


class Ledger:
    """The machine's resources and who holds them."""

    def __init__(self, total: Mapping[str, float], devices: Sequence[str] = ()) -> None:
        self.total = dict(total)
        self.used: dict[str, float] = dict.fromkeys(total, 0.0)
        self._free_share = dict.fromkeys(devices, 1.0)
        self._holders = 0

    @property
    def free(self) -> dict[str, float]:
        return {name: max(0.0, amount - self.used.get(name, 0.0)) for name, amount in self.total.items()}

    def check(self, request: Request) -> None:
        """Refuse what can never be had: a trial cannot do with fewer cards than it asks for."""
        (cards, _), there_are = request.gpu_parts, len(self._free_share)
        if cards > there_are:
            raise ConfigError(
                f"A trial asks for {request.amounts.get('GPU', 0):g} GPU(s), on {cards} card(s), and {there_are} can "
                "be seen here. Ask for fewer; CUDA_VISIBLE_DEVICES limits which are seen."
            )

    def fits(self, request: Request) -> bool:
        """Whether the trial may start now. One that is larger than the machine waits until it can be alone."""
        if self._holders == 0:
            return True
        free = self.free
        enough = all(amount <= free.get(name, 0.0) + _ROUNDING for name, amount in request.amounts.items())
        return enough and self._devices_for(request) is not None

    def take(self, request: Request) -> Grant:
        """Hand out what was asked for; of cards that there are not, none."""
        devices = self._devices_for(request) or ()
        _, share = request.gpu_parts
        for name, amount in request.amounts.items():
            self.used[name] = self.used.get(name, 0.0) + amount
        for device in devices:
            self._free_share[device] -= share
        self._holders += 1
        return Grant(dict(request.amounts), devices, share)

    def give_back(self, grant: Grant) -> None:
        for name, amount in grant.amounts.items():
            left = self.used[name] - amount
            self.used[name] = left if left > _ROUNDING else 0.0
        for device in grant.devices:
            self._free_share[device] = min(1.0, self._free_share[device] + grant.share_of_each)
        self._holders -= 1

    def _devices_for(self, request: Request) -> tuple[str, ...] | None:
        """Cards with enough left, the fullest first, so that whole ones stay free; None if there are too few."""
        cards, share = request.gpu_parts
        usable = [device for device, free in self._free_share.items() if free + _ROUNDING >= share]
        if len(usable) < cards:
            return None
        usable.sort(key=lambda device: self._free_share[device])
        return tuple(usable[:cards])
