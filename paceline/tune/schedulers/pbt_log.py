"""The record of a population: who took over from whom, when, and with which configuration.

`pbt_global.txt` has a line for each takeover of the experiment. `pbt_policy_<trial id>.txt`
has those that led to the weights the trial has now, oldest first: with a takeover the
donor's past becomes the trial's own. Each line is a JSON list: the trial, its donor, the
iteration of both, the donor's configuration, the trial's new one.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.air.errors import ConfigError
from paceline.air.secrets import masked
from paceline.storage.commit import quarantine

GLOBAL_FILE = "pbt_global.txt"


class Takeover(NamedTuple):
    """A trial that goes on from another one's checkpoint."""

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

    A trial's own count goes on at a takeover, so that iterations are counted per piece:
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
