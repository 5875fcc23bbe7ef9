"""UserCallback: each report with its checkpoint, and what the workers raised."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import train
from paceline.air.errors import TrainingFailedError
from paceline.run.spec import Trial
from paceline.train import Checkpoint, UserCallback
from tests.train.quick import quick_trainer


class Seen(UserCallback):
    def __init__(self) -> None:
        self.reports: list[tuple[int, int | None]] = []
        self.names: set[str] = set()
        self.raised: dict[int, Exception] = {}

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self.names.add(run_context.name)
        self.reports.append((metrics[0]["step"], None if checkpoint is None else checkpoint.to_dict()["step"]))

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.raised = worker_exceptions


def loop(config: dict[str, Any]) -> None:
    for step in range(3):
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}) if step == 1 else None)
    if config["fail"]:
        raise ValueError("too far")


def test_reports_come_with_their_checkpoints() -> None:
    seen = Seen()
    quick_trainer(loop, inline=True, config={"fail": False}, name="mine", callbacks=[seen]).fit()
    assert seen.reports == [(0, None), (1, 1), (2, None)]
    assert seen.names == {"mine"}
    assert seen.raised == {}


def test_what_the_workers_raised() -> None:
    seen = Seen()
    with pytest.raises(TrainingFailedError):
        quick_trainer(loop, inline=True, config={"fail": True}, callbacks=[seen]).fit()
    assert seen.reports == [(0, None), (1, 1), (2, None)]
    assert isinstance(seen.raised[0], ValueError)


def test_rows_of_trials_that_run_side_by_side_are_kept_apart() -> None:
    class Ids(UserCallback):
        def __init__(self) -> None:
            self.seen: list[tuple[str, str]] = []

        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            self.seen.append((run_context.run_id, metrics[0]["of"]))

    callback, trials = Ids(), [Trial(each, "trial", "/tmp", "") for each in ("a", "b")]
    for trial in trials:
        callback.on_trial_result(1, trials, trial, {"of": trial.trial_id})
    for trial in trials:
        callback.on_trial_complete(1, trials, trial)
    assert callback.seen == [("a", "a"), ("b", "b")]
