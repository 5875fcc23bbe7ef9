"""The phases of a run."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where a run is between two steps."""

    OPENED = "its files are open, and nobody knows"
    STARTING = "an attempt is to be started"
    LAUNCHING = "workers are coming up"
    RUNNING = "workers are at work"
    ENDING = "workers are going"
    SUSPENDED = "there are no workers, and there will be again"
    VALIDATING = "the training is over, and checkpoints are still validated"
    DONE = "there is a result"
