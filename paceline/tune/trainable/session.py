"""A function in its trial: how it is called, what becomes of what it returns, and what it calls by the names of
`paceline.tune` itself: report, checkpoint_dir, get_trial_dir.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

from paceline.air import session
from paceline.air.absent import advise
from paceline.air.checkpoint import Checkpoint
from paceline.air.checks import reject_misspelled
from paceline.air.constants import DEFAULT_METRIC
from paceline.air.context import get_context as get_context
from paceline.air.errors import ConfigError, MetricError, SessionMisuseError

if TYPE_CHECKING:
    from paceline.air.resources import PlacementGroupFactory

CallForm = Literal["config", "checkpoint_dir", "reporter"]
"""f(config); f(config, checkpoint_dir=None); f(config, reporter)."""


@dataclass(frozen=True)
class FunctionLoop:
    """Runs a function with its config in a worker."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"function": "trainable", "config": "param_space"}

    function: Callable[..., Any]
    config: Mapping[str, Any]
    form: CallForm = "config"

    def __call__(self) -> None:
        with ExitStack() as stack:
            output = self._called(stack)
            if inspect.isgenerator(output):
                stack.callback(output.close)  # its `finally` blocks run before this trial ends
                output = _report_each(output)
            _report_last(output)
            hand_in_pending_checkpoint()

    def _called(self, stack: ExitStack) -> Any:
        config = dict(self.config)
        if self.form == "reporter":
            return self.function(config, reporter=StatusReporter())
        if self.form == "checkpoint_dir":
            checkpoint = session.get_checkpoint()
            directory = None if checkpoint is None else stack.enter_context(checkpoint.as_directory())
            return self.function(config, checkpoint_dir=directory)
        return self.function(config)


def _report_each(outputs: Iterable[Any]) -> Any:
    """Report what a generator yields; gives what it returns."""
    rows = iter(outputs)
    while True:
        try:
            output = next(rows)
        except StopIteration as end:
            return end.value
        row = _as_row(output)
        if row is None:
            raise MetricError(f"The trainable yielded {_shown(output)}: yield a dict of metrics, or a number.")
        session.report(row)


def _report_last(output: Any) -> None:
    if output is None or (isinstance(output, Mapping) and not output):
        return
    row = _as_row(output)
    if row is not None:
        session.report(row)
        return
    current = session.active()
    if not current.reports:
        raise MetricError(
            f"The trainable reported nothing and returned {_shown(output)}: return a dict of metrics or a number, or "
            "call report()."
        )
    current.warn(f"The trainable returned {_shown(output)}, which is no row of metrics: it is dropped.")


def _as_row(output: Any) -> Mapping[str, Any] | None:
    if isinstance(output, Mapping):
        return output
    return {DEFAULT_METRIC: output} if isinstance(output, Number) else None


def _shown(output: Any) -> str:
    text = repr(output)
    return f"{text if len(text) <= 60 else text[:60] + '...'} ({type(output).__name__})"


def call_form(function: Callable[..., Any], given: Mapping[str, Any], name: str) -> CallForm:
    """How to call a function that has the keywords `given` already; ConfigError if it cannot be called."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{name}() is an async function, which a trial cannot run: write it with plain `def`.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of extension modules do not tell
        return "config"
    unknown = [word for word in given if not takes_keyword(signature, word)]
    if unknown:
        raise ConfigError(f"with_parameters({unknown[0]}=...): {name}{signature} takes no argument of that name.")
    form: CallForm = "config"
    if "checkpoint_dir" in signature.parameters and "checkpoint_dir" not in given:
        form = "checkpoint_dir"
    elif "reporter" in signature.parameters and "reporter" not in given:
        form = "reporter"
    try:
        signature.bind({}, **given, **({} if form == "config" else {form: None}))
    except TypeError:
        raise ConfigError(
            f"A trainable is called with one argument, the configuration, but {name} takes {signature}. Write "
            f"`def {name}(config)`; other values come by tune.with_parameters()."
        ) from None
    return form


def function_name(function: Callable[..., Any]) -> str:
    """How a function is called in directories and messages."""
    while hasattr(function, "func") and not hasattr(function, "__name__"):  # functools.partial
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def takes_keyword(signature: inspect.Signature, word: str) -> bool:
    """Whether a function may be given `word=...`."""
    parameter = signature.parameters.get(word)
    if parameter is not None:
        return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())


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
