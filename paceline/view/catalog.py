"""What runs and searches there are below a path: found once (`find`), or watched (`Catalog`).

Everything comes from the records of runs and searches. Nothing is locked or changed. One bad run is a Problem, not an
exception.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline.air.errors import RunNotFoundError
from paceline.air.secrets import without_credentials
from paceline.run.found_runs import does_not_exist
from paceline.run.run_summary import RunSummary
from paceline.storage.run_dir import resolve_storage
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary
from paceline.view.found import Changes as Changes
from paceline.view.found import Entry as Entry
from paceline.view.found import Found as Found
from paceline.view.found import Problem as Problem
from paceline.view.found import problem_of
from paceline.view.places import Folder, LocalPlace, Place
from paceline.view.watched import WatchedRun, WatchedSearch, is_alive

if TYPE_CHECKING:
    from paceline.view.facts import RunFacts

Kind = Literal["run", "search", "trial", "damaged"]
Summary = RunSummary | ExperimentSummary | TrialSummary | Problem


def find(path: str | Path, filesystem: Any = None) -> Found:
    """What is at a results directory, an experiment directory, a run, a search, or a URI of any of these."""
    catalog = Catalog(path, filesystem)
    missing = does_not_exist(str(path), filesystem, "results, of a run or of a search")
    if missing is not None:
        raise missing
    catalog.refresh()
    found = Found()
    for entry in catalog.entries():
        if entry.kind == "damaged" and isinstance(entry.summary, Problem):
            found.problems.append(entry.summary)
        elif isinstance(entry.summary, ExperimentSummary):
            found.searches.append(entry.summary)
        elif entry.kind == "run" and isinstance(entry.summary, RunSummary):
            found.runs.append(entry.summary)
    if not (found.runs or found.searches or found.problems):
        shown = without_credentials(str(path))
        raise RunNotFoundError(
            f"{shown} holds no runs: no journal.jsonl and no search is in it or up to two levels below."
        )
    found.runs.sort(key=lambda run: run.started, reverse=True)
    found.searches.sort(key=lambda search: search.started, reverse=True)
    return found


def run_facts(path: str | Path, filesystem: Any = None) -> RunFacts:
    """Everything that the records of one run say, rows left out. See facts.py."""
    from paceline.view import facts  # which a list of runs does not need

    return facts.run_facts(path, filesystem)


class Catalog:
    """The runs and searches below a path, which may come, change and go. Use it from one thread at a time.

    A look costs little where nothing has changed: directories are listed again when their time has changed, runs are
    read again when their journal has. What is alive is looked at each time; of thousands that are not, some each time.
    So it may take a few looks until a run is noticed that had ended and is continued. On a network file system changes
    by other machines are seen as late as that shows them. At a URI, see remote_places.py.
    """

    def __init__(self, path: str | Path, filesystem: Any = None) -> None:
        self._place = _place_at(path, filesystem)
        self._entries: dict[str, Entry] = {}
        """By path."""
        self._by_id: dict[str, str] = {}
        self._searches: dict[str, WatchedSearch] = {}
        self._runs: dict[str, WatchedRun] = {}
        self._looks = 0
        self._changes = Changes()

    def entries(self) -> list[Entry]:
        """All that was found, as of the last look."""
        return list(self._entries.values())

    def place(self, id: str) -> str:
        """The directory or URI of an id that was found; KeyError otherwise."""
        return self._place.uri_of(self._entries[self._by_id[id]].summary.path)

    def refresh(self) -> Changes:
        """Look again. What is there that cannot be read is an entry of its own."""
        self._changes, self._looks = Changes(), self._looks + 1
        seen: set[str] = set()
        folders = list(self._place.folders())
        self._look_at_searches(folders, seen)
        self._look_at_runs(folders, seen)
        for path in [path for path in self._entries if path not in seen]:
            self._remove(path)
        return self._changes

    # -- searches ---------------------------------------------------------------------------

    def _look_at_searches(self, folders: Sequence[Folder], seen: set[str]) -> None:
        before, self._searches = self._searches, {}
        for folder in folders:
            for name in folder.searches:
                path = f"{folder.path}/{name}"
                self._searches[path] = before.get(path) or self._place.search_at(folder.path, name)
        changed: dict[str, set[int]] = {}
        known = {path: search.summary for path, search in self._searches.items()}
        self._place.do_all([partial(_look_at_search, search, path, changed) for path, search in self._searches.items()])
        self._look_at_open_trials(changed)
        for path, search in self._searches.items():
            self._put_search(path, search, changed[path], search.summary is not known[path], seen)

    def _look_at_open_trials(self, changed: dict[str, set[int]]) -> None:
        due: list[tuple[str, int, WatchedRun]] = []
        for path, search in self._searches.items():
            runs = [(path, number, run) for number, run in search.open.items()]
            due += self._due(runs, lambda each: each[2], lambda each, path=path: each[1] in changed[path])
        different: dict[str, set[int]] = {path: set() for path in self._searches}
        self._place.do_all([partial(_look_at_trial, run, number, different[path]) for path, number, run in due])
        for path, numbers in different.items():
            self._searches[path].trials_changed(numbers)
            changed[path] |= numbers

    def _put_search(
        self, path: str, search: WatchedSearch, changed: set[int], is_different: bool, seen: set[str]
    ) -> None:
        if search.summary is None:
            return
        seen.add(path)
        if isinstance(search.summary, Problem):
            self._put(path, "damaged", None, search.summary)
            return
        parent = self._put(path, "search", None, search.summary, is_different=is_different)
        for number, trial in search.trials.items():
            seen.add(trial.path)
            if number in changed or trial.path not in self._entries:
                self._put(trial.path, "trial", parent, trial)

    # -- runs -------------------------------------------------------------------------------

    def _look_at_runs(self, folders: Sequence[Folder], seen: set[str]) -> None:
        before, self._runs = self._runs, {}
        at_work: dict[str, set[str]] = {}
        for folder in folders:
            if folder.problem is not None and folder.problem.errno == errno.ENOENT:  # it has just been removed
                continue
            if folder.problem is not None:
                seen.add(folder.path)
                self._put(folder.path, "damaged", None, problem_of(folder.path, folder.problem))
                continue
            searches = [self._searches[f"{folder.path}/{name}"] for name in folder.searches]
            known: set[str] = set().union(*(search.directories for search in searches))
            names = [name for name in folder.below if name not in known]
            paths = [folder.path] if folder.is_run else [f"{folder.path}/{name}" for name in names]
            alive = {
                each.summary.id[:5] for each in searches if isinstance(each.summary, ExperimentSummary) and each.alive
            }
            for path in paths:
                self._runs[path] = before.get(path) or self._place.run_at(path)
                at_work[path] = alive
        due = self._due(list(self._runs.values()), lambda run: run, lambda run: run.path not in before)
        self._place.do_all([run.look for run in due])
        for path, run in self._runs.items():
            summary = run.summary
            if summary is None or _belongs_to(summary, at_work[path]):
                continue
            seen.add(path)
            if path not in self._entries or self._entries[path].summary is not summary:
                self._put(path, "damaged" if isinstance(summary, Problem) else "run", None, summary)

    def _due(self, items: list[Any], run_of: Any, is_new: Any) -> list[Any]:
        """Those that are alive or new, and a part of the others, each time another one."""
        parts = max(1, math.ceil(len(items) / self._place.share))
        return [
            item
            for position, item in enumerate(items)
            if (position + self._looks) % parts == 0 or is_alive(run_of(item)) or is_new(item)
        ]

    # -- the table --------------------------------------------------------------------------

    def _put(self, path: str, kind: Kind, parent: str | None, summary: Summary, *, is_different: bool = True) -> str:
        entry = self._entries.get(path)
        if entry is None or (entry.kind, entry.parent) != (kind, parent) or (is_different and entry.summary != summary):
            entry = Entry(entry.id if entry is not None else self._id(path), kind, parent, summary)
            self._entries[path] = entry
            self._by_id[entry.id] = path
            self._changes.changed.append(entry)
        return entry.id

    def _remove(self, path: str) -> None:
        id = self._entries.pop(path).id
        del self._by_id[id]
        self._changes.removed.append(id)

    def _id(self, path: str) -> str:
        below = path.removeprefix(self._place.root).strip("/") or "."
        digest = hashlib.blake2b(below.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return base64.b32encode(digest).decode().lower()[:12]


def _place_at(path: str | Path, filesystem: Any) -> Place:
    place = resolve_storage(path)
    if isinstance(place, Path):
        return LocalPlace(str(place))
    from paceline.view.remote_places import RemotePlace  # not needed by most lists

    return RemotePlace(place, filesystem)


def _look_at_search(search: WatchedSearch, path: str, changed: dict[str, set[int]]) -> None:
    changed[path] = search.look()


def _look_at_trial(run: WatchedRun, number: int, changed: set[int]) -> None:
    if run.look():
        changed.add(number)


def _belongs_to(summary: RunSummary | Problem, at_work: set[str]) -> bool:
    """A new trial of a live search that its journal does not name yet."""
    return isinstance(summary, RunSummary) and summary.trial_id.partition("_")[0] in at_work
