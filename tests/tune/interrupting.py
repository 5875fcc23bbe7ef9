"""Experiments that are interrupted, and what can be told of them afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig
from paceline.testing.processes import Marks
from paceline.tune import Callback, ResultGrid, TuneConfig, Tuner
from tests.tune.counting import count


class InterruptAt(Callback):
    """Ctrl-C at the first row of a trial."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        if trial.trial_id.endswith(f"_{self.number:05d}") and result["training_iteration"] == 1:
            os.kill(os.getpid(), signal.SIGINT)


class Bench:
    """Makes Tuners that count, and tells what their trials did."""

    def __init__(self, root: Path) -> None:
        self.marks = Marks(root / "marks")
        self.storage = root / "storage"

    def tuner(
        self,
        space: dict[str, Any] | None = None,
        callbacks: list[Callback] | None = None,
        trainable: Any = count,
        verbose: int = 0,
        engine: str | None = None,
        **settings: Any,
    ) -> Tuner:
        return Tuner(
            trainable,
            param_space={"marks": str(self.marks.directory), **({"x": tune.uniform(0, 1)} if space is None else space)},
            tune_config=TuneConfig(
                **{"metric": "score", "mode": "max", "num_samples": 4, "max_concurrent_trials": 2, **settings}
            ),
            run_config=RunConfig(
                name="counts",
                storage_path=str(self.storage),
                verbose=verbose,
                callbacks=callbacks or [],
                engine=engine,
            ),
        )

    def interrupted(self, at: int, space: dict[str, Any] | None = None, **settings: Any) -> ResultGrid:
        """The grid of an experiment that Ctrl-C ended at the first row of trial number `at`."""
        with pytest.raises(KeyboardInterrupt) as caught:
            self.tuner(space, [InterruptAt(at)], **settings).fit()
        grid: ResultGrid = caught.value.result  # type: ignore[attr-defined]
        return grid

    def starts(self) -> list[tuple[str, int]]:
        """(trial, iteration it went on after), in order."""
        return [(mark["trial"], mark["after"]) for mark in self.marks.read("started")]


def facts(grid: ResultGrid) -> list[dict[str, Any]]:
    return [
        {
            "id": outcome.trial.trial_id,
            "status": outcome.status,
            "config": outcome.trial.config,
            "metrics": outcome.metrics,
            "result": outcome.result.metrics,
            "rows": len(list(outcome.rows())),
            "checkpoint": outcome.result.checkpoint and outcome.result.checkpoint.to_dict(),
        }
        for outcome in grid.outcomes
    ]


def drop_from(journal: Path, kind: str) -> None:
    """Take away the first record of that kind and all behind it."""
    lines = journal.read_bytes().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if b'"kind":"%b"' % kind.encode() in line)
    journal.write_bytes(b"".join(lines[:first]))
