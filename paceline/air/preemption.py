"""Preemption: what a worker learns about an end that somebody else has set."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Preemption:
    """The workers have to go: the machine is wanted back, or whoever runs the job ends it."""

    reason: str
    """Who said so, such as ``"SIGTERM to rank 1"``."""
    deadline: float
    """When the workers are killed, by this machine's wall clock (`time.time()`)."""

    @property
    def seconds_left(self) -> float:
        """Time until the deadline; 0 when it has passed."""
        return max(0.0, self.deadline - time.time())
