"""barrier() and broadcast_from_rank_zero(): all ranks together, and nobody waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.air.errors import SerializationError, TrainingFailedError
from paceline.train import collective
from tests.train.quick import quick_trainer


def broadcasts(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    own = Path(config["marks"]) / str(rank)
    own.touch()
    collective.barrier()
    seen = sorted(path.name for path in own.parent.iterdir())  # the others have been here
    first = collective.broadcast_from_rank_zero({"from": rank})
    train.report({"first": first["from"]})
    second = collective.broadcast_from_rank_zero(rank + 10)
    train.report({"seen": seen, "second": second})


def test_ranks_wait_for_each_other_and_get_what_rank_zero_has(tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    result = quick_trainer(broadcasts, config={"marks": str(marks)}).fit()
    assert len(result.metrics_dataframe) == 2  # meetings are no rows
    for metrics in result.rank_metrics.values():
        assert metrics["seen"] == ["0", "1"]
        assert metrics["second"] == 10
    assert result.rank_dataframe["first"].dropna().tolist() == [0, 0]


def leaves(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 0:
        collective.barrier()


def differs(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 0:
        collective.barrier()
    else:
        collective.broadcast_from_rank_zero(1)


def reports_instead(config: dict[str, Any]) -> None:
    if train.get_context().get_world_rank() == 0:
        collective.barrier()
    train.report({"x": 1})
    collective.barrier()


@pytest.mark.parametrize("rank_zero_waits", [True, False])
def test_a_report_that_needs_a_waiting_rank_ends_the_run(rank_zero_waits: bool) -> None:
    def loop() -> None:
        if (train.get_context().get_world_rank() == 0) is rank_zero_waits:
            collective.barrier()
        train.report({"x": 1.0}, reduce={"x": "mean"})
        collective.barrier()

    with pytest.raises(TrainingFailedError, match=r"wait in collective\.barrier\(\), while .* in report\(\)"):
        quick_trainer(loop).fit()


def test_a_report_that_rank_zero_decides_on_ends_the_run_if_that_waits() -> None:
    with pytest.raises(TrainingFailedError, match=r"rank\(s\) 0 wait in .*, while rank\(s\) 1 wait in report\(\)"):
        quick_trainer(reports_instead, config={}, stop={"training_iteration": 5}).fit()


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (leaves, r"rank\(s\) 0 wait in collective\.barrier\(\) for rank 1, which has returned"),
        (differs, r"barrier\(\).*broadcast_from_rank_zero\(\).*same calls|broadcast.*barrier\(\).*same calls"),
    ],
)
def test_a_rank_that_cannot_come_ends_the_waiting(loop: Any, message: str) -> None:
    with pytest.raises(TrainingFailedError, match=message):
        quick_trainer(loop, config={}).fit()


def only_rank_zero_reports(config: dict[str, Any]) -> None:
    for _ in range(10):
        if train.get_context().get_world_rank() == 0:
            train.report({"x": 1})
        collective.barrier()


def test_a_run_that_is_stopped_does_not_leave_ranks_waiting() -> None:
    result = quick_trainer(only_rank_zero_reports, config={}, stop={"training_iteration": 3}).fit()
    assert result.metrics["training_iteration"] == 3


def test_one_worker_meets_itself() -> None:
    def loop() -> None:
        collective.barrier()
        train.report({"same": collective.broadcast_from_rank_zero([1])})

    assert quick_trainer(loop, inline=True).fit().metrics["same"] == [1]


def sends_a_lock(config: dict[str, Any]) -> None:
    collective.broadcast_from_rank_zero(threading.Lock())


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(TrainingFailedError, match=r"broadcast_from_rank_zero\(\).*lock") as caught:
        quick_trainer(sends_a_lock, config={}).fit()
    assert isinstance(caught.value.__cause__, SerializationError)


def test_outside_of_a_run_there_is_one_rank() -> None:
    with pytest.warns(UserWarning, match=r"train\.collective\.broadcast_from_rank_zero\(\).*outside"):
        assert collective.broadcast_from_rank_zero("x") == "x"
    with pytest.warns(UserWarning, match=r"train\.collective\.barrier\(\).*outside"):
        collective.barrier()
