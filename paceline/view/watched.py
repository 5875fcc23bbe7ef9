"""Runs and searches that are looked at again and again, each as cheaply as possible.

What is alive is looked at every time: its journal, and whether somebody still holds it. Of the others only the size and
time of the journal are compared. What a search has recorded as ended is not looked at again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from paceline.air.errors import RestoreError, StorageError
from paceline.run.found_runs import summary_of_run_dir
from paceline.run.run_summary import FollowedRun, RunSummary
from paceline.storage import lock
from paceline.storage.files import storage_error
from paceline.storage.journal_parts import RemoteJournal
from paceline.storage.run_dir import RunDir
from paceline.tune.experiment.following import FollowedSearch
from paceline.tune.experiment.summary import (
    ExperimentSummary,
    TrialSummary,
    ended_trial,
    found_trial,
    pending_trial,
    search_summary,
)
from paceline.view.found import Problem, problem_of

RUN_JOURNAL = RunDir(Path()).journal.name

Version = tuple[int, int, int]


def version_of(path: str) -> Version | None:
    """What changes when a file changes, or the list of names in a directory; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_ctime_ns  # of a change of rights, too


class WatchedRun(Protocol):
    """A place that is that of a run, or may become one."""

    path: str
    summary: RunSummary | Problem | None
    """None while there is no run."""

    def look(self) -> bool:
        """Look at it again; whether it differs from what it was."""
        ...


def may_pass(error: RestoreError | StorageError) -> bool:
    """A store that does not answer now may do so later."""
    return isinstance(error, StorageError) and error.errno is not None


def is_alive(run: WatchedRun) -> bool:
    return isinstance(run.summary, RunSummary) and run.summary.alive


class LocalRun:
    """A run in a local directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.summary: RunSummary | Problem | None = None
        self._journal = f"{path}/{RUN_JOURNAL}"
        self._version: Version | None = None
        self._followed: FollowedRun | None = None

    def look(self) -> bool:
        version = version_of(self._journal)
        if version == self._version and not self._may_have_changed():
            return False
        before, self._version = self.summary, version
        self.summary = None if version is None else self._read()
        return self.summary != before

    def _may_have_changed(self) -> bool:
        """Although its journal has not: its driver may have been killed, or may never write the first record."""
        if isinstance(self.summary, Problem):
            return self._is_empty
        try:
            return is_alive(self) and not lock.is_held(Path(self.path, "lock"))
        except StorageError:  # reading it says what is wrong
            return True

    @property
    def _is_empty(self) -> bool:
        return self._version is not None and self._version[1] == 0

    def _read(self) -> RunSummary | Problem | None:
        try:
            alive = lock.is_held(Path(self.path, "lock"))
            if self._is_empty:
                text = "has not begun yet" if alive else "has no records: its driver was killed before it began"
                return Problem(self.path, f"{self.path} {text}.", damaged=False)
            if self._followed is None and not alive:
                return summary_of_run_dir(RunDir(Path(self.path)))
            if self._followed is None:
                self._followed = FollowedRun(Path(self._journal))
            followed = self._followed
            if not alive:
                self._followed = None  # if it is continued, it is read again
            followed.read_on()
            return followed.summary(self.path, alive)
        except (RestoreError, StorageError) as error:
            self._followed = None
            return problem_of(self.path, error)
        except OSError as error:
            self._followed = None
            return problem_of(self.path, storage_error(error, self._journal, "reading the journal"))


class WatchedSearch:
    """A search, by its journal, and its trials."""

    def __init__(
        self,
        place: str,
        journal: Path | RemoteJournal,
        run_at: Callable[[str], WatchedRun],
        is_held: Callable[[], bool],
        version: Callable[[], object],
    ) -> None:
        """`place` is the directory or URI of the search. `version` says something else when the journal has changed."""
        self.place = place
        self.path = str(journal)
        self.summary: ExperimentSummary | Problem | None = None
        self.trials: dict[int, TrialSummary] = {}
        self.open: dict[int, WatchedRun] = {}
        """The trials whose end the search has not recorded, by number."""
        self.directories: set[str] = set()
        """The names of all that ever were those of its trials."""
        self._journal = journal
        self._run_at = run_at
        self._is_held = is_held
        self._version_now = version
        self._version: object = None
        self._followed = FollowedSearch(journal)

    @property
    def alive(self) -> bool:
        return isinstance(self.summary, ExperimentSummary) and self.summary.alive

    def look(self) -> set[int]:
        """Read what is new in the journal. Returns the numbers of the trials that may differ from what they were."""
        version = self._version_now()
        has_changed, self._version = version != self._version or version is None, version
        if not has_changed and not self.alive:
            return set()
        try:
            held = self._is_held()
            changed = self._read_on() if has_changed else set()
            if has_changed or not held:
                self.summary = search_summary(self._followed, self.place, held, list(self.trials.values()))
        except (RestoreError, StorageError) as error:
            if isinstance(self._journal, RemoteJournal) and self.summary is not None and may_pass(error):
                self._version = None
                return set()
            self.summary = self._problem(error)
            self.trials, self.open, self.directories = {}, {}, set()
            self._followed = FollowedSearch(self._journal)
            return set()
        return changed

    def _problem(self, error: RestoreError | StorageError) -> Problem:
        if self._followed.facts is None and self._followed.is_empty:
            return Problem(self.path, f"{self.path} has no records: the search has not begun.", damaged=False)
        return problem_of(self.path, error)

    def _read_on(self) -> set[int]:
        search = self._followed
        changed = search.read_on()
        self.directories = search.directories
        facts = search.facts
        for number in sorted(changed) if facts is not None else ():
            trial, end = search.table.trials[number], search.table.ended.get(number)
            if end is not None:
                assert facts is not None
                self.trials[number] = ended_trial(self.place, facts, trial, end)
                self.open.pop(number, None)
                continue
            run = self.open.get(number)
            path = f"{self.place}/{trial.dir}"
            if run is None or run.path != path:
                self.open[number] = self._run_at(path)
            self._put(number)
        return changed

    def _put(self, number: int) -> None:
        """The summary of a trial that has not ended, from its own files."""
        assert self._followed.facts is not None
        pending = pending_trial(self.place, self._followed.facts, self._followed.table.trials[number])
        run = self.open[number].summary
        self.trials[number] = found_trial(pending, run) if isinstance(run, RunSummary) else pending

    def trials_changed(self, numbers: set[int]) -> None:
        """The files of these trials say something new."""
        for number in numbers:
            self._put(number)
        if numbers and isinstance(self.summary, ExperimentSummary):
            self.summary = search_summary(self._followed, self.place, self.summary.alive, list(self.trials.values()))
