"""What user code calls inside a worker.

The functions here find the session that the worker installed and hand over to it. Outside
a run each of them warns once and returns its default, so that a training function can be
tried out by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from paceline.air.absent import advise
from paceline.air.checks import names_what_was_meant, warn_at_users_line
from paceline.air.errors import MetricError, SessionMisuseError
from paceline.air.rank_slot import here

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.loader_epochs import LoaderEpochs
    from paceline.air.preemption import Preemption
    from paceline.air.resources import PlacementGroupFactory
    from paceline.air.timing import BatchClock
    from paceline.air.validation import ValidationTask

__all__ = [
    "get_checkpoint",
    "get_dataset_shard",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_metadata",
    "get_node_rank",
    "get_previous_world_size",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "preempted",
    "report",
    "should_checkpoint",
]


class ReportedCheckpoint(NamedTuple):
    """A checkpoint of a run, with the metrics that it was reported with."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]


class SessionProtocol(Protocol):
    """Everything that a worker's session offers to user code and to the loops of trainers."""

    world_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    is_elastic: bool
    """The number of workers may be another one in the next attempt."""
    previous_world_size: int | None
    trial_name: str
    trial_id: str
    trial_dir: str
    experiment_name: str
    trial_resources: dict[str, Any]
    """The run's bundles and strategy as data."""
    metadata: dict[str, Any]
    shards: dict[str, Any]
    """This rank's part of each dataset, by name."""
    preprocessor: Any
    """Fitted by the run; goes into every checkpoint that has none of its own."""
    at_end: list[Callable[[bool], None]]
    """Called when the train function has ended, with whether it failed. Workers do not run `atexit` hooks."""

    @property
    def clock(self) -> BatchClock | None:
        """Whoever hands out batches tells it; None outside a run."""

    @property
    def loader_epochs(self) -> LoaderEpochs | None:
        """Whoever prepares a DataLoader asks with which epoch it begins; None outside a run."""

    @property
    def reports(self) -> int:
        """How many times this rank has reported in this attempt."""

    @property
    def rows_before(self) -> int:
        """How many rows this run has kept from attempts before this one."""

    @property
    def keeps_all_ranks(self) -> bool:
        """The files of all ranks' checkpoints are kept; otherwise those of rank 0."""

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | None = None,
        reduce: Mapping[str, str | tuple[str, float]] | None = None,
        validation: bool | ValidationTask | None = None,
    ) -> dict[str, float] | None: ...

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Hand in a checkpoint for the row that was reported last, which had none; every rank calls it."""

    def warn(self, text: str) -> None:
        """Show the user a warning, in the run's output and in `result.warnings`; only rank 0's is shown."""

    def meet(self, called: str, content: bytes | None = None) -> bytes | None: ...

    def get_all_reported_checkpoints(self) -> list[ReportedCheckpoint]: ...

    def get_checkpoint(self) -> Checkpoint | None: ...

    def get_dataset_shard(self, name: str | None = None) -> Any: ...

    def should_checkpoint(self) -> bool: ...

    def preempted(self) -> Preemption | None: ...

    def snapshot_begins(self) -> None:
        """For loops that do other work between should_checkpoint() and the snapshot: that work is not its cost."""

    def snapshot_ends(self) -> None:
        """Nor is the work until report(), which counts by itself."""


class _OutsideRun:
    """The session where there is no run: one rank, no data, and nobody to report to."""

    local_rank = node_rank = local_world_size = 0
    trial_name = trial_id = trial_dir = experiment_name = ""
    reports = rows_before = 0
    is_elastic = False
    previous_world_size: int | None = None
    keeps_all_ranks = False
    preprocessor = clock = loader_epochs = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        self.world_rank = world_rank
        self.world_size = world_size
        self.trial_resources: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.shards: dict[str, Any] = {}
        self.at_end: list[Callable[[bool], None]] = []

    def report(
        self, metrics: Mapping[str, Any], checkpoint: Any = None, reduce: Any = None, validation: Any = None
    ) -> None: ...

    def add_checkpoint(self, checkpoint: Checkpoint) -> None: ...

    def warn(self, text: str) -> None: ...

    def meet(self, called: str, content: bytes | None = None) -> None: ...

    def get_all_reported_checkpoints(self) -> list[ReportedCheckpoint]:
        return []

    def get_checkpoint(self) -> None: ...

    def get_dataset_shard(self, name: str | None = None) -> None: ...

    def should_checkpoint(self) -> bool:
        return False

    def preempted(self) -> None: ...

    def snapshot_begins(self) -> None: ...

    def snapshot_ends(self) -> None: ...


_outside: SessionProtocol = _OutsideRun()
_warned: set[str] = set()


def install(session: SessionProtocol | None) -> None:
    """Make `session` the one that the functions of this module use; None takes it away."""
    slot = here()
    slot.session = session
    slot.owner_pid = os.getpid()


def current() -> SessionProtocol | None:
    """The session of this worker, or None outside a run."""
    return here().session


def active() -> SessionProtocol:
    """The session of this worker; outside a run one that does nothing, as for a single rank without data."""
    return here().session or _outside


def required(message: str) -> SessionProtocol:
    """The session of this worker; outside a run a SessionMisuseError with this message."""
    session = here().session
    if session is None:
        raise SessionMisuseError(message)
    return session


def asked(called: str, default: object) -> SessionProtocol:
    """For a function that users know as `called`: like `active()`, but outside a run it warns, once per function."""
    session = here().session
    if session is not None:
        return session
    if called not in _warned:
        _warned.add(called)
        warn_at_users_line(
            f"{called} was called outside a training run and returns {default!r}. "
            "It has its meaning in the function that a Trainer runs."
        )
    return _outside


@contextmanager
def called_by_driver(rank: int, world_size: int) -> Iterator[None]:
    """While a function runs that the driver calls in a worker, as backends do, the worker knows its rank."""
    slot = here()
    slot.called = _OutsideRun(rank, world_size)
    try:
        yield
    finally:
        slot.called = None


def rank_asked(called: str, default: object) -> SessionProtocol:
    """Like `asked()`, for the rank and the number of workers: a backend's functions may ask for them as well."""
    return here().called or asked(called, default)


