"""Retry or give up."""

from __future__ import annotations

from typing import get_args

import pytest

from paceline.air import FailureConfig
from paceline.air.errors import AttemptFailure, FailureKind, WorkerFailure
from paceline.engine.failures import ENGINE_LOST
from paceline.run.endings import GiveUp, Retry, decide_retry


def failures(count: int, kind: FailureKind = "exception") -> list[AttemptFailure]:
    return [AttemptFailure(number, WorkerFailure(0, kind, "it broke")) for number in range(count)]


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_the_budget_is_exact(budget: int) -> None:
    config = FailureConfig(max_failures=budget)
    for count in range(1, budget + 1):
        assert isinstance(decide_retry(config, failures(count), without_progress=1), Retry)
    decision = decide_retry(config, failures(budget + 1), without_progress=1)
    assert isinstance(decision, GiveUp)
    assert str(budget) in decision.reason


def test_no_limit() -> None:
    assert decide_retry(FailureConfig(max_failures=-1), failures(1000), without_progress=1) == Retry(0.0)


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_what_fails_the_next_time_too_is_not_retried(kind: FailureKind) -> None:
    decision = decide_retry(FailureConfig(max_failures=-1), failures(1, kind), without_progress=1)
    assert isinstance(decision, GiveUp) is (kind in ("startup", "storage"))
    if isinstance(decision, GiveUp):
        assert kind in decision.reason


def test_without_an_engine_there_is_no_retry() -> None:
    lost = AttemptFailure(0, WorkerFailure(0, "engine", "the cluster is gone", exception_type=ENGINE_LOST))
    assert isinstance(decide_retry(FailureConfig(max_failures=-1), [lost], without_progress=1), GiveUp)


def test_the_first_retry_is_immediate_and_later_ones_wait_while_there_is_no_progress() -> None:
    config = FailureConfig(max_failures=-1)
    decisions = [decide_retry(config, failures(20), without_progress=count) for count in range(1, 12)]
    delays = [decision.delay_s for decision in decisions if isinstance(decision, Retry)]
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]


def test_a_limit_on_attempts_without_progress() -> None:
    config = FailureConfig(max_failures=-1, max_attempts_without_progress=2)
    assert isinstance(decide_retry(config, failures(5), without_progress=1), Retry)
    decision = decide_retry(config, failures(5), without_progress=2)
    assert isinstance(decision, GiveUp)
    assert "2 attempts" in decision.reason
