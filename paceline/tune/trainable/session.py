"""What a function calls in its trial by the names of `paceline.tune` itself: report, checkpoint_dir, get_trial_dir."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from paceline.air import session
from paceline.air.absent import advise
from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import reject_misspelled
from paceline.air.constants import DEFAULT_METRIC
from paceline.air.context import get_context as get_context
from paceline.air.errors import MetricError, SessionMisuseError

if TYPE_CHECKING:
    from paceline.air.resources import PlacementGroupFactory


@dataclass
class _Progress:
    """What is remembered from call to call in one trial."""

    pending: str | None = None
    """The directory of `checkpoint_dir` that the next report brings."""
    has_checkpoint: bool = False
    """Whether the last row has one."""


_progress: WeakKeyDictionary[Any, _Progress] = WeakKeyDictionary()
_outside = _Progress()


def _current() -> _Progress:
    session_of_trial = session.current()
    return _outside if session_of_trial is None else _progress.setdefault(session_of_trial, _Progress())


def report(
    metrics: Mapping[str, Any] | float | None = None, *, checkpoint: Checkpoint | None = None, **keywords: Any
) -> dict[str, float] | None:
    """Hand one row of metrics, and maybe a checkpoint, to the trial; each call is one iteration.

    A number alone is reported as the metric `_metric`. A row with {"done": True} ends the trial.
    """
    row: Any = metrics  # numbers of other libraries, too
    if isinstance(row, Number):
        row, keywords = {DEFAULT_METRIC: row, **keywords}, {}
    if row is not None and keywords:
        reject_misspelled("report()", keywords, ("metrics", "checkpoint"))
        raise MetricError("report() takes either a dict of metrics or keywords, not both.")
    progress = _current()
    if checkpoint is not None and progress.pending is not None:
        raise SessionMisuseError("report(checkpoint=...) after tune.checkpoint_dir(): a row has one checkpoint.")
    directory, progress.pending = progress.pending, None
    if directory is not None:
        checkpoint = Checkpoint.from_directory(directory)
    try:
        progress.has_checkpoint = checkpoint is not None
        return session.report_as("tune.report()", keywords if row is None else row, checkpoint)
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def checkpoint_dir(step: int | None = None) -> Iterator[str]:
    """A new directory; what is in it when the block ends is the checkpoint of the next `tune.report()`.

    `step` is taken for old code: checkpoints are counted by the run.
    """
    progress = _current()
    if progress.pending is not None:
        raise SessionMisuseError("tune.checkpoint_dir() was used twice without a tune.report() between.")
    directory = tempfile.mkdtemp(prefix=".checkpoint_dir_", dir=get_trial_dir())
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    progress.pending = directory


def hand_in_pending_checkpoint() -> None:
    """The function has returned: a directory that no report came for belongs to the last row."""
    progress, current = _current(), session.current()
    directory, progress.pending = progress.pending, None
    if directory is None or current is None:
        return
    if current.reports and not progress.has_checkpoint:
        current.add_checkpoint(Checkpoint.from_directory(directory))
    else:
        current.warn("tune.checkpoint_dir() was used after the last report(): its files belong to no row and are lost.")
    shutil.rmtree(directory, ignore_errors=True)


class StatusReporter:
    """The second argument of `f(config, reporter)`: call it with metrics as keywords, or with a number."""

    def __call__(self, _metric: float | None = None, **metrics: Any) -> None:
        report(metrics if _metric is None else {DEFAULT_METRIC: _metric, **metrics})

    @property
    def logdir(self) -> str | None:
        return get_trial_dir()

    @property
    def trial_name(self) -> str | None:
        return get_trial_name()

    @property
    def trial_id(self) -> str | None:
        return get_trial_id()

    @property
    def trial_resources(self) -> PlacementGroupFactory | None:
        return get_trial_resources()


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of this trial, else the one to resume from, else None."""
    return session.checkpoint_as("tune.get_checkpoint()")


def get_trial_dir() -> str | None:
    """The directory that holds this trial's results."""
    return session.asked("tune.get_trial_dir()", None).trial_dir or None


def get_trial_name() -> str | None:
    return session.asked("tune.get_trial_name()", None).trial_name or None


def get_trial_id() -> str | None:
    return session.asked("tune.get_trial_id()", None).trial_id or None


def get_trial_resources() -> PlacementGroupFactory | None:
    """What this trial asked for, as bundles."""
    return session.resources_of(session.asked("tune.get_trial_resources()", None))


def is_session_enabled() -> bool:
    """True inside a trial or a training run."""
    return session.current() is not None


advise(__name__, {"get_session": "paceline.train.get_context() answers inside of a trial"})
