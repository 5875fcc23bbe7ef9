"""What a catalog consists of."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from paceline.air.errors import NewerVersionError, RestoreError, StorageError
from paceline.run.run_summary import RunSummary
from paceline.tune.experiment.summary import ExperimentSummary, TrialSummary


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


class Entry(Struct):
    """One run, search, trial or problem of a catalog."""

    id: str
    """Twelve letters and digits, which follow from its place below the root."""
    kind: Literal["run", "search", "trial", "damaged"]
    """damaged: whatever cannot be read; the Problem says whether it is damage."""
    parent: str | None
    """The id of a trial's search."""
    summary: RunSummary | ExperimentSummary | TrialSummary | Problem


class Changes(Struct):
    """What has changed between two looks."""

    changed: list[Entry] = field(default_factory=list)
    """Also those that are new."""
    removed: list[str] = field(default_factory=list)
    """Their ids."""


def problem_of(path: str, error: RestoreError | StorageError) -> Problem:
    """What is wrong with a run, or with the journal of a search."""
    is_refused = isinstance(error, StorageError) and error.errno is not None
    return Problem(path, str(error), damaged=not is_refused and not isinstance(error, NewerVersionError))
