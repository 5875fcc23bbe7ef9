"""Population-based training once more, for the trial that won: one trial, the recorded schedule of parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import ConfigError
from paceline.air.secrets import filled
from paceline.run.trial import Trial
from paceline.tune.schedulers.pbt_log import changes, read_policy
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Restart, Row, TrialScheduler, number_of


class PopulationBasedTrainingReplay(TrialScheduler):
    """Trains one trial with the parameters that led to a trial of an earlier population.

    `policy_file` is the `pbt_policy_<trial id>.txt` of that trial. At the recorded
    iterations the trial goes on from its own newest checkpoint with the next
    configuration, so that it must report checkpoints.
    """

    def __init__(self, policy_file: str | os.PathLike[str]) -> None:
        super().__init__()
        policy = read_policy(policy_file)
        self._policy_file = os.fspath(policy_file)
        self._start = policy[0].donor_config
        self._changes = changes(policy)
        self._applied = 0
        self._trial: Trial | None = None

    @property
    def result_keys(self) -> tuple[str, ...]:
        return (TRAINING_ITERATION,)

    def checkpoint_every(self) -> int:
        return 1

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        if self._trial is not None:
            raise ConfigError(
                "PopulationBasedTrainingReplay trains one trial, and a second one was created. Use "
                "TuneConfig(num_samples=1) and a param_space without grids."
            )
        self._trial = trial
        trial.config = _over(trial.config, self._start)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        iteration = number_of(result, TRAINING_ITERATION) or 0
        due = self._applied
        while due < len(self._changes) and self._changes[due][0] <= iteration:
            due += 1
        if due == self._applied:
            return self.CONTINUE
        if trial.checkpoint is None and not controller.replaying:
            raise ConfigError(
                f"{self._policy_file} changes the parameters at iteration {iteration:g}, but {trial} has reported no "
                "checkpoint to go on from. Report checkpoints: session.report(metrics, checkpoint=...)."
            )
        self._applied = due
        return Restart(config=_over(trial.config, self._changes[due - 1][1]))

    def debug_string(self) -> str:
        return f"PopulationBasedTrainingReplay: {self._applied} of {len(self._changes)} changes"


def _over(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded values over those of the trial; what the record does not have (objects, secrets) stays."""
    merged = dict(config)
    for key, value in filled(recorded, config).items():
        below = merged.get(key)
        merged[key] = _over(below, value) if isinstance(value, dict) and isinstance(below, Mapping) else value
    return merged
