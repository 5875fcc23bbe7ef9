"""Retry or give up, and what is charged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from paceline.air import FailureConfig
from paceline.air.errors import AttemptFailure, FailureKind, HangError, WorkerFailure
from paceline.engine.failures import ENGINE_LOST
from paceline.run.failure_policy import GiveUp, Retry, decide_retry, is_charged

WITHOUT_LIMIT = FailureConfig(max_failures=-1, max_attempts_without_progress=None)


def failure(kind: FailureKind = "exception", *, progress: bool = True) -> AttemptFailure:
    cause = WorkerFailure(0, kind, "it broke")
    return AttemptFailure(0, cause, is_charged=is_charged(kind), made_progress=progress)


def failures(count: int, kind: FailureKind = "exception") -> list[AttemptFailure]:
    return [replace(failure(kind), attempt=number) for number in range(count)]


def stuck(count: int, kind: FailureKind = "exception") -> list[AttemptFailure]:
    """The first attempt came somewhere, the others no further."""
    return [failure(kind, progress=number == 0) for number in range(count)]


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_the_budget_is_exact(budget: int) -> None:
    config = FailureConfig(max_failures=budget)
    for count in range(1, budget + 1):
        assert isinstance(decide_retry(config, failures(count)), Retry)
    decision = decide_retry(config, failures(budget + 1))
    assert isinstance(decision, GiveUp)
    assert str(budget) in decision.reason


def test_no_limit() -> None:
    assert decide_retry(FailureConfig(max_failures=-1), failures(1000)) == Retry(0.0)


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_what_fails_the_next_time_too_is_not_retried(kind: FailureKind) -> None:
    decision = decide_retry(FailureConfig(max_failures=-1), failures(1, kind))
    assert isinstance(decision, GiveUp) is (kind in ("startup", "storage"))
    if isinstance(decision, GiveUp):
        assert kind in decision.reason


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_only_the_loss_of_a_node_and_preemption_are_not_charged(kind: FailureKind) -> None:
    decision = decide_retry(FailureConfig(max_failures=0), failures(20, kind))
    assert is_charged(kind) is (kind not in ("node_lost", "preempted", "worker_count"))
    assert isinstance(decision, GiveUp) is is_charged(kind)


def test_what_is_not_charged_leaves_the_budget_as_it_is() -> None:
    config = FailureConfig(max_failures=1)
    lost = [failure("node_lost"), failure("preempted"), failure("node_lost")]
    assert isinstance(decide_retry(config, [*lost, failure()]), Retry)
    assert isinstance(decide_retry(config, [*lost, failure(), *lost]), Retry)
    assert isinstance(decide_retry(config, [*lost, failure(), *lost, failure()]), GiveUp)


def test_without_an_engine_there_is_no_retry() -> None:
    lost = AttemptFailure(0, WorkerFailure(0, "engine", "the cluster is gone", exception_type=ENGINE_LOST))
    assert isinstance(decide_retry(FailureConfig(max_failures=-1), [lost]), GiveUp)


@pytest.mark.parametrize("kind", ["exception", "node_lost"])
def test_the_first_retry_is_immediate_and_later_ones_wait_while_there_is_no_progress(kind: FailureKind) -> None:
    """A14."""
    decisions = [decide_retry(WITHOUT_LIMIT, stuck(count, kind)) for count in range(1, 12)]
    delays = [decision.delay_s for decision in decisions if isinstance(decision, Retry)]
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]


def test_progress_makes_the_next_retry_immediate_again() -> None:
    assert decide_retry(WITHOUT_LIMIT, [*stuck(5), failure()]) == Retry(0.0)


def test_a_limit_on_attempts_without_progress() -> None:
    config = FailureConfig(max_failures=-1, max_attempts_without_progress=2)
    assert isinstance(decide_retry(config, failures(5)), Retry)
    decision = decide_retry(config, [*failures(4), *stuck(2)])
    assert isinstance(decision, GiveUp)
    assert "2 attempts" in decision.reason


def test_attempts_that_are_not_charged_do_not_count_as_without_progress() -> None:
    config = FailureConfig(max_failures=-1, max_attempts_without_progress=2)
    assert isinstance(decide_retry(config, stuck(5, "preempted")), Retry)
    assert isinstance(decide_retry(config, [*stuck(5, "preempted"), failure(progress=False)]), Retry)


def test_a_run_without_limit_ends_after_three_attempts_without_progress() -> None:
    config = FailureConfig(max_failures=-1)
    assert isinstance(decide_retry(config, stuck(2)), Retry)
    assert isinstance(decide_retry(config, stuck(3)), GiveUp)
    assert isinstance(decide_retry(FailureConfig(max_failures=99), stuck(30)), Retry), "a number is a limit by itself"


def raised(*types: str) -> AttemptFailure:
    """As a worker tells it, with all names of the class."""
    cause = WorkerFailure(1, "exception", "it broke", exception_type=types[0], exception_types=types)
    return AttemptFailure(0, cause, made_progress=True)


RESET = raised("requests.exceptions.ConnectionError", "requests.exceptions.RequestException", "builtins.OSError")


@pytest.mark.parametrize(
    ("settings", "retried"),
    [
        ({"retry_on": [OSError]}, True),
        ({"retry_on": OSError}, True),
        ({"retry_on": ["requests.exceptions.RequestException"]}, True),
        ({"retry_on": ["exception"]}, True),
        ({"retry_on": [ValueError, "signal"]}, False),
        ({"never_retry": [ValueError]}, True),
        ({"never_retry": [OSError]}, False),
        ({"retry_on": [OSError], "never_retry": ["requests.exceptions.ConnectionError"]}, False),
    ],
)
def test_failures_are_retried_by_their_class(settings: dict[str, Any], retried: bool) -> None:
    """The class need not be loaded here: its names come from the worker."""
    decision = decide_retry(FailureConfig(max_failures=-1, **settings), [RESET])
    assert isinstance(decision, Retry) is retried
    if isinstance(decision, GiveUp):
        assert "retry_on" in decision.reason or "never_retry" in decision.reason


def test_failures_are_retried_by_their_kind() -> None:
    config = FailureConfig(max_failures=-1, retry_on=["signal", HangError])
    assert isinstance(decide_retry(config, failures(1, "signal")), Retry)
    assert isinstance(decide_retry(config, failures(1, "hang")), Retry)
    assert isinstance(decide_retry(config, failures(1, "oom")), GiveUp)
    assert isinstance(decide_retry(config, failures(1, "node_lost")), Retry), "it is nobody's mistake"


def test_what_is_not_retried_by_itself_can_be_asked_for() -> None:
    assert isinstance(decide_retry(FailureConfig(max_failures=1, retry_on=["startup"]), failures(1, "startup")), Retry)


def test_a_lost_node_can_be_made_an_end() -> None:
    assert isinstance(decide_retry(FailureConfig(never_retry=["node_lost"]), failures(1, "node_lost")), GiveUp)
