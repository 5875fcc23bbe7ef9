"""What a run's journal consists of: every kind of record, and how a journal is read back.

`kind` is the tag of each struct. Nothing else knows what a record looks like in the file. Fields may be added, with a
default; a change that earlier versions would misread needs a new `FORMAT.version`.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from paceline.air.config import CheckpointConfig
from paceline.air.errors import RestoreError, RunNotFoundError
from paceline.air.result import Status
from paceline.air.settings import restored
from paceline.run.spec import TrialIdentity
from paceline.run.timing import StepTimes
from paceline.storage.record_format import RecordFormat
from paceline.storage.run_dir import RunDir

VERSION = 2
"""1: the settings of all configs were beside each other."""

Number = Annotated[int, Meta(ge=0)]
"""Of a checkpoint; it becomes a directory's name."""


class Header(Struct, tag_field="kind", tag="run", kw_only=True):
    """The first record: which run this is, and the settings that restore() takes over."""

    version: int = VERSION
    trainer: str
    experiment_name: str
    trial_id: str
    experiment_id: str
    experiment_tag: str
    settings: dict[str, Any]
    """As this version writes them, or an earlier one."""
    time: float = 0.0
    """Journals of earlier versions do not say it."""

    @property
    def current_settings(self) -> dict[str, Any]:
        """As this version writes them."""
        return self.settings if "run_config" in self.settings else _settings_of_version_1(self.settings)

    @property
    def checkpoint_config(self) -> CheckpointConfig:
        return restored(CheckpointConfig, self.current_settings["run_config"]["checkpoint_config"])


def _settings_of_version_1(settings: dict[str, Any]) -> dict[str, Any]:
    """As they are written today; what was not written down then is left to the defaults."""

    def among(names: Iterable[str]) -> dict[str, Any]:
        return {name: settings[name] for name in names if name in settings}

    run_config = {
        **among(["stop", "max_log_bytes", "log_to_file"]),
        "checkpoint_config": among(field.name for field in dataclasses.fields(CheckpointConfig)),
        "failure_config": among(["max_failures"]),
    }
    scaling_config = among(["num_workers", "use_gpu", "resources_per_worker"])
    return {**settings, "run_config": run_config, "scaling_config": scaling_config}


class AttemptStarted(Struct, tag_field="kind", tag="attempt", kw_only=True):
    """Workers were started. Rows after `start_index` that were there before are superseded; new ones are completed
    from this record."""

    attempt: int
    start_index: int = 0
    start_time_s: float = 0.0
    checkpoint: int | None = None
    """The number of the run's own checkpoint that it began from."""
    world_size: int = 1
    time: float = 0.0
    warmup_time: float = 0.0
    hostname: str = ""
    node_ip: str = ""
    pid: int = 0
    config: dict[str, Any] | UnsetType | None = UNSET
    """Where it may be another than in the header; None if it is not plain data."""
    code: dict[str, Any] | UnsetType | None = UNSET
    """The fingerprint of the code that a continued run was continued with."""
    versions: dict[str, str] | UnsetType = UNSET
    """Of Python, paceline and frameworks; a search does not write them for its trials."""
    data: dict[str, Any] | UnsetType = UNSET
    """Rows and blocks of the datasets, by name."""
    version: int | UnsetType = UNSET
    """Said by the attempts of a continued run: an earlier version may have begun the journal."""


class Row(Struct, tag_field="kind", tag="row", kw_only=True, omit_defaults=True):
    """One rank's metrics of one report."""

    attempt: int
    index: int
    rank: int
    stamp: float
    elapsed: float
    metrics: dict[str, Any]
    reduced: dict[str, Any] | None = None
    """Of rank 0, where values were put together over ranks: the metrics with these."""
    times: StepTimes | None = None
    """Of the rank's steps since its last row that has them. Earlier versions did not write it."""


class RankUse(Struct, frozen=True, array_like=True):
    """What one rank uses: its process, and what that has started."""

    rank: int
    cpu: float
    """Cores, on average since the record before this one. 1.0 is one busy core."""
    memory: int
    """Resident bytes; what processes share counts for each of them."""
    processes: int = 1
    start: int = 0
    """Resident bytes when the attempt began, and the most that was seen of them so far. 0 in earlier versions."""
    peak: int = 0


class RanksUsed(Struct, tag_field="kind", tag="usage", kw_only=True):
    """What the ranks use of their machines, now and then."""

    attempt: int
    time: float
    ranks: list[RankUse]


