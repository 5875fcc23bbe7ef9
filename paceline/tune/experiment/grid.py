"""The ResultGrid of a search, from its journal. As for a summary nothing is locked, changed or unpickled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paceline.air.checks import warn_at_users_line
from paceline.air.errors import RestoreError, StorageError
from paceline.air.result import Result
from paceline.run.found_runs import search_line
from paceline.run.history import load_result
from paceline.run.spec import Trial
from paceline.storage import lock
from paceline.storage.run_dir import resolve_storage
from paceline.tune.experiment.files import newest_journal
from paceline.tune.experiment.records import Facts, SearchRecords, TrialCreated, TrialEnded, unrecorded_trials
from paceline.tune.result_grid import ResultGrid
from paceline.tune.search.parameters import nested
from paceline.tune.search.space import from_description
from paceline.tune.trial_outcome import TrialOutcome, outcome_of_record


def load_grid(path: str | os.PathLike[str]) -> ResultGrid:
    """The results of the experiment at `path`."""
    root = resolve_storage(path)
    if isinstance(root, str):
        raise RestoreError(f"{root}: an experiment is read from a local directory; copy it to one first.")
    return grid_of(root, newest_journal(root))


def grid_of(root: Path, journal: Path) -> ResultGrid:
    records = SearchRecords(journal)
    for warning in unrecorded_trials(journal, records):
        warn_at_users_line(warning)
    facts = records.facts
    outcomes = [_outcome(root, facts, trial, end) for trial, end in records.trials()]
    return ResultGrid(
        outcomes,
        experiment_path=root,
        metric=facts.metric,
        mode=facts.mode,
        how_to_continue=_how_to_continue(root, journal, facts, outcomes),
    )


def _how_to_continue(root: Path, journal: Path, facts: Facts, outcomes: list[TrialOutcome]) -> str:
    if all(outcome.status == "finished" for outcome in outcomes) or lock.is_held(journal.with_suffix(".lock")):
        return ""
    failed = any(outcome.error is not None for outcome in outcomes)
    return search_line(str(root), facts.again, resume_errored=failed)


def _outcome(root: Path, facts: Facts, record: TrialCreated, end: TrialEnded | None) -> TrialOutcome:
    directory, evaluated = root / record.dir, from_description(record.evaluated)
    trial = Trial(
        trial_id=record.id,
        trainable_name=facts.trainable,
        local_path=str(directory),
        experiment_id=facts.id,
        experiment_name=facts.name,
        experiment_tag=record.tag,
        config=record.config if record.config is not None else _plain_part(evaluated),
        evaluated_params=evaluated,
    )
    if end is None:
        return _unfinished(trial, directory)
    return outcome_of_record(trial, end)


def _plain_part(evaluated: dict[str, Any]) -> dict[str, Any]:
    """Of a configuration that could not be written down: what the search chose, as far as it is plain data."""
    is_plain = {name: not (isinstance(value, dict) and "$index" in value) for name, value in evaluated.items()}
    return nested({name: value for name, value in evaluated.items() if is_plain[name]})


def _unfinished(trial: Trial, directory: Path) -> TrialOutcome:
    """Of a trial that had not ended only its own files tell how far it was."""
    try:
        result = load_result(directory)
    except (RestoreError, StorageError) as error:
        began = os.path.lexists(directory)
        result = Result(log_dir=directory, status="unfinished", warnings=[str(error)] if began else [])
    trial.last_result = result.metrics
    return TrialOutcome(trial, result.metrics, result.status, result.error, lambda: result)
