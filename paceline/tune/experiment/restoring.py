"""Finds an earlier experiment and makes it ready to go on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.air.config import RunConfig
from paceline.air.errors import RestoreError, StorageError
from paceline.engine.choose import choose_engine
from paceline.storage.run_dir import resolve_storage
from paceline.tune.experiment.experiment import Experiment
from paceline.tune.experiment.place import ExperimentPlace, newest_journal
from paceline.tune.experiment.plan import Plan
from paceline.tune.experiment.planning import restored_plan, restored_run_config
from paceline.tune.experiment.reading import grid_of
from paceline.tune.experiment.remote import fetch
from paceline.tune.experiment.replay import Replay, ResumeRules, read_records, saved_facts
from paceline.tune.result_grid import ResultGrid
from paceline.tune.trainable.kinds import TrainableKind
from paceline.tune.tune_config import TuneConfig


def has_experiment(path: str | os.PathLike[str], filesystem: Any = None) -> bool:
    """True if there is an experiment whose description can be read."""
    try:
        read_records(newest_journal(_local_root(path, filesystem)))
    except (RestoreError, StorageError, OSError):
        return False
    return True


def _local_root(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    resolved = resolve_storage(path)
    if isinstance(resolved, str):
        return fetch(resolved, filesystem)
    if not resolved.is_dir():
        raise RestoreError(f"{resolved} is no directory of an experiment.")
    return resolved


@dataclass(frozen=True)
class Restoration:
    """An earlier experiment and what is to be done about it."""

    root: Path
    journal: Path
    plan: Plan
    rules: ResumeRules
    facts: Mapping[str, Any]
    notes: list[str]
    uri: str | None = None
    """Where it was restored from, if not from a local directory; it is mirrored there again."""

    @classmethod
    def of(
        cls,
        path: str | os.PathLike[str],
        kind: TrainableKind,
        rules: ResumeRules,
        space: Mapping[str, Any] | None,
        num_samples: int | None,
        tune: TuneConfig | None,
        run_config: RunConfig | None,
        filesystem: Any = None,
    ) -> Restoration:
        given = run_config.storage_filesystem if run_config is not None else None
        resolved = resolve_storage(path)
        root = _local_root(path, filesystem or given)
        journal = newest_journal(root)
        facts = saved_facts(read_records(journal))
        config, notes = restored_run_config(facts, run_config, filesystem)
        if facts["trainable"] != kind.name:
            notes.append(
                f"The experiment was made with the trainable {facts['trainable']!r} and is continued with "
                f"{kind.name!r}: its unfinished trials go on with other code."
            )
        plan = restored_plan(facts, kind, space, tune, config, num_samples)
        uri = resolved if isinstance(resolved, str) else None
        return cls(root, journal, plan, rules, facts, notes, uri)

    @property
    def run_config(self) -> RunConfig:
        return self.plan.run_config

    def results(self) -> ResultGrid:
        """What the experiment had reached; nothing is started or written."""
        return grid_of(self.root, self.journal)

    def experiment(self) -> Experiment:
        """The experiment where it was left."""
        place = ExperimentPlace(self.root, self.facts["name"], self.facts["id"], self.uri)
        experiment = Experiment(self.plan, choose_engine(self.plan.run_config.engine), place)
        try:
            # Everything is read under the lock: the last driver may have written until it let go.
            records = read_records(self.journal)
            for note in self.notes:
                experiment.audience.progress.note(note)
            experiment.journal.restored({"num_samples": self.plan.tune.num_samples})
            Replay(experiment, records, self.rules).run()
        except BaseException:
            experiment.close()
            raise
        return experiment