class CheckpointCommitted(Struct, tag_field="kind", tag="checkpoint", kw_only=True):
    """A checkpoint is there, complete."""

    number: Number
    iteration: int
    attempt: int = 0
    score: float | None = None
    size: int = 0
    row: dict[str, Any] = {}
    """The row it was reported with, as observers saw it."""
    time: float = 0.0
    """Journals of earlier versions do not say it."""


class CheckpointRetired(Struct, tag_field="kind", tag="delete", kw_only=True, omit_defaults=True):
    """A checkpoint need not be there any more."""

    number: Number
    reason: str | None = None
    """"damaged": what is left of it stays for the user to look at."""


class ValidationRequested(Struct, tag_field="kind", tag="validate", kw_only=True, omit_defaults=True):
    """The checkpoint that the row comes with is to be validated. Written before the checkpoint is committed, so that
    it is known whenever the checkpoint is there."""

    attempt: int
    index: int
    number: Number
    """Of the checkpoint."""
    time: float
    kwargs: dict[str, Any] = {}


class Validated(Struct, tag_field="kind", tag="validated", kw_only=True):
    """The metrics of a validation. They belong to the row with this attempt and index, and to its checkpoint."""

    attempt: int
    index: int
    number: Number
    time: float
    duration_s: float
    metrics: dict[str, Any]
    counters: dict[str, Any] = {}
    """Those of the row by which trackers place it: training_iteration, timesteps_total."""


class ValidationFailed(Struct, tag_field="kind", tag="validation_failed", kw_only=True):
    """A validation failed, and is not tried again."""

    attempt: int
    index: int
    number: Number
    time: float
    rank: int = 0
    cause: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def in_words(self) -> str:
        return f"rank {self.rank}: {self.message}"


class TrainingEnded(Struct, tag_field="kind", tag="trained", kw_only=True):
    """The training is over; the run ends when its validations have. A continued run has nothing more to train."""

    attempt: int
    time: float


class AttemptFailed(Struct, tag_field="kind", tag="failure", kw_only=True):
    """The cause of an attempt's failure."""

    attempt: int
    rank: int = 0
    cause: str = ""
    message: str = ""
    traceback: str = ""
    charged: bool = True
    """Whether it counted towards max_failures."""
    time: float = 0.0
    """Journals of earlier versions do not say it."""

    @property
    def in_words(self) -> str:
        return f"rank {self.rank}: {self.message}"


class Reached(Struct, kw_only=True):
    """How far a run has come: what a summary shows."""

    iteration: int | float = 0
    """Usually a count; but a `training_iteration` that the user reports wins, and may be any number."""
    time_total_s: float = 0.0
    attempts: int = 0
    world_size: int = 0
    """Of the last attempt; 0 if it is not known."""
    metrics: dict[str, Any] = {}
    """Of the last row: what the user reported."""
    best: dict[str, Any] = {}
    """Of the best checkpoint that is kept; empty without a score attribute."""
    checkpoints: list[int] = []
    """The numbers of those that are kept, oldest first."""
    size: int = 0
    """Of these checkpoints, in bytes."""
    error: str = ""
    """The cause of the last failure, whether or not the run was retried."""


class Ended(Struct, tag_field="kind", tag="end", kw_only=True):
    """The run is over, or its driver left it."""

    status: Status
    message: str = ""
    time: float = 0.0
    reached: Reached | UnsetType = UNSET
    """Here too, so that nobody has to read a long journal to show a run. Earlier versions did not write it."""
    warnings: list[str] = []
    """What the user was warned of. Earlier versions did not write it."""


OfValidation = ValidationRequested | Validated | ValidationFailed
Record = (
    Header
    | AttemptStarted
    | Row
    | RanksUsed
    | CheckpointCommitted
    | CheckpointRetired
    | OfValidation
    | TrainingEnded
    | AttemptFailed
    | Ended
)

FORMAT: RecordFormat[Record] = RecordFormat(Record, VERSION)
ROW = "row"


