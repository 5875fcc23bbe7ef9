"""Aim: a run for each run, in a repository of files or on an Aim server.

Aim keeps one value for each metric, context and step. The context says the attempt, so that sending rows again changes
nothing, and rows that a retry has superseded stay beside the new ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from paceline.trackers.callback import TrackerCallback
from paceline.trackers.tracker import Outcome, TrackedRow, TrackedRun, Tracker

__all__ = ["AimLoggerCallback", "AimTracker"]

KEY = "paceline_key"

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

    def prepare(self) -> None:
        import aim  # noqa: F401

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        if resume_id in self._runs:
            return resume_id
        repo = self._repo if self._repo is not None else str(Path(run.path).parent)
        known = resume_id or (_run_of_key(repo, run.key) if run.may_exist else None)
        opened = self._run(known, repo, run)
        opened[KEY] = run.key
        opened.name = run.name
        opened["hparams"] = run.config
        opened["trial_log_dir"] = run.path
        for name, value in run.facts.items():
            opened[name] = value
        if run.is_trial:
            opened["search"] = run.experiment_name
        self._runs[opened.hash] = opened
        return str(opened.hash)

    def _run(self, known: str | None, repo: Any, run: TrackedRun) -> Any:
        """The run of this id; a new one if there is none, or if somebody has deleted it."""
        import aim
        from aim.sdk.errors import MissingRunError

        experiment = self._experiment_name or run.experiment_name
        if known is not None:
            with contextlib.suppress(MissingRunError):
                # A driver that was killed has left its lock.
                return aim.Run(known, repo=repo, experiment=experiment, force_resume=True, **self._arguments)
        return aim.Run(repo=repo, experiment=experiment, **self._arguments)

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


def _run_of_key(repo: Any, key: str) -> str | None:
    """The run that a driver made, which then died before it could remember its id.

    Every run is looked at: queries only find runs that Aim's user interface has indexed.
    """
    import aim

    if isinstance(repo, str):
        if not repo.startswith("aim://") and not aim.Repo.exists(repo):
            return None
        repo = aim.Repo.from_path(repo)
    for run_id in repo.list_all_runs():
        tree = repo.request_tree("meta", run_id, read_only=True).subtree(("meta", "chunks", run_id, "attrs"))
        if tree.get(KEY, None) == key:
            return str(run_id)
    return None


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