def _refuse_in_child(called: str, advice: str) -> None:
    """A forked child shares the worker's line to the driver: it would take answers that are not for it."""
    slot = here()
    if slot.session is not None and os.getpid() != slot.owner_pid:
        raise SessionMisuseError(
            f"{called} was called in process {os.getpid()}, a child of the worker process {slot.owner_pid}. {advice}"
        )


@names_what_was_meant(metric="did you mean metrics?")
def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    reduce: Mapping[str, str | tuple[str, float]] | None = None,
    *,
    validation: bool | ValidationTask | None = None,
    checkpoint_dir_name: str | None = None,
) -> dict[str, float] | None:
    """Hand one row of metrics, and maybe a checkpoint, to the run; each call is one iteration.

    `reduce` names metrics to be combined over all ranks ("mean", "rms", "sum", "min", "max"): the call
    then waits for every rank and returns the combined values. `validation` has the checkpoint validated by other
    workers, as the trainer's ValidationConfig says, while training continues.
    """
    return report_as("session.report()", metrics, checkpoint, reduce, checkpoint_dir_name, validation)


def report_as(
    called: str,
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    reduce: Mapping[str, str | tuple[str, float]] | None = None,
    checkpoint_dir_name: str | None = None,
    validation: bool | ValidationTask | None = None,
) -> dict[str, float] | None:
    """`report()`, by the name that the user knows it under."""
    if checkpoint_dir_name is not None:
        raise SessionMisuseError(
            f"report(checkpoint_dir_name={checkpoint_dir_name!r}): checkpoint directories are numbered "
            "(checkpoint_000000, ...). Leave it out, and keep the name with "
            f"checkpoint.set_metadata({{'name': {checkpoint_dir_name!r}}}) or as a metric."
        )
    session = asked(called, None)
    _refuse_in_child(
        "report()", "Only the worker itself can report: send the values to it, for example by returning them."
    )
    if reduce is not None and session is not _outside and not isinstance(reduce, Mapping):
        raise MetricError(f"report(reduce={reduce!r}): reduce takes a dict such as {{'loss': 'mean'}}.")
    return session.report(metrics, checkpoint, reduce, validation)