class RunRecords:
    """All that a journal says of a run, rows left out."""

    def __init__(self, records: Sequence[Record], journal: Path) -> None:
        if not records or not isinstance(records[0], Header):
            raise RestoreError(f"{journal} does not begin with a run's description; it cannot be continued.")
        self.header = records[0]
        self._records = records

    @classmethod
    def read(cls, run_dir: RunDir) -> RunRecords:
        """From a run's directory; a RestoreError says why there is nothing to read."""
        try:
            return cls(list(FORMAT.read(run_dir.journal, without=ROW)), run_dir.journal)
        except FileNotFoundError:
            raise no_journal(run_dir) from None

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @property
    def settings(self) -> dict[str, Any]:
        """Those the run was started with."""
        return self.header.current_settings

    @property
    def attempts(self) -> int:
        """How many times workers were started."""
        return 1 + max((record.attempt for record in self if isinstance(record, AttemptStarted)), default=-1)

    @property
    def world_size(self) -> int:
        """How many workers the last attempt had; 0 if there was none."""
        return next((record.world_size for record in reversed(self._records) if isinstance(record, AttemptStarted)), 0)

    @property
    def last_end(self) -> Ended | None:
        """What the last driver wrote when it ended the run; None if it was cut off, or is at work."""
        last = [record for record in self if isinstance(record, AttemptStarted | Ended)][-1:]
        return last[0] if last and isinstance(last[0], Ended) else None

    @property
    def ended_as(self) -> Status | None:
        """How the last driver ended the run; None if it was cut off, or is at work."""
        return self.last_end.status if self.last_end is not None else None

    @property
    def last_message(self) -> str:
        """What the last driver that ended the run said about it."""
        return next((record.message for record in reversed(self._records) if isinstance(record, Ended)), "")

    @property
    def last_cause(self) -> str:
        """Why the last attempt that failed did so."""
        return next((record.in_words for record in reversed(self._records) if isinstance(record, AttemptFailed)), "")

    @property
    def code(self) -> dict[str, Any] | None:
        """The fingerprint of the code that the run was last started with; None if that is not known."""
        said = [record.code for record in self if isinstance(record, AttemptStarted)]
        return _last(said, self.settings.get("code"))

    @property
    def config(self) -> dict[str, Any] | None:
        """The configuration that the run was last started with; None if it is not plain data."""
        said = [record.config for record in self if isinstance(record, AttemptStarted)]
        return _last(said, self.settings["config"])

    @property
    def training_ended(self) -> bool:
        """The training is over, though validations may not be."""
        last = [record for record in self if isinstance(record, AttemptStarted | TrainingEnded)][-1:]
        return bool(last) and isinstance(last[0], TrainingEnded)

    @property
    def has_checkpoints(self) -> bool:
        """Whether the run ever committed a checkpoint of its own."""
        return any(isinstance(record, CheckpointCommitted) for record in self)

    @property
    def last_time(self) -> float:
        """When something was last written that says its time."""
        return max((record.time for record in self if isinstance(record, AttemptStarted | Ended)), default=0.0)


def _last(said: list[dict[str, Any] | UnsetType | None], default: dict[str, Any] | None) -> dict[str, Any] | None:
    return next((value for value in reversed(said) if not isinstance(value, UnsetType)), default)


def no_journal(run_dir: RunDir, place: str = "") -> RunNotFoundError:
    return RunNotFoundError(f"{place or run_dir.root} holds no run: it has no {run_dir.journal.name}.")


def header_of(run_dir: RunDir) -> Header | None:
    """The description of a run; only the beginning of its journal is read. None if it has none."""
    try:
        first = next(FORMAT.read(run_dir.journal), None)
    except (OSError, RestoreError):
        return None
    return first if isinstance(first, Header) else None


def last_ending(run_dir: RunDir) -> Status | None:
    """How the last driver ended the run; only the end of its journal is read."""
    end = FORMAT.last_of(run_dir.journal, "end", unless="attempt")
    return end.status if isinstance(end, Ended) else None


def recorded_checkpoints(journal: Path) -> set[int]:
    """The numbers of all checkpoints that a journal speaks of."""
    records = FORMAT.read(journal, without=ROW)
    return {record.number for record in records if isinstance(record, CheckpointCommitted)}


def surviving_indices(run_dir: RunDir) -> list[int]:
    """The indices of rank 0's rows that no later attempt has superseded."""
    indices: list[int] = []
    for record in FORMAT.read(run_dir.journal):
        if isinstance(record, AttemptStarted):
            del indices[bisect.bisect_right(indices, record.start_index) :]
        elif isinstance(record, Row) and record.rank == 0:
            indices.append(record.index)
    return indices


def identity_of(header: Header) -> TrialIdentity:
    """The names that the run goes by."""
    return TrialIdentity(header.trial_id, header.experiment_id, header.experiment_tag)
