"""Aim: a run for each run, in a repository of files or on an Aim server.

Aim keeps one value for each metric, context and step. The context says the attempt, so that sending rows again changes
nothing, and rows that a retry has superseded stay beside the new ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from paceline.trackers.callback import TrackerCallback
from paceline.trackers.tracker import Outcome, TrackedRow, TrackedRun, Tracker

__all__ = ["AimLoggerCallback", "AimTracker"]

_QUIET = {"system_tracking_interval": None, "capture_terminal_logs": False}
"""Unless the user wants it: what would be logged is the driver's."""


class AimTracker(Tracker):
    """Sends runs to Aim. `arguments` are those of `aim.Run`."""

    name: ClassVar[str] = "aim"

    def __init__(
        self,
        repo: Any = None,
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._repo = os.fspath(repo) if isinstance(repo, os.PathLike) else repo
        self._experiment_name = experiment_name
        self._metrics = None if metrics is None else frozenset(metrics)
        self._arguments = {**_QUIET, **(arguments or {})}
        self._runs: dict[str, Any] = {}
        # A server takes rows into a queue of its own.
        self.keeps_rows = not (isinstance(repo, str) and repo.startswith("aim://"))

    @property
    def label(self) -> str:
        return f"Aim at {self._repo}" if isinstance(self._repo, str) else "Aim"

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        import aim

        run_id = resume_id or hashlib.blake2b(run.key.encode(), digest_size=12).hexdigest()
        if run_id not in self._runs:
            opened = aim.Run(
                run_hash=run_id,
                repo=self._repo if self._repo is not None else str(Path(run.path).parent),
                experiment=self._experiment_name or run.experiment_name,
                force_resume=True,  # a driver that was killed has left its lock
                **self._arguments,
            )
            opened.name = run.name
            opened["hparams"] = run.config
            opened["trial_log_dir"] = run.path
            for name, value in run.facts.items():
                opened[name] = value
            if run.is_trial:
                opened["search"] = run.experiment_name
            self._runs[run_id] = opened
        return run_id

    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        run = self._runs[run_id]
        for row in rows:
            for name, value in row.numbers().items():
                if self._metrics is None or name in self._metrics:
                    run.track(value, name=name, step=row.step, context={"attempt": row.attempt})

    def close(self, run_id: str, outcome: Outcome) -> None:
        run = self._runs[run_id]
        run["outcome"] = outcome
        run.close()
        del self._runs[run_id]

    def change_config(self, run_id: str, config: dict[str, Any], attempt: int) -> None:
        self._runs[run_id]["hparams"] = config


class AimLoggerCallback(TrackerCallback):
    """Sends each run, or each trial of a search, to Aim: configuration, rows, outcome.

    `repo` is the directory of a repository, an ``aim://`` address, or an `aim.Repo`; without it, the repository is in
    the directory of the experiment. `metrics` are those to track, by default all. Further arguments are those of
    `aim.Run`.
    """

    def __init__(
        self,
        repo: Any = None,
        experiment_name: str | None = None,
        metrics: Sequence[str] | None = None,
        **aim_run_kwargs: Any,
    ) -> None:
        super().__init__(AimTracker(repo, experiment_name, metrics, aim_run_kwargs))
