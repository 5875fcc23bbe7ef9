"""What user code calls inside a worker.

The functions here find the session that the worker installed and hand over to it. Outside
a run each of them warns once and returns its default, so that a training function can be
tried out by hand.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from paceline.air.absent import advise
from paceline.air.errors import MetricError, SessionMisuseError
from paceline.air.keywords import names_what_was_meant

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.resources import PlacementGroupFactory

__all__ = [
    "get_checkpoint",
    "get_dataset_shard",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_metadata",
    "get_node_rank",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "report",
]


class ReportedCheckpoint(NamedTuple):
    """A checkpoint of a run, with the metrics that it was reported with."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]


class SessionProtocol(Protocol):
    """What a worker's session offers."""

    world_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    trial_name: str
    trial_id: str
    trial_dir: str
    experiment_name: str
    trial_resources: dict[str, Any]
    """The run's bundles and strategy as data."""
    metadata: dict[str, Any]

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | None = None,
        reduce: Mapping[str, str | tuple[str, float]] | None = None,
    ) -> dict[str, float] | None: ...

    def meet(self, called: str, content: bytes | None = None) -> bytes | None: ...

    def get_all_reported_checkpoints(self) -> list[ReportedCheckpoint]: ...

    def get_checkpoint(self) -> Checkpoint | None: ...

    def get_dataset_shard(self, name: str | None = None) -> Any: ...


_SPELLING = "CALLED_AS"
CALLED_AS = "session"
"""How users spell what a module's functions belong to; each module that hands over to this one has its own."""

_session: SessionProtocol | None = None
_owner_pid = 0
_warned: set[str] = set()


def install(session: SessionProtocol | None) -> None:
    """Make `session` the one that the functions of this module use; None takes it away."""
    global _session, _owner_pid
    _session = session
    _owner_pid = os.getpid()


def current() -> SessionProtocol | None:
    """The session of this worker, or None outside a run."""
    return _session


def _found(default: object) -> SessionProtocol | None:
    if _session is None:
        _warn_outside_a_run(default)
    return _session


def _warn_outside_a_run(default: object) -> None:
    """Once for each function, named as the user called it, at the user's line."""
    called, level = "", 3  # 1 is this function, 2 is _found
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("paceline."):
        if _SPELLING in frame.f_globals:
            called = f"{frame.f_globals[_SPELLING]}.{frame.f_code.co_name}()"
        frame, level = frame.f_back, level + 1
    if called not in _warned:
        _warned.add(called)
        warnings.warn(
            f"{called} was called outside a training run and returns {default!r}. "
            "It has its meaning in the function that a Trainer runs.",
            stacklevel=level,
        )


def _refuse_in_child(called: str, advice: str) -> None:
    """A forked child shares the worker's line to the driver: it would take answers that are not for it."""
    if os.getpid() != _owner_pid:
        raise SessionMisuseError(
            f"{called} was called in process {os.getpid()}, a child of the worker process {_owner_pid}. {advice}"
        )


@names_what_was_meant(metric="did you mean metrics?")
def report(
    metrics: Mapping[str, Any],
    checkpoint: Checkpoint | None = None,
    reduce: Mapping[str, str | tuple[str, float]] | None = None,
    *,
    checkpoint_dir_name: str | None = None,
) -> dict[str, float] | None:
    """Hand one row of metrics, and maybe a checkpoint, to the run; each call is one iteration.

    `reduce` names metrics to be combined over all ranks ("mean", "rms", "sum", "min", "max"): the call
    then waits for every rank and returns the combined values.
    """
    if checkpoint_dir_name is not None:
        raise SessionMisuseError(
            f"report(checkpoint_dir_name={checkpoint_dir_name!r}): checkpoint directories are numbered "
            "(checkpoint_000000, ...). Leave it out, and keep the name with "
            f"checkpoint.set_metadata({{'name': {checkpoint_dir_name!r}}}) or as a metric."
        )
    session = _found(None)
    if session is None:
        return None
    _refuse_in_child(
        "report()", "Only the worker itself can report: send the values to it, for example by returning them."
    )
    if reduce is not None and not isinstance(reduce, Mapping):
        raise MetricError(f"report(reduce={reduce!r}): reduce takes a dict such as {{'loss': 'mean'}}.")
    return session.report(metrics, checkpoint, reduce)


def meet(called: str, content: bytes | None, outside: object) -> bytes | None:
    """Wait until every rank has made this call; what rank 0 brought. `outside` is what users get outside of a run."""
    session = _found(outside)
    if session is None:
        return None
    _refuse_in_child(called, "Call it in the worker itself.")
    return session.meet(called, content)


def get_all_reported_checkpoints() -> list[ReportedCheckpoint]:
    """The checkpoints that this run has committed and kept so far, oldest first, with their metrics."""
    session = _found([])
    if session is None:
        return []
    _refuse_in_child("get_all_reported_checkpoints()", "Call it in the worker itself.")
    return session.get_all_reported_checkpoints()


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of this run, else the one to resume from, else None."""
    session = _found(None)
    if session is None:
        return None
    _refuse_in_child("get_checkpoint()", "Call it in the worker itself and hand the checkpoint on.")
    return session.get_checkpoint()


def get_dataset_shard(dataset_name: str | None = None) -> Any:
    """This worker's part of a dataset; the name may be left out where there is only one."""
    session = _found(None)
    if session is None:
        return None
    _refuse_in_child("get_dataset_shard()", "Call it in the worker itself and hand the data on.")
    return session.get_dataset_shard(dataset_name)


def get_world_size() -> int:
    """How many workers there are; 1 outside a run."""
    session = _found(1)
    return session.world_size if session else 1


def get_world_rank() -> int:
    """This worker's number among all; 0 outside a run."""
    session = _found(0)
    return session.world_rank if session else 0


def get_local_rank() -> int:
    """This worker's number on its machine; 0 outside a run."""
    session = _found(0)
    return session.local_rank if session else 0


def get_local_world_size() -> int:
    """How many workers there are on this machine; 0 outside a run."""
    session = _found(0)
    return session.local_world_size if session else 0


def get_node_rank() -> int:
    """This machine's number among those of the run; 0 outside a run."""
    session = _found(0)
    return session.node_rank if session else 0


def get_trial_name() -> str | None:
    session = _found(None)
    return session.trial_name if session else None


def get_trial_id() -> str | None:
    session = _found(None)
    return session.trial_id if session else None


def get_trial_dir() -> str | None:
    """The directory that holds this run's results."""
    session = _found(None)
    return session.trial_dir if session else None


def get_experiment_name() -> str | None:
    session = _found(None)
    return session.experiment_name if session else None


def get_trial_resources() -> PlacementGroupFactory | None:
    """What this run asked for, as bundles."""
    from paceline.air.resources import PlacementGroupFactory

    session = _found(None)
    return PlacementGroupFactory(**session.trial_resources) if session else None


def get_metadata() -> dict[str, Any] | None:
    """The metadata that was given to the Trainer."""
    session = _found(None)
    return session.metadata if session else None


advise(__name__, {})  # misspelled names
