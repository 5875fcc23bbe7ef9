"""Population-based training once more, for the trial that won: one trial, the recorded schedule of parameters."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import ConfigError
from paceline.air.secrets import filled, masked
from paceline.air.words import counted
from paceline.run.spec import Trial
from paceline.storage.commit import quarantine
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Restart, Row, TrialScheduler, number_of


class PopulationBasedTrainingReplay(TrialScheduler):
    """Trains one trial with the parameters that led to a trial of an earlier population.

    `policy_file` is the `pbt_policy_<trial id>.txt` of that trial. At the recorded
    iterations the trial continues from its own newest checkpoint with the next
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
                "checkpoint to continue from. Report checkpoints: session.report(metrics, checkpoint=...)."
            )
        self._applied = due
        return Restart(config=_over(trial.config, self._changes[due - 1][1]))

    def debug_string(self) -> str:
        return f"PopulationBasedTrainingReplay: {self._applied} of {counted(len(self._changes), 'change')}"


def _over(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded values over those of the trial; what the record does not have (objects, secrets) stays."""
    merged = dict(config)
    for key, value in filled(recorded, config).items():
        below = merged.get(key)
        merged[key] = _over(below, value) if isinstance(value, dict) and isinstance(below, Mapping) else value
    return merged


GLOBAL_FILE = "pbt_global.txt"


class Takeover(NamedTuple):
    """A trial that continues from another one's checkpoint."""

    trial_id: str
    donor_id: str
    iteration: int
    donor_iteration: int
    donor_config: dict[str, Any]
    new_config: dict[str, Any]


def write_takeover(experiment_path: str, lineage: Sequence[Takeover]) -> None:
    """Record the last of `lineage`, which is the whole past of one trial's weights."""
    folder = Path(experiment_path)
    policy = folder / f"pbt_policy_{lineage[-1].trial_id}.txt"
    for path in (folder / GLOBAL_FILE, policy):
        if path.is_dir():  # damaged; what is only for people to read must not end a search
            quarantine(path)
    with open(folder / GLOBAL_FILE, "a", encoding="utf-8") as everything:
        everything.write(_line(lineage[-1]))
    beside = policy.with_suffix(".tmp")
    beside.write_text("".join(map(_line, lineage)), encoding="utf-8")
    os.replace(beside, policy)


def read_policy(policy_file: str | os.PathLike[str]) -> list[Takeover]:
    """The takeovers that led to one trial's weights."""
    path = Path(policy_file).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(
            f"The policy {path} cannot be read ({error.strerror}). Give a pbt_policy_<trial id>.txt from the "
            "directory of an experiment with PopulationBasedTraining(log_config=True)."
        ) from None
    policy = [_parsed(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]
    if not policy:
        raise ConfigError(f"The policy {path} is empty.")
    for earlier, later in itertools.pairwise(policy):
        if later.donor_id != earlier.trial_id:
            raise ConfigError(
                f"{path} is not the policy of one trial: {later.trial_id} took over from {later.donor_id}, not from "
                f"{earlier.trial_id} of the line before. Give a pbt_policy_<trial id>.txt, not {GLOBAL_FILE}."
            )
    return policy


def changes(policy: Sequence[Takeover]) -> list[tuple[int, dict[str, Any]]]:
    """After how many iterations of training which configuration came, along the line of weights.

    A trial's own count continues at a takeover, so that iterations are counted per piece:
    what a donor trained since its own last takeover.
    """
    schedule: list[tuple[int, dict[str, Any]]] = []
    trained, since = 0, 0
    for takeover in policy:
        trained += takeover.donor_iteration - since
        since = takeover.iteration
        schedule.append((trained, takeover.new_config))
    return schedule


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that JSON can hold; objects are left out, and secrets are masked."""
    return _plain(masked(config))


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            part[str(key)] = _plain(value)
            continue
        if callable(getattr(value, "item", None)) and getattr(value, "shape", None) == ():
            value = value.item()  # numpy's numbers
        try:
            part[str(key)] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            continue
    return part


def _line(takeover: Takeover) -> str:
    return json.dumps(takeover) + "\n"


def _parsed(line: str, path: Path, number: int) -> Takeover:
    try:
        trial_id, donor_id, iteration, donor_iteration, donor_config, new_config = json.loads(line)
        takeover = Takeover(
            str(trial_id), str(donor_id), int(iteration), int(donor_iteration), donor_config, new_config
        )
        if isinstance(donor_config, dict) and isinstance(new_config, dict):
            return takeover
    except (TypeError, ValueError):
        pass
    raise ConfigError(
        f"{path}, line {number}, is not of a policy: it must be a list of trial, donor, both iterations, the donor's "
        "configuration and the new one."
    )
