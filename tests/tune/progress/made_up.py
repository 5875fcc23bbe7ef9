"""Trials and views for tests of the display."""

from __future__ import annotations

from typing import Any

from paceline.run.display import Display
from paceline.run.spec import Trial
from paceline.tune.progress.progress import ExperimentProgress
from paceline.tune.progress.view import ExperimentView


def make_trial(number: int, status: Any = "PENDING", row: dict[str, Any] | None = None, **parameters: Any) -> Trial:
    return Trial(
        f"4913f_{number:05d}",
        "train_fn",
        f"/results/exp/trial_{number}",
        "e1",
        status=status,
        last_result=row or {},
        evaluated_params={name.replace("__", "/"): value for name, value in parameters.items()},
        config={"seed": 7, "nested": {"depth": number}},
    )


def make_row(iteration: int, **metrics: Any) -> dict[str, Any]:
    return {**metrics, "training_iteration": iteration, "time_total_s": 1.5 * iteration, "config": {"lr": 1}, "pid": 1}


class MadeUpExperiment:
    """Does to view and display what an experiment does."""

    def __init__(self, progress: ExperimentProgress | None = None, **view: Any) -> None:
        settings = {"metric": "loss", "mode": "min", "total": 8, "resources": {"CPU": 2.0}, "used": {"CPU": 1.0}}
        self.view = ExperimentView("exp", "/results/exp", **{**settings, **view})
        self.progress = progress if progress is not None else ExperimentProgress(Display())

    def add(self, **parameters: Any) -> Trial:
        trial = make_trial(len(self.view.trials), **parameters)
        self.view.trials.append(trial)
        self._changed(trial)
        return trial

    def become(self, trial: Trial, status: Any) -> None:
        trial.status = status
        self._changed(trial)

    def report(self, trial: Trial, **metrics: Any) -> None:
        row = make_row(trial.last_result.get("training_iteration", 0) + 1, **metrics)
        self.view.note_row(trial, row)
        self.progress.row(trial, row)
        trial.last_result = row

    def fail(self, trial: Trial, error: BaseException | str) -> None:
        self.view.note_error(trial, error)
        self.become(trial, "ERROR")

    def ended(self, loss: float, **parameters: Any) -> Trial:
        """A trial from its start to its end."""
        trial = self.add(**parameters)
        self.become(trial, "RUNNING")
        self.report(trial, loss=loss)
        self.become(trial, "TERMINATED")
        return trial

    def _changed(self, trial: Trial) -> None:
        self.view.note_status(trial)
        self.progress.trial_changed(trial)
