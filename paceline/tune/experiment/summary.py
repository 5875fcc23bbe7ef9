"""A search from its journal, in one struct, which is what everything that displays searches shows.

As with the summary of a run nothing is locked, changed or unpickled. Files of trials are looked at only where the
search's own journal does not say how a trial ended.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, UnsetType

from paceline.air.background_pool import in_parallel
from paceline.air.constants import TRAINING_ITERATION
from paceline.air.errors import RestoreError, StorageError
from paceline.air.metrics import nested_get, reported
from paceline.run.found_runs import does_not_exist, search_line, summary_of
from paceline.run.records import Reached
from paceline.run.run_summary import RunStatus, RunSummary, most_iterations
from paceline.storage import lease, lock
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import RemoteJournal
from paceline.storage.run_dir import SEARCH_JOURNALS, resolve_storage
from paceline.tune.experiment.following import FollowedSearch
from paceline.tune.experiment.records import Facts, TrialCreated, TrialEnded

_PARALLEL_LOOKS = 16


class TrialSummary(RunSummary, kw_only=True):
    """A trial is a run of a search, with a number."""

    number: int
    params: dict[str, Any]
    """What the search chose for it, as far as it is plain data."""


class ExperimentSummary(Struct, kw_only=True):
    """What a search is, whether it is alive, and what its trials have reached."""

    path: str
    name: str
    id: str
    trainable: str
    metric: str | list[str] | None
    mode: str | list[str] | None
    num_samples: int
    status: RunStatus
    alive: bool
    started: float
    ended: float | None
    trials: list[TrialSummary]
    total: int | None = None
    """How many trials there will be; None if nobody knows. One that has finished may have ended with fewer."""
    again: list[str] = []
    """What Tuner.restore() must be given again besides the trainable."""

    @property
    def total_trials(self) -> int | None:
        """How many trials there will have been: of a finished search those that there are, otherwise `total`."""
        if self.status == "finished":
            return len(self.trials)
        return None if self.total is None else max(self.total, len(self.trials))

    @property
    def how_to_continue(self) -> str:
        """The call that continues the search, or runs its failed trials again; empty if there is nothing to do."""
        failed = any(trial.status == "failed" for trial in self.trials)
        if self.alive or (self.status == "finished" and not failed):
            return ""
        return search_line(self.path, self.again, resume_errored=failed)

    @property
    def best(self) -> TrialSummary | None:
        """The trial with the best last value of the metric, failed ones left out as in get_best_result(); None without
        a metric, or if none has reported it."""
        if not isinstance(self.metric, str) or self.mode not in ("min", "max"):
            return None
        sign = 1.0 if self.mode == "max" else -1.0
        candidates = [trial for trial in self.trials if trial.status != "failed"]
        scored = [(sign * value, trial) for trial in candidates if (value := score(trial, self.metric)) is not None]
        return max(scored, key=lambda each: each[0])[1] if scored else None


def score(trial: TrialSummary, metric: str) -> float | None:
    """The last value of a trial's metric; None unless it is a finite number."""
    value = nested_get(trial.reached.metrics, metric)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of some hundred digits
        return None


def experiment_summary_of(path: str | Path, filesystem: Any = None) -> ExperimentSummary:
    """The summary of the newest search in a directory, or at a URI."""
    from paceline.tune.experiment.files import newest_journal  # not needed by a list

    root = resolve_storage(path)
    if isinstance(root, str):
        return _remote_summary(root, filesystem)
    journal = newest_journal(root)
    search = FollowedSearch(journal)
    search.read_on()
    alive = lock.is_held(journal.with_suffix(".lock"))
    return search_summary(search, str(root), alive, list(_trials(search, str(root)).values()))


