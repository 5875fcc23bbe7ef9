"""Whether a failed attempt is followed by another one: a pure decision, which only the run acts on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.air.config import FailureConfig
from paceline.air.errors import AttemptFailure, FailureKind, WorkerFailure
from paceline.air.failure_names import failure_names, named_in
from paceline.air.words import counted
from paceline.engine.failures import ENGINE_LOST

NOT_CHARGED: frozenset[FailureKind] = frozenset({"node_lost", "preempted", "worker_count"})
"""Not the program's fault: these are retried without counting towards max_failures."""

_NOT_BY_THEMSELVES = frozenset({"startup", "storage"})
"""Retried only if retry_on contains them: a worker that cannot start or a full disk fails the next time too."""

_LONGEST_DELAY_S = 60.0


@dataclass(frozen=True)
class Retry:
    """Start another attempt after `delay_s` seconds."""

    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Raise; `reason` says why no (further) retry was made."""

    reason: str


def is_charged(kind: FailureKind) -> bool:
    """Whether a failure of this kind counts towards max_failures and towards attempts without progress."""
    return kind not in NOT_CHARGED


def decide_retry(config: FailureConfig, failures: Sequence[AttemptFailure]) -> Retry | GiveUp:
    """The decision after the last of `failures`, which are all those of this run so far.

    The first retry is immediate: most failures are not the program's own. What keeps failing at the same place is
    tried ever more slowly.
    """
    last = failures[-1]
    cause = last.root_cause
    if cause.exception_type == ENGINE_LOST:
        return GiveUp("there is nothing left to start workers on")
    if name := named_in(cause, failure_names(config.never_retry, "never_retry")):
        return GiveUp(f"never_retry contains {name}")
    if last.is_charged and (reason := _why_not(config, cause) or _what_is_used_up(config, failures)):
        return GiveUp(reason)
    without_progress = len(_in_a_row(failures))
    if without_progress <= 1:
        return Retry(0.0)
    return Retry(min(2.0 ** (without_progress - 2), _LONGEST_DELAY_S))


def _why_not(config: FailureConfig, cause: WorkerFailure) -> str:
    """Why a failure of this class is not retried; empty if it is."""
    if config.retry_on is not None:
        is_named = named_in(cause, failure_names(config.retry_on, "retry_on"))
        return "" if is_named else "retry_on does not contain it"
    return f"a {cause.kind} failure is not retried" if cause.kind in _NOT_BY_THEMSELVES else ""


def _what_is_used_up(config: FailureConfig, failures: Sequence[AttemptFailure]) -> str:
    """Why there was the last retry; empty if there is another one."""
    charged, most = sum(failure.is_charged for failure in failures), config.max_failures
    if 0 <= most < charged:
        if most == 0:
            return "max_failures is 0"
        return "the only retry (max_failures=1) is used up" if most == 1 else f"all {most} retries are used up"
    without_progress = sum(failure.is_charged for failure in _in_a_row(failures))
    limit = config.most_attempts_without_progress
    if limit is not None and without_progress >= limit:
        return (
            f"{counted(without_progress, 'attempt')} in a row failed, and none came further than the first of them: no "
            "new checkpoint, no report with a higher index. The limit is "
            f"FailureConfig(max_attempts_without_progress={limit}); None removes it"
        )
    return ""


def _in_a_row(failures: Sequence[AttemptFailure]) -> Sequence[AttemptFailure]:
    """The last failures that came no further than the first of them, which is the newest one that made progress."""
    for position in reversed(range(len(failures))):
        if failures[position].made_progress:
            return failures[position:]
    return failures