def meet(called: str, content: bytes | None, outside: object) -> bytes | None:
    """Wait until every rank has made this call; what rank 0 brought. `outside` is what users get outside of a run."""
    session = asked(f"train.{called}", outside)
    _refuse_in_child(called, "Call it in the worker itself.")
    return session.meet(called, content)


def get_all_reported_checkpoints() -> list[ReportedCheckpoint]:
    """The checkpoints that this run has committed and kept so far, oldest first, with their metrics."""
    session = asked("session.get_all_reported_checkpoints()", [])
    _refuse_in_child("get_all_reported_checkpoints()", "Call it in the worker itself.")
    return session.get_all_reported_checkpoints()


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of this run, else the one to resume from, else None."""
    return checkpoint_as("session.get_checkpoint()")


def checkpoint_as(called: str) -> Checkpoint | None:
    """`get_checkpoint()`, by the name that the user knows it under."""
    session = asked(called, None)
    _refuse_in_child("get_checkpoint()", "Call it in the worker itself and hand the checkpoint on.")
    return session.get_checkpoint()


def get_dataset_shard(dataset_name: str | None = None) -> Any:
    """This worker's part of a dataset; the name may be left out where there is only one."""
    session = asked("session.get_dataset_shard()", None)
    _refuse_in_child("get_dataset_shard()", "Call it in the worker itself and hand the data on.")
    return session.get_dataset_shard(dataset_name)


def should_checkpoint() -> bool:
    """Whether to save now and report the checkpoint: the run is preempted, or `max_overhead` allows the next one.

    Call it once per step on every rank: the n-th call gives the same answer on all of them. None waits for another.
    """
    session = asked("train.should_checkpoint()", False)
    _refuse_in_child("should_checkpoint()", "Call it in the worker itself.")
    return session.should_checkpoint()


def preempted() -> Preemption | None:
    """Why and when the workers have to go, once that is known; the n-th call gives the same answer on all ranks."""
    session = asked("train.preempted()", None)
    _refuse_in_child("preempted()", "Call it in the worker itself.")
    return session.preempted()


def get_world_size() -> int:
    """How many workers there are; 1 outside a run."""
    return rank_asked("session.get_world_size()", 1).world_size


def get_previous_world_size() -> int | None:
    """How many workers had written the checkpoint that this worker started from; None if it started without one."""
    return asked("session.get_previous_world_size()", None).previous_world_size


def get_world_rank() -> int:
    """This worker's number among all; 0 outside a run."""
    return rank_asked("session.get_world_rank()", 0).world_rank


def get_local_rank() -> int:
    """This worker's number on its machine; 0 outside a run."""
    return asked("session.get_local_rank()", 0).local_rank


def get_local_world_size() -> int:
    """How many workers there are on this machine; 0 outside a run."""
    return asked("session.get_local_world_size()", 0).local_world_size


def get_node_rank() -> int:
    """This machine's number among those of the run; 0 outside a run."""
    return asked("session.get_node_rank()", 0).node_rank


def get_trial_name() -> str | None:
    return asked("session.get_trial_name()", None).trial_name or None


def get_trial_id() -> str | None:
    return asked("session.get_trial_id()", None).trial_id or None


def get_trial_dir() -> str | None:
    """The directory that holds this run's results."""
    return asked("session.get_trial_dir()", None).trial_dir or None


def get_experiment_name() -> str | None:
    return asked("session.get_experiment_name()", None).experiment_name or None


def get_trial_resources() -> PlacementGroupFactory | None:
    """What this run asked for, as bundles."""
    return resources_of(asked("session.get_trial_resources()", None))


def resources_of(session: SessionProtocol) -> PlacementGroupFactory | None:
    from paceline.air.resources import PlacementGroupFactory

    return PlacementGroupFactory(**session.trial_resources) if session.trial_resources else None


def get_metadata() -> dict[str, Any] | None:
    """The metadata that was given to the Trainer."""
    session = asked("session.get_metadata()", None)
    return None if session is _outside else session.metadata


advise(__name__, {})  # misspelled names
