"""Waiting in the all-reduce of DDP, as DDP has measured it. tests/firsts/test_11_all_rank_metrics.py has a real one."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.train.torch.collective_waits import CollectiveWaits


class Model:
    """Says what DistributedDataParallel would say of its iterations."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}

    def ran(self, iteration: int, waited_ms: int) -> None:
        overlap = 1_000_000
        self.times = {
            "iteration": iteration,
            "backward_comm_time": waited_ms * 1_000_000 + overlap,
            "backward_compute_comm_overlap_time": overlap,
        }

    def _get_ddp_logging_data(self) -> dict[str, int]:
        return self.times


def waits_of(*models: Any) -> CollectiveWaits:
    waits = CollectiveWaits()
    for model in models:
        waits.add(model)
    return waits


def test_each_iteration_is_told_once() -> None:
    model = Model()
    waits = waits_of(model)
    assert waits(0) is None  # nothing has been trained
    model.ran(1, 50)
    assert waits(1) == pytest.approx(0.05)
    assert waits(2) is None
    model.ran(2, 20)
    assert waits(3) == pytest.approx(0.02)


def test_models_of_one_step_count_together() -> None:
    first, second = Model(), Model()
    waits = waits_of(first, second)
    first.ran(1, 10)
    second.ran(1, 5)
    assert waits(1) == pytest.approx(0.015)


def test_a_model_that_is_gone_is_passed_over() -> None:
    gone, model = Model(), Model()
    waits = waits_of(gone, model)
    del gone
    model.ran(1, 10)
    assert waits(1) == pytest.approx(0.01)


@pytest.mark.parametrize("accumulated", [2, 4])
@pytest.mark.parametrize("every", [1, 10, 25])
def test_gradients_that_are_accumulated_are_not_measured(accumulated: int, every: int) -> None:
    """The wait of one iteration is that of several steps."""
    model = Model()
    waits = waits_of(model)
    for step in range(every, 400, every):
        done = step // accumulated - 1
        model.ran(done if done <= 10 else max(10, done // 100 * 100), 50)
        last = waits(step - 1)
    assert last is None


def test_a_step_of_many_iterations_is_not_measured() -> None:
    model = Model()
    waits = waits_of(model)
    model.ran(10, 50)
    assert waits(1) is None
    model.ran(100, 50)
    assert waits(2) is None


@pytest.mark.parametrize("every", [1, 7, 100])
def test_an_evaluation_now_and_then_does_no_harm(every: int) -> None:
    model = Model()
    waits = waits_of(model)
    found = 0
    steps = 0
    for trained in range(every, 1001, every):
        done = trained - 1
        model.ran(done if done <= 10 else max(10, done // 100 * 100), 50)
        steps = trained + trained // 100 * 20
        found += waits(steps) is not None
    assert found >= 9


def test_a_pytorch_that_does_not_tell() -> None:
    class Silent:
        pass

    silent = Silent()
    assert waits_of(silent)(1) is None
