"""Comet: an experiment for each run, online or in archives that ``comet upload`` sends later.

An archive is written when the experiment ends: rows of a driver that was killed before are sent again, in a further
archive of the same experiment.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from paceline.air.metrics import flattened
from paceline.trackers.callback import TrackerCallback
from paceline.trackers.tracker import (
    ATTEMPT_KEY,
    Outcome,
    RejectedError,
    TrackedCheckpoint,
    TrackedRow,
    TrackedRun,
    Tracker,
)

__all__ = ["CometLoggerCallback", "CometTracker"]

FLUSH_S = 60
"""How long Comet may take for a batch."""

_QUIET = dict.fromkeys(
    ("auto_output_logging", "log_code", "log_env_cpu", "log_env_gpu", "log_git_metadata", "log_git_patch"), False
)
"""Unless the user wants it: what would be logged is the driver's, and much of it."""
_NO_PATCHES = "COMET_DISABLE_AUTO_LOGGING"


class CometTracker(Tracker):
    """Sends runs to Comet. `arguments` are those of Comet's Experiment."""

    name: ClassVar[str] = "comet"

    def __init__(
        self, arguments: Mapping[str, Any], *, online: bool = True, tags: Sequence[str] = (), checkpoints: bool = False
    ) -> None:
        self.keeps_rows = online
        self.wants_checkpoints = checkpoints
        self._arguments = {**_QUIET, "display_summary_level": 0, **arguments}
        self._is_online = online
        self._tags = list(tags)
        self._experiments: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    @property
    def label(self) -> str:
        return "Comet"

    def prepare(self) -> None:
        with _without_patches():
            importlib.import_module("comet_ml")

    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        run_id = resume_id or hashlib.blake2b(run.key.encode(), digest_size=20).hexdigest()
        if run_id in self._experiments:
            return run_id
        self.prepare()
        experiment = self._experiment(run_id, is_known=resume_id is not None)
        self._experiments[run_id], self._names[run_id] = experiment, run.name
        experiment.set_name(run.name)
        if tags := [*self._tags, *([run.experiment_name] if run.is_trial else [])]:
            experiment.add_tags(tags)
        experiment.log_others({"Created from": "paceline", "experiment_name": run.experiment_name, **run.facts})
        experiment.log_parameters(flattened(run.config))
        return run_id

    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        experiment = self._experiments[run_id]
        for row in rows:
            experiment.log_metrics({**row.numbers(), ATTEMPT_KEY: row.attempt}, step=row.step)
        self._flush(experiment)

    def close(self, run_id: str, outcome: Outcome) -> None:
        experiment = self._experiments[run_id]
        experiment.log_other("outcome", outcome)
        if outcome != "finished":
            experiment.add_tag(outcome)
        self._flush(experiment)
        experiment.end()
        del self._experiments[run_id], self._names[run_id]

    def change_config(self, run_id: str, config: dict[str, Any], attempt: int) -> None:
        self._experiments[run_id].log_parameters(flattened(config))

    def add_checkpoint(self, run_id: str, checkpoint: TrackedCheckpoint) -> None:
        import comet_ml

        experiment, path = self._experiments[run_id], str(checkpoint.path)
        if not self._is_online:  # Comet's artifacts are for online experiments
            experiment.log_asset_folder(path, step=checkpoint.iteration, log_file_name=True, recursive=True)
            return
        facts = {"iteration": checkpoint.iteration, "number": checkpoint.number, "attempt": checkpoint.attempt}
        artifact = comet_ml.Artifact(f"checkpoint_{self._names[run_id]}", "model", metadata=facts)
        artifact.add(path)
        experiment.log_artifact(artifact)

    def _experiment(self, key: str, *, is_known: bool) -> Any:
        comet: Any = importlib.import_module("comet_ml")
        config: Any = importlib.import_module("comet_ml.config")
        if self._is_online:
            # One that is not known exists nevertheless if a driver died before it could remember it.
            kinds = [comet.ExistingExperiment] if is_known else [comet.Experiment, comet.ExistingExperiment]
        else:
            # Whatever becomes of the archives of one experiment: each of them can be uploaded, in any order.
            kinds = [partial(comet.OfflineExperiment, _resume_strategy="get_or_create")]
        for kind in kinds:
            try:
                experiment = kind(**{**self._arguments, "experiment_key": key})
            except ValueError as error:
                if "API key" in str(error):
                    raise RejectedError(
                        "Comet needs a key: set COMET_API_KEY, pass api_key=, or work offline with online=False."
                    ) from error
                raise
            config.set_global_experiment(None)  # else the next experiment would end this one, and lose its rows
            if experiment.alive:
                if (hook := getattr(experiment, "_atexit_hook", None)) is not None:
                    hook.disable()  # it would wait for a server that is down; the journal has all rows
                return experiment
        raise ConnectionError("Comet did not accept the experiment; its own messages say why")

    def _flush(self, experiment: Any) -> None:
        if self._is_online and not experiment.flush(timeout=FLUSH_S):
            raise TimeoutError(f"Comet did not take the rows within {FLUSH_S} s")


class CometLoggerCallback(TrackerCallback):
    """Sends each run, or each trial of a search, to Comet: configuration, rows, outcome.

    With ``online=False`` archives are written, to `offline_directory` or to where COMET_OFFLINE_DIRECTORY says.
    `save_checkpoints` uploads each checkpoint as an artifact. Further arguments are those of Comet's Experiment.
    """

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,
    ) -> None:
        super().__init__(CometTracker(experiment_kwargs, online=online, tags=tags or (), checkpoints=save_checkpoints))


@contextlib.contextmanager
def _without_patches() -> Iterator[None]:
    """Comet patches frameworks when it is imported, unless this variable is set: here nobody has asked for that."""
    if "comet_ml" in sys.modules or _NO_PATCHES in os.environ:
        yield
        return
    os.environ[_NO_PATCHES] = "1"
    try:
        yield
    finally:
        del os.environ[_NO_PATCHES]
