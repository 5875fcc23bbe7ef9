"""The experiment's journal: every kind of record, what is appended when, and how it is read back.

`n` is the number of the trial. Nothing is ever rewritten: the state of an experiment is what these records, read in
order, make of an empty one. Fields may be added, with a default; a change that earlier versions would misread needs a
new `VERSION`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from paceline.air.errors import RestoreError
from paceline.air.result import Status
from paceline.run.records import header_of
from paceline.storage.commit import is_put_aside
from paceline.storage.files import SharedSync
from paceline.storage.journal import Journal
from paceline.storage.journal_parts import RemoteJournal
from paceline.storage.record_format import RecordFormat
from paceline.storage.run_dir import RunDir, is_plain_name
from paceline.tune.search.space import chosen_in, from_description

VERSION = 2
"""1: the settings of the RunConfig had other names."""


class Facts(Struct, kw_only=True):
    """Everything plain that a restore needs to know of a search."""

    version: int = VERSION
    id: str
    name: str
    trainable: str
    seed: int
    space: Any = None
    """None if it holds functions or objects."""
    secrets: list[str] = []
    """Where the space has some; they are not stored."""
    searcher: Any = None
    scheduler: Any = None
    registered: dict[str, str] = {}
    """The search_alg and the scheduler that were asked for by a name that an installed package registers."""
    num_samples: int = 1
    metric: str | list[str] | None = None
    mode: str | list[str] | None = None
    max_concurrent_trials: int | None = None
    time_budget_s: float | None = None
    total: int | None = None
    """How many trials there will be; None: without end, or an earlier version did not write it down."""
    chdir_to_trial_dir: bool = True
    run: dict[str, Any]
    """The settings of its RunConfig."""
    again: list[str] = []
    """What Tuner.restore() must be given again besides the trainable, as it is written in a call."""
    time: float = 0.0

    def __post_init__(self) -> None:
        for earlier, name in (("checkpoints", "checkpoint_config"), ("failures", "failure_config")):
            if earlier in self.run:
                self.run[name] = self.run.pop(earlier)


class SearchStarted(Facts, tag_field="kind", tag="experiment"):
    """The first record."""


class SearchRestored(Facts, tag_field="kind", tag="restore"):
    """A driver took the search up again, with these settings."""


class TrialCreated(Struct, tag_field="kind", tag="trial", kw_only=True):
    n: int
    id: str
    dir: str
    tag: str = ""
    config: Any = None
    """None if it has no plain form."""
    evaluated: dict[str, Any] = {}
    time: float = 0.0

    def change(self, change: TrialChanged) -> None:
        """Take over the parameters that a scheduler has given the trial meanwhile."""
        if change.config is not None:
            self.config = change.config
            self.evaluated = chosen_in(change.config, self.evaluated)
        elif not isinstance(change.evaluated, UnsetType):
            self.evaluated = {**self.evaluated, **change.evaluated}


class RowSeen(Struct, tag_field="kind", tag="row", kw_only=True, omit_defaults=True):
    """A row that the scheduler, the searcher or the stopper saw."""

    n: int
    i: int
    row: dict[str, Any]
    decision: str | None = None
    """None: the trial continues."""


class TrialResumed(Struct, tag_field="kind", tag="run", kw_only=True):
    """A paused trial runs again."""

    n: int


class TrialStopped(Struct, tag_field="kind", tag="stop", kw_only=True):
    """A trial that waits will not run again."""

    n: int


class _Changed(Struct, kw_only=True):
    n: int
    config: Any = None
    """None: the one it has, unless `evaluated` says otherwise."""
    evaluated: dict[str, Any] | UnsetType = UNSET
    """What the scheduler chose, where the configuration has no plain form."""
    donor: int | None = None
    resources: dict[str, float] | None = None


class ChangePlanned(_Changed, tag_field="kind", tag="change"):
    """A paused trial is to continue changed when it is chosen to run."""


class TrialChanged(_Changed, tag_field="kind", tag="restart"):
    """A trial continues changed: with another configuration, other resources, or another trial's state."""


class TrialAgain(Struct, tag_field="kind", tag="again", kw_only=True):
    """A failed trial gets another chance."""

    n: int
    dir: str


class TrialEnded(Struct, tag_field="kind", tag="end", kw_only=True):
    """A trial is over, with its last row."""

    n: int
    status: Status
    metrics: dict[str, Any] = {}
    error: str = ""
    judged_by: dict[str, Any] | UnsetType = UNSET
    """The metrics that it is judged by, where the last row lacks them."""
    time: float = 0.0


class Stalled(Struct, tag_field="kind", tag="stall"):
    """The scheduler was told that nothing can continue."""


class SearcherSaved(Struct, tag_field="kind", tag="searcher", kw_only=True):
    """A searcher of the user's own knows everything so far; its state is in a file."""

    saved: int
    hash: str | None = None


class CallbackStates(Struct, tag_field="kind", tag="callbacks", kw_only=True):
    states: list[Any]


class SearchLeft(Struct, tag_field="kind", tag="finish", kw_only=True):
    """A driver has ended the search, or left it."""

    status: Status
    time: float = 0.0


Record = (
    SearchStarted | SearchRestored | TrialCreated | RowSeen | TrialResumed | TrialStopped | ChangePlanned | TrialChanged
    | TrialAgain | TrialEnded | Stalled | SearcherSaved | CallbackStates | SearchLeft
)  # fmt: skip

FORMAT: RecordFormat[Record] = RecordFormat(Record, VERSION)