def _remote_summary(uri: str, filesystem: Any) -> ExperimentSummary:
    from paceline.tune.experiment.files import no_search

    store = FsspecFilesystem(uri, filesystem)
    names = fnmatch.filter(store.entries()[0], SEARCH_JOURNALS)
    if not names:
        raise does_not_exist(uri, filesystem, "a search") or no_search(uri, filesystem)
    searches = {name: FollowedSearch(RemoteJournal(store, name)) for name in names}
    for search in searches.values():
        search.read_on()
    newest = max(names, key=lambda name: searches[name].last_time)
    search = searches[newest]
    trials = _trials(search, store.label, uri, filesystem)
    alive = lease.is_held(store, f"{newest.removesuffix('.jsonl')}.lease")
    return search_summary(search, store.label, alive, list(trials.values()))


def _trials(
    search: FollowedSearch, place: str, uri: str | None = None, filesystem: Any = None
) -> dict[int, TrialSummary]:
    """Files of trials are looked at only where the search does not know their end."""
    trials: dict[int, TrialSummary] = {}
    if search.facts is None:
        return trials
    looks = []
    for number, trial in search.table.trials.items():
        if (end := search.table.ended.get(number)) is not None:
            trials[number] = ended_trial(place, search.facts, trial, end)
        else:
            trials[number] = pending_trial(place, search.facts, trial)
            looks.append(partial(_look_at, trials, number, f"{uri or place}/{trial.dir}", filesystem))
    if uri is not None:
        in_parallel(looks, "paceline-look", _PARALLEL_LOOKS)
    else:
        for look in looks:
            look()
    return trials


def _look_at(trials: dict[int, TrialSummary], number: int, place: str, filesystem: Any) -> None:
    with contextlib.suppress(RestoreError, StorageError):
        trials[number] = found_trial(trials[number], summary_of(place, filesystem))


def search_summary(search: FollowedSearch, place: str, alive: bool, trials: list[TrialSummary]) -> ExperimentSummary:
    """What a search at a place has come to, as far as it was read."""
    facts, left = search.facts, search.left
    if facts is None:
        raise RestoreError(f"{search.journal} does not begin with an experiment's description; it cannot be continued.")
    return ExperimentSummary(
        path=place,
        name=facts.name,
        id=facts.id,
        trainable=facts.trainable,
        metric=facts.metric,
        mode=facts.mode,
        num_samples=facts.num_samples,
        status=left.status if left is not None else "running" if alive else "killed",
        alive=alive,
        started=search.started,
        ended=left.time if left is not None else None,
        trials=trials,
        total=facts.total,
        again=facts.again,
    )


def found_trial(pending: TrialSummary, run: RunSummary) -> TrialSummary:
    """A trial, by what its own files say."""
    values = {name: getattr(run, name) for name in RunSummary.__struct_fields__}
    return TrialSummary(**values, number=pending.number, params=pending.params)


def pending_trial(root: str, facts: Facts, trial: TrialCreated) -> TrialSummary:
    """A trial of which nothing is known but that it was created. `root` is the directory or URI of its search."""
    return TrialSummary(
        path=f"{root}/{trial.dir}",
        name=facts.name,
        trial_id=trial.id,
        trainer=facts.trainable,
        status="pending",
        alive=False,
        num_workers=1,
        started=0.0,
        ended=None,
        reached=Reached(),
        most_iterations=most_iterations(facts.run.get("stop")),
        number=trial.n,
        params=trial.evaluated,
    )


def ended_trial(root: str, facts: Facts, trial: TrialCreated, end: TrialEnded) -> TrialSummary:
    """A trial whose end the search has recorded."""
    row = end.metrics
    metrics = {**({} if isinstance(end.judged_by, UnsetType) else end.judged_by), **reported(row)}
    iteration, seconds = row.get(TRAINING_ITERATION), row.get("time_total_s")
    summary = pending_trial(root, facts, trial)
    summary.status = end.status
    summary.started, summary.ended = trial.time, end.time
    summary.error = end.error
    summary.reached = Reached(
        iteration=iteration if isinstance(iteration, int) else 0,
        time_total_s=seconds if isinstance(seconds, int | float) else 0.0,
        attempts=1 if row else 0,
        metrics=metrics,
        error=end.error,
    )
    return summary
