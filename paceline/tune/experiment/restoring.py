"""Finds an earlier experiment and makes it ready to continue."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.air.checks import warn_at_users_line
from paceline.air.config import RunConfig
from paceline.air.errors import RestoreError, StorageError
from paceline.engine.choose import choose_engine
from paceline.run.found_runs import does_not_exist
from paceline.run.side_files import free_lock_name
from paceline.storage.run_dir import resolve_storage
from paceline.tune.experiment.experiment import Experiment
from paceline.tune.experiment.files import ExperimentPlace, fetch, newest_journal, newest_of
from paceline.tune.experiment.grid import grid_of
from paceline.tune.experiment.records import Facts, SearchRecords, unrecorded_trials
from paceline.tune.experiment.replay import Replay
from paceline.tune.experiment.settling import ResumeRules, Settlement
from paceline.tune.experiment.setup import SearchSetup, facts_of, mark_as_used, restored_run_config, restored_setup
from paceline.tune.result_grid import ResultGrid
from paceline.tune.trainable.kinds import TrainableKind
from paceline.tune.tuner import TuneConfig


def has_experiment(path: str | os.PathLike[str], filesystem: Any = None) -> bool:
    """True if there is an experiment whose description can be read."""
    try:
        SearchRecords(_local_journal(path, filesystem))
    except (RestoreError, StorageError, OSError):
        return False
    return True


def _local_journal(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    resolved = resolve_storage(path)
    if isinstance(resolved, str):
        return newest_of(fetch(resolved, filesystem))
    if problem := does_not_exist(str(resolved), filesystem, "a search"):
        raise problem
    return newest_journal(resolved)


@dataclass
class Restoration:
    """An earlier experiment and what is to be done about it."""

    root: Path
    journal: Path
    setup: SearchSetup
    make_setup: Callable[[], SearchSetup]
    """The same setup once more, with a searcher and a scheduler that know nothing."""
    rules: ResumeRules
    facts: Facts
    """The experiment's description as it was found."""
    has_new_run_config: bool
    notes: list[str]
    uri: str | None = None
    """Where it was restored from, if not from a local directory; it is mirrored there again."""
    is_setup_used: bool = False

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
        journal = _local_journal(path, filesystem or given)
        facts = SearchRecords(journal).facts
        config, notes = restored_run_config(facts, run_config, filesystem)
        if facts.trainable != kind.name:
            notes.append(
                f"The experiment was made with the trainable {facts.trainable!r} and is continued with "
                f"{kind.name!r}: its unfinished trials continue with other code."
            )
        make_setup = partial(restored_setup, facts, kind, space, tune, config, num_samples)
        uri = resolved if isinstance(resolved, str) else None
        return cls(journal.parent, journal, make_setup(), make_setup, rules, facts, run_config is not None, notes, uri)

    @property
    def run_config(self) -> RunConfig:
        return self.setup.run_config

    def results(self) -> ResultGrid:
        """What the experiment had reached; nothing is started or written."""
        return grid_of(self.root, self.journal)

    def experiment(self) -> Experiment:
        """The experiment where it was left."""
        if self.is_setup_used:
            self.setup, self.is_setup_used = self.make_setup(), False
        place = ExperimentPlace(self.root, self.facts.name, self.facts.id, self.uri)
        warnings = free_lock_name(place.lock)
        experiment = Experiment(self.setup, choose_engine(self.setup.run_config.engine), place)
        try:
            # Everything is read under the lock: the last driver may have written until it let go.
            records = SearchRecords(self.journal)
            for warning in (*warnings, *unrecorded_trials(self.journal, records)):
                experiment.shared.audience.warn_once(warning)
            for note in self.notes:
                if self.run_config.verbose == 0:  # it matters, whatever is shown of the rest
                    warn_at_users_line(note)
                else:
                    experiment.shared.audience.note(note)
            self.is_setup_used = True
            facts = self._facts_from_now_on(place)
            mark_as_used(self.setup)
            replay = Replay(experiment, records)
            replay.run()
            # Not before: settings that fail must not be those of the next restore.
            experiment.shared.files.journal.restored(facts)
            Settlement(experiment, replay, self.rules).run()
        except BaseException:
            experiment.close()
            raise
        return experiment

    def _facts_from_now_on(self, place: ExperimentPlace) -> dict[str, Any]:
        """What the next restore goes by. Callbacks that were not given again are still missed then."""
        facts = facts_of(self.setup, place)
        return facts if self.has_new_run_config else {**facts, "run": self.facts.run}
