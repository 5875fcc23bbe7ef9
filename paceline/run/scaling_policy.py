"""How many workers the next attempt of an elastic run has: a pure decision, from what the engine has room for.

A policy is a function of a ScalingSituation. `ScalingConfig(policy=...)` replaces the default, which uses all the room
there is, and makes a running group larger but never smaller: that only a lost or draining node does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline.air.errors import ConfigError

Occasion = Literal["start", "look", "resize", "failed", "node_lost", "preempted"]
"""Why the policy is asked. start: before the first attempt of this driver; look: workers are at work, and there may be
room for more; resize: they have ended because the policy wanted another size; failed: the last attempt failed, for any
reason but the next two; node_lost, preempted: it lost a node, or was told to leave one."""


@dataclass(frozen=True)
class ScalingSituation:
    """What a policy decides by."""

    min_workers: int
    max_workers: int
    room: int | None
    """How many workers the run could have now, those that are at work included; None: no limit is known."""
    current: int
    """How many workers are at work, or were in the last attempt; 0 before the first one."""
    occasion: Occasion

    @property
    def fitting(self) -> int | None:
        """The largest size that there is room for; None if there is not even room for `min_workers`."""
        size = self.max_workers if self.room is None else min(self.room, self.max_workers)
        return size if size >= self.min_workers else None


ScalingPolicy: TypeAlias = Callable[[ScalingSituation], int | None]
"""Returns how many workers to use. None means: wait for room; or, while workers are at work, leave it at that."""


def use_all_room(situation: ScalingSituation) -> int | None:
    """The default policy."""
    if situation.occasion == "look":
        return max(situation.current, situation.fitting or 0)
    return situation.fitting


def decide_size(policy: ScalingPolicy, situation: ScalingSituation) -> int | None:
    """What the policy says, checked. A size that there is no room for means to wait for it."""
    size = policy(situation)
    if size is None:
        return None
    least, most = situation.min_workers, situation.max_workers
    if isinstance(size, bool) or not isinstance(size, int) or not least <= size <= most:
        raise ConfigError(
            f"ScalingConfig(policy=...) returned {size!r}: it must return a whole number from {least} to {most}, as "
            f"num_workers=({least}, {most}) says, or None to wait."
        )
    return size if situation.room is None or size <= situation.room else None