class ExperimentJournal:
    """Appends to the journal of one experiment. What was flushed survives the death of the driver."""

    def __init__(self, path: Path, shared_sync: SharedSync) -> None:
        self._journal = Journal(path, shared_sync)

    def append(self, record: Record) -> None:
        self._journal.append(record, finite=False)

    def started(self, facts: Mapping[str, Any]) -> None:
        self.append(SearchStarted(**facts, time=time.time()))
        self._journal.sync()

    def restored(self, facts: Mapping[str, Any]) -> None:
        self.append(SearchRestored(**facts, time=time.time()))

    def trial_created(self, number: int, facts: Mapping[str, Any]) -> None:
        self.append(TrialCreated(n=number, **facts, time=time.time()))

    def row(self, number: int, index: int, row: Mapping[str, Any], decision: str | None) -> None:
        self.append(RowSeen(n=number, i=index, row=dict(row), decision=decision))

    def trial_ended(
        self, number: int, status: Status, metrics: Mapping[str, Any], error: str, judged_by: Mapping[str, Any]
    ) -> None:
        record = TrialEnded(n=number, status=status, metrics=dict(metrics), error=error, time=time.time())
        if not judged_by.keys() <= metrics.keys():  # said in an earlier row, or nested
            record.judged_by = dict(judged_by)
        self.append(record)

    def left(self, status: Status) -> None:
        self.append(SearchLeft(status=status, time=time.time()))

    def flush(self) -> None:
        self._journal.flush()

    def close(self) -> None:
        self._journal.close()


class TrialTable:
    """What the records say of each trial, by its number, when they are taken in order."""

    def __init__(self) -> None:
        self.trials: dict[int, TrialCreated] = {}
        """As they were last changed."""
        self.ended: dict[int, TrialEnded] = {}

    def take(self, record: Record) -> None:
        match record:
            case TrialCreated():
                self.trials[record.n] = record
            case TrialChanged():
                self.trials[record.n].change(record)
            case TrialAgain():
                self.trials[record.n].dir = record.dir
                self.ended.pop(record.n, None)
            case TrialEnded():
                self.ended[record.n] = record


class SearchRecords:
    """The records of an experiment, checked: the files may come from anywhere."""

    def __init__(self, journal: Path, *, with_rows: bool = True) -> None:
        try:
            self.all = list(FORMAT.read(journal) if with_rows else FORMAT.scan(journal, without="row"))
        except FileNotFoundError:
            raise RestoreError(f"{journal.parent} holds no experiment: it has no {journal.name}.") from None
        if not self.all or not isinstance(self.all[0], SearchStarted):
            raise RestoreError(f"{journal} does not begin with an experiment's description; it cannot be continued.")
        check = RecordCheck(journal)
        for record in self.all:
            check(record)

    @property
    def facts(self) -> Facts:
        """The experiment's description, as the last restore left it."""
        return next(record for record in reversed(self.all) if isinstance(record, Facts))

    @property
    def started(self) -> float:
        return self.all[0].time if isinstance(self.all[0], SearchStarted) else 0.0

    def trials(self) -> list[tuple[TrialCreated, TrialEnded | None]]:
        """Each trial as it was last changed, with its end, if it has come to one."""
        table = TrialTable()
        for record in self.all:
            table.take(record)
        return [(trial, table.ended.get(number)) for number, trial in sorted(table.trials.items())]

    @property
    def directories(self) -> set[str]:
        """The names of all directories of trials."""
        return {record.dir for record in self.all if isinstance(record, TrialCreated | TrialAgain)}


class RecordCheck:
    """What names a file must name one in the experiment's directory, and trials are numbered in order."""

    def __init__(self, journal: Path | RemoteJournal) -> None:
        self._journal = journal
        self._trials = 0

    def __call__(self, record: Record) -> None:
        """Raise RestoreError for a record that cannot be; of one that can, make its values what was written."""
        journal, is_new = self._journal, isinstance(record, TrialCreated)
        if isinstance(record, Facts) and not re.fullmatch(r"\w{5,64}", record.id, re.ASCII):
            raise RestoreError(f"{journal} names {record.id!r} as the experiment's id, which cannot be one.")
        self._trials += is_new
        number = getattr(record, "n", 0)
        if not (number == self._trials - 1 if is_new else 0 <= number < max(1, self._trials)):
            kind = record.__struct_config__.tag
            raise RestoreError(f"{journal} is damaged: a record {kind!r} names {number!r} as the number of its trial.")
        if isinstance(record, TrialCreated | TrialAgain):
            _check_directory(journal, record.dir)
        if isinstance(record, TrialCreated | ChangePlanned | TrialChanged) and record.config is not None:
            record.config = from_description(record.config)


def _check_directory(journal: Path | RemoteJournal, name: str) -> None:
    if not is_plain_name(name):
        raise RestoreError(f"{journal} names {name!r} as a trial's directory, which is not one below it.")
    if isinstance(journal, Path) and os.path.islink(os.path.join(journal.parent, name)):
        raise RestoreError(
            f"{journal.parent / name} is a symbolic link, so that a trial would write elsewhere. Replace it by the "
            "directory that it points to."
        )


def unrecorded_trials(journal: Path, records: SearchRecords) -> list[str]:
    """What to tell the user if trials of this experiment are in no record: the journal was cut short."""
    known = records.directories
    found = []
    for path in sorted(journal.parent.glob("*/journal.jsonl")):
        if path.parent.name not in known and not is_put_aside(path.parent):
            header = header_of(RunDir(path.parent))
            if header is not None and header.experiment_id == records.facts.id:
                found.append(path.parent.name)
    if not found:
        return []
    shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return [
        f"{journal} was cut short: it does not know {shown}, although these trials belong to the experiment. Their "
        "files stay as they are; Result.from_path reads them."
    ]
