"""What a tracker is: the few methods that a service needs, and what it is told about a run.

Derive from `Tracker`, and pass ``TrackerCallback(MyTracker())`` in ``RunConfig(callbacks=[...])``. All methods but
`prepare` are called in one thread of the driver, never while a report waits. `delivery.py` and `courier.py` read the
run's journal, collect rows, try again, and remember what has arrived.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from msgspec import Struct

from paceline.air.constants import TRAINING_ITERATION
from paceline.air.result import Status
from paceline.trackers.values import numbers_in

Outcome = Literal["finished", "failed", "interrupted"]


def outcome_of(status: Status | None) -> Outcome:
    """How a run ended; one whose driver was killed was interrupted."""
    return status if status in ("finished", "failed") else "interrupted"


ATTEMPT_KEY = "paceline/attempt"
"""The metric by which services without tags for single rows tell the attempts of a run apart."""


class RejectedError(Exception):
    """The service will never take this, however often it is sent: it is passed over, with a warning."""


class RunGoneError(RejectedError):
    """The service's run was deleted: the rest of it is not sent either."""


class TrackedRun(Struct, frozen=True, kw_only=True):
    """What a tracker is told about a run, or about a trial of a search, when it begins or continues."""

    key: str
    """No other run has it, and whoever continues this run finds the same one."""
    name: str
    """As people read it, for example ``TorchTrainer_4913f_00000``."""
    experiment_name: str
    """Of the run, or of the search that it is a trial of."""
    is_trial: bool
    """It is one of the runs of a search, which belong together."""
    trial_id: str
    experiment_id: str
    """The trials of one search have the same."""
    experiment_tag: str
    trainer: str
    path: str
    """The run's directory on this machine."""
    config: dict[str, Any]
    """Plain and nested, without secrets."""
    started: float
    """Seconds since the epoch."""
    may_exist: bool = False
    """The service may have a run of this key although its id is not known: a driver can die before it has remembered
    the id."""
    attempt: int = 0
    hostname: str = ""
    node_ip: str = ""
    pid: int = 0
    world_size: int = 1

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth knowing about the run and was not configured."""
        names = ("trial_id", "experiment_id", "experiment_tag", "hostname", "node_ip", "pid", "world_size")
        return {name: getattr(self, name) for name in names}


class TrackedRow(Struct, frozen=True, kw_only=True):
    """What rank 0 reported once."""

    attempt: int
    """A retry is a new attempt. It repeats rows that came after its checkpoint, with the same index."""
    index: int
    """Counts the reports: 1, 2, ..."""
    ordinal: int
    """Counts the rows as they were written, whatever their attempt: 0, 1, ... It only ever grows."""
    time: float
    """When it was reported, in seconds since the epoch."""
    metrics: dict[str, Any]
    """What the user reported, with `training_iteration`, `time_total_s` and `time_this_iter_s`."""

    @property
    def step(self) -> int:
        """Where the row stands on the x axis of a service: `timesteps_total` if it is reported, else the iteration."""
        for name in ("timesteps_total", TRAINING_ITERATION):
            value = self.metrics.get(name)
            if type(value) is int and value:
                return value
        return self.index

    def numbers(self) -> dict[str, int | float]:
        """The numbers among the metrics; those of nested dicts have names such as ``a/b``."""
        return numbers_in(self.metrics)


class TrackedCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint that was committed."""

    number: int
    iteration: int
    attempt: int
    path: Path
    """Its directory. Retention may delete it at any time."""


class Tracker(ABC):
    """Sends runs to a service. One object serves all runs of a driver: they are told apart by the service's own ids.

    A method that cannot reach the service raises whatever it likes: it is called again later, and training goes on.
    It raises `RejectedError` if calling it again would not help.
    """

    name: ClassVar[str]
    """Short, for file names: ``mlflow``."""
    keeps_rows: bool = True
    """Rows that `send` has taken survive the death of this process. If not, those since the last `close` are sent
    again when the run is continued."""

    wants_checkpoints: bool = False
    """Call `add_checkpoint`."""

    @property
    def label(self) -> str:
        """What messages call the service."""
        return self.name

    def prepare(self) -> None:  # noqa: B027  # optional
        """Import the service's library. Called once in the driver, before workers start.

        Imports take seconds and hold the interpreter, so the driver could hardly answer workers meanwhile. What this
        raises is ignored: the other methods find the same problem.
        """

    @abstractmethod
    def open(self, run: TrackedRun, resume_id: str | None) -> str:
        """Begin the service's run, or continue the one with the id `resume_id`. Returns its id.

        Without an id, and if `run.may_exist`, look for a run of this `run.key` and continue it. That is not necessary
        where the id is made from the key.
        """

    @abstractmethod
    def send(self, run_id: str, rows: Sequence[TrackedRow]) -> None:
        """Hand rows over, oldest first. When it returns, the service has them, or will have them whatever happens.

        Rows may come again, if it raised or if the driver died before it could remember that it had returned.
        """

    @abstractmethod
    def close(self, run_id: str, outcome: Outcome) -> None:
        """The run has ended. It may be opened again: an interrupted or failed run can be continued."""

    def received(self, run_id: str) -> int | None:
        """How many rows the service has, so that none comes twice: all with a smaller `ordinal`. None: nobody knows.

        Asked after `open`, and again after a `send` that raised.
        """
        return None

    def change_config(self, run_id: str, config: dict[str, Any], attempt: int) -> None:  # noqa: B027  # optional
        """The run continues with another configuration, as in population based training."""

    def add_checkpoint(self, run_id: str, checkpoint: TrackedCheckpoint) -> None:  # noqa: B027  # optional
        """A checkpoint was committed. What retention has deleted meanwhile may be passed over."""
