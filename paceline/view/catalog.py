"""What runs and searches there are below a path: found once (`find`), or watched (`Catalog`).

Everything comes from the records of runs and searches. Nothing is locked or changed. One bad run is a Problem, not an
exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from paceline.air.errors import NewerVersionError, RestoreError, RunNotFoundError, StorageError
from paceline.run.found_runs import RunSummary, does_not_exist, summary_of_run_dir
from paceline.storage import lock
from paceline.storage.run_dir import RunDir, resolve_storage
from paceline.tune.experiment.following import FollowedSearch
from paceline.tune.experiment.summary import ExperimentSummary, summary_of_search
from paceline.view.places import RUN_JOURNAL, Folder, folders

if TYPE_CHECKING:
    from paceline.view.facts import RunFacts


class Problem(Struct):
    """Something that should be a run or a search and cannot be read."""

    path: str
    message: str
    damaged: bool
    """Its files are damaged. Otherwise it may become readable: it has not begun, or belongs to somebody else."""


class Found(Struct):
    """The runs and searches below a path, newest first. Trials are in their searches."""

    runs: list[RunSummary] = field(default_factory=list)
    searches: list[ExperimentSummary] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def find(path: str | Path, filesystem: Any = None) -> Found:
    """What is at a results directory, an experiment directory, a run, a search, or a URI of any of these."""
    place = resolve_storage(path)
    if isinstance(place, str):
        raise RestoreError(f"{place}: only local directories can be searched for runs.")
    missing = does_not_exist(str(path), filesystem, "results, of a run or of a search")
    if missing is not None:
        raise missing
    found = Found()
    for folder in folders(str(place)):
        _add_folder(found, folder)
    if not (found.runs or found.searches or found.problems):
        raise RunNotFoundError(
            f"{path} holds no runs: no journal.jsonl and no search is in it or up to two levels below."
        )
    found.runs.sort(key=lambda run: run.started, reverse=True)
    found.searches.sort(key=lambda search: search.started, reverse=True)
    return found


def run_facts(path: str | Path, filesystem: Any = None) -> RunFacts:
    """Everything that the records of one run say, rows left out. See facts.py."""
    from paceline.view import facts  # which a list of runs does not need

    return facts.run_facts(path, filesystem)


def _add_folder(found: Found, folder: Folder) -> None:
    if folder.problem is not None:
        found.problems.append(problem_of(folder.path, folder.problem))
        return
    if folder.is_run:
        _add_run(found, folder.path)
        return
    known: set[str] = set()
    at_work: list[str] = []
    for name in folder.searches:
        search = FollowedSearch(Path(folder.path, name))
        try:
            search.read_on()
            summary = summary_of_search(search)
        except (RestoreError, StorageError) as error:
            found.problems.append(problem_of(str(search.journal), error))
            continue
        found.searches.append(summary)
        known |= search.directories
        if summary.alive:
            at_work.append(summary.id[:5])
    for name in folder.below:
        path = os.path.join(folder.path, name)
        if name not in known and os.path.isfile(os.path.join(path, RUN_JOURNAL)):
            _add_run(found, path, at_work)


def _add_run(found: Found, path: str, at_work: Iterable[str] = ()) -> None:
    """`at_work` are live searches beside the run, whose newest trials may not be in their journals yet."""
    try:
        summary = summary_of_run_dir(RunDir(Path(path)))
    except (RestoreError, StorageError) as error:
        found.problems.append(problem_of(path, error))
        return
    if summary.trial_id.partition("_")[0] not in at_work:
        found.runs.append(summary)


def problem_of(path: str, error: RestoreError | StorageError) -> Problem:
    """What is wrong with a run, or with the journal of a search."""
    journal = path if path.endswith(".jsonl") else os.path.join(path, RUN_JOURNAL)
    if isinstance(error, RestoreError) and _is_empty(journal):
        is_alive = lock.is_held(Path(journal).with_suffix(".lock") if journal == path else Path(path, "lock"))
        text = "has not begun yet" if is_alive else "has no records: its driver was killed before it began"
        return Problem(path, f"{path} {text}.", damaged=False)
    is_refused = isinstance(error, StorageError) and error.errno is not None
    return Problem(path, str(error), damaged=not is_refused and not isinstance(error, NewerVersionError))


def _is_empty(journal: str) -> bool:
    try:
        return os.stat(journal).st_size == 0
    except OSError:
        return False
