"""How many workers an attempt gets, and what follows from a failure. Pure decisions; only the run acts on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.air.config import FailureConfig, ScalingConfig
from paceline.air.errors import AttemptFailure

_NEVER_RETRIED = frozenset({"startup", "storage"})
"""A worker that cannot start or a full disk fails the next time too: retrying hides it."""

_LONGEST_DELAY_S = 60.0


@dataclass(frozen=True)
class Start:
    """Start an attempt with so many workers."""

    workers: int


@dataclass(frozen=True)
class Retry:
    """Start another attempt after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Raise; `reason` says why no (further) retry was made."""

    reason: str


def decide_size(scaling: ScalingConfig) -> Start:
    """The decision before an attempt: as many workers as the user asked for."""
    return Start(scaling.num_workers or 1)


def decide_retry(config: FailureConfig, failures: Sequence[AttemptFailure], without_progress: int) -> Retry | GiveUp:
    """The decision after the last of `failures`.

    `without_progress` counts the attempts in a row, the last one included, that ended
    without a new checkpoint. The first retry is immediate: most failures are not the
    program's own. What keeps failing at the same place is tried ever more slowly.
    """
    cause = failures[-1].root_cause
    if cause.kind in _NEVER_RETRIED:
        return GiveUp(f"a {cause.kind} failure is not retried")
    if config.max_failures >= 0 and len(failures) > config.max_failures:
        retries = config.max_failures
        return GiveUp("max_failures is 0" if retries == 0 else f"all {retries} retries are used up")
    limit = config.max_attempts_without_progress
    if limit is not None and without_progress >= limit:
        return GiveUp(f"{without_progress} attempts in a row made no progress")
    if without_progress <= 1:
        return Retry(0.0)
    return Retry(min(2.0 ** (without_progress - 2), _LONGEST_DELAY_S))
