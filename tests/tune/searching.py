"""What tests of whole searches need: a quiet Tuner in one call, and what trials did beside each other."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.air import Checkpoint, RunConfig, session
from paceline.air.result import Result
from paceline.testing.processes import Marks
from paceline.tune import ResultGrid, TuneConfig, Tuner

_OF_RUN_CONFIG = frozenset(field.name for field in dataclasses.fields(RunConfig))


def tuner(trainable: Any, space: Mapping[str, Any] | None = None, **settings: Any) -> Tuner:
    """A silent one; `settings` belong to RunConfig or to TuneConfig, wherever there is such a name."""
    run = {name: value for name, value in settings.items() if name in _OF_RUN_CONFIG}
    tune = {name: value for name, value in settings.items() if name not in _OF_RUN_CONFIG}
    return Tuner(
        trainable,
        param_space=space,
        tune_config=TuneConfig(**tune),
        run_config=RunConfig(**{"verbose": 0, **run}),
    )


def search(trainable: Any, space: Mapping[str, Any] | None = None, **settings: Any) -> ResultGrid:
    """The grid of a search in which no trial failed."""
    grid = tuner(trainable, space, **settings).fit()
    assert not grid.errors, grid.errors
    return grid


def column(result: Result, name: str) -> list[Any]:
    assert result.metrics_dataframe is not None
    return list(result.metrics_dataframe[name])


def config_of(result: Result) -> dict[str, Any]:
    assert result.config is not None
    return result.config


class Overlap:
    """Says when trials begin and end, and tells how many there were at a time."""

    def __init__(self, directory: Path) -> None:
        self.marks = Marks(directory)

    def enter(self) -> None:
        self.marks.say("step", change=1, trial=session.get_trial_id())

    def leave(self) -> None:
        self.marks.say("step", change=-1, trial=session.get_trial_id())

    def meet(self, number: int) -> None:
        """Wait until so many trials have begun."""
        self.marks.wait("step", number, change=1)

    @property
    def most(self) -> int:
        now = most = 0
        for mark in self.marks.read("step"):
            now += mark["change"]
            most = max(most, now)
        return most


def climbing(marks: Marks, *, saves: bool, steps: int = 100) -> Any:
    """Scores `config["x"]` at each step; leaves word of a step before it is reported."""

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint else 0
        for step in range(start + 1, steps + 1):
            marks.say("step", step=step, trial=session.get_trial_id(), pid=os.getpid())
            saved = Checkpoint.from_dict({"step": step}) if saves else None
            session.report({"score": config["x"], "step": step}, checkpoint=saved)

    return train


def steps_taken(marks: Marks, result: Any) -> list[int]:
    return [mark["step"] for mark in marks.read("step", trial=result.metrics["trial_id"])]


def processes_of(marks: Marks, result: Any) -> int:
    return len({mark["pid"] for mark in marks.read("step", trial=result.metrics["trial_id"])})
