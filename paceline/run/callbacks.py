"""Observers of a run: the hooks a user may override, and the list that calls them.

Callbacks only watch. They are called in the driver, in order, synchronously; what they
raise ends the run, as the cause of a TrainingFailedError that names the callback. Loggers that paceline itself
turns on get their rows in batches, off the path of a report.
"""

from __future__ import annotations

import inspect
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from paceline.air.checks import keyword_call, warn_at_users_line
from paceline.air.errors import ConfigError, StorageError, TrainingFailedError

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.run.spec import Trial

Row = dict[str, Any]

FLUSH_INTERVAL_S = 0.1
_REPLAY_BATCH = 1000


class Callback:
    """Base class of observers; every hook does nothing unless it is overridden.

    `iteration` counts the run's steps, `trials` holds every trial of the experiment.
    """

    registered_as: str | None = None
    """The name in `RunConfig(callbacks=["name"])` that it was made by; a restore makes it again by that name."""

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        say: Callable[[str], None] | None = None,
        **info: Any,
    ) -> None:
        """Called once, before anything starts. `say` shows a line among the progress; call it in hooks only."""

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called before each step of the control loop."""

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called after each step of the control loop."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial starts, and again when a restore continues it; not for a retry."""

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when workers continue a trial after a failure or an interruption.

        `iteration` is that of the checkpoint they start from, 0 without one. Rows after it come again, with the same
        `training_iteration`: overwrite the earlier ones.
        """

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when a checkpoint of a trial has been committed."""

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: Row, **info: Any) -> None:
        """Called for each row. `trial.last_result` is still the row before."""

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial has ended without an error. `trial.outcome` is "finished", or "interrupted"."""

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial has failed for good: `trial.outcome` is "failed", `trial.error` says why."""

    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, checkpoint: Checkpoint, **info: Any
    ) -> None:
        """Called with each committed checkpoint."""

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Called once, after everything has ended."""

    def take_warnings(self) -> Sequence[str]:
        """What the user should know, each text once. Asked now and then, and after `on_experiment_end`.

        This is how work in another thread makes itself heard: it becomes a warning of the run, or of the search.
        """
        return ()

    def get_state(self) -> dict[str, Any] | None:
        """What a search keeps of this callback with its own state; a single run never asks."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Gets back what `get_state` returned, in a search that is restored."""


class LoggerCallback(Callback):
    """A callback that writes down what happens to each trial: override the `log_trial_*` methods."""

    def log_trial_start(self, trial: Trial) -> None:
        """A trial starts."""

    def log_trial_restore(self, trial: Trial) -> None:
        """A trial continues, from a checkpoint if there is one."""

    def log_trial_save(self, trial: Trial) -> None:
        """A trial has saved a checkpoint."""

    def log_trial_result(self, iteration: int, trial: Trial, result: Row) -> None:
        """A trial has reported a row."""

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """A trial has ended; `trial.outcome` says whether it was interrupted."""

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_save(trial)

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: Row, **info: Any) -> None:
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.log_trial_end(trial, failed=True)


class RowLogger(LoggerCallback):
    """A logger that takes rows in batches and whose files can go back to an earlier row.

    A retry resumes from a checkpoint, so rows reported after that checkpoint are
    superseded; the files show only the history that survived.
    """

    @abstractmethod
    def log_rows(self, trial: Trial, rows: Sequence[Row]) -> None:
        """Add rows. They may stay in a buffer until `flush`."""

    def log_validation(self, trial: Trial, row: Row) -> None:
        """Add metrics that belong to an earlier row; files that only grow have no place for them."""

    @abstractmethod
    def rewind(self, trial: Trial, keep: int) -> int:
        """Forget all but the first `keep` rows; returns how many of those are really there.

        Fewer than `keep` are there when the driver died with rows in its buffer. The
        caller then adds the missing ones.
        """

    @abstractmethod
    def flush(self) -> None:
        """Hand everything to the operating system."""

    def log_trial_result(self, iteration: int, trial: Trial, result: Row) -> None:
        self.log_rows(trial, [result])


_HOOKS = tuple(name for name in vars(Callback) if name == "setup" or name.startswith("on_"))
_ARGUMENTS = {
    hook: tuple(inspect.signature(getattr(Callback, hook)).parameters)[1:-1]  # without self and **info
    for hook in _HOOKS
}

_LOGGER_HOOKS = {
    "on_trial_start": "log_trial_start",
    "on_trial_restore": "log_trial_restore",
    "on_trial_save": "log_trial_save",
    "on_trial_result": "log_trial_result",
    "on_trial_complete": "log_trial_end",
    "on_trial_error": "log_trial_end",
}


class CallbackList:
    """Calls the user's callbacks row by row and the default loggers batch by batch.

    A hook that nobody overrides costs nothing: `wants_rows` says whether rows must be
    handed over one at a time at all (and steps announced).
    """

    def __init__(self, user_callbacks: Sequence[Callback], default_loggers: Sequence[RowLogger] = ()) -> None:
        for callback in user_callbacks:
            _check_is_callback(callback)
        for kind in dict.fromkeys(type(callback) for callback in user_callbacks):
            _warn_of_misspelt_hooks(kind)
        self.trials: list[Trial] = []
        """Every trial of the experiment, as handed to the hooks."""
        self._known: set[Trial] = set()
        # A plain built-in logger that the user lists is the default one under another
        # name: it takes its place, in batches. A subclass may do anything with a row, so it
        # is called row by row like any other callback.
        built_in = {type(logger) for logger in default_loggers}
        listed = [callback for callback in user_callbacks if type(callback) in built_in]
        self._callbacks = [callback for callback in user_callbacks if type(callback) not in built_in]
        kept = [logger for logger in default_loggers if not _replaced_by_user(logger, user_callbacks)]
        self._batched: list[RowLogger] = [*kept, *(logger for logger in listed if isinstance(logger, RowLogger))]
        self._rewindable = [*self._batched, *(each for each in self._callbacks if isinstance(each, RowLogger))]
        self._overriding = {
            hook: [_Hook(callback, hook) for callback in self._callbacks if _overrides(callback, hook)]
            for hook in _HOOKS
        }
        self._warning = [each for each in self._callbacks if not _is_inherited(each, "take_warnings", Callback)]
        self.wants_rows = any(self._overriding[hook] for hook in ("on_trial_result", "on_step_begin", "on_step_end"))
        self._flushed_at = 0.0
        self._dirty = False

    # The user's hooks, in the order of a run.

    def setup(self, **known: Any) -> None:
        """With the arguments of `Callback.setup` that are known."""
        self._call("setup", **{**dict.fromkeys(_ARGUMENTS["setup"]), **known})

    def on_step_begin(self, iteration: int) -> None:
        self._call("on_step_begin", iteration=iteration, trials=self.trials)

    def on_step_end(self, iteration: int) -> None:
        self._call("on_step_end", iteration=iteration, trials=self.trials)

    def on_trial_start(self, iteration: int, trial: Trial) -> None:
        if trial not in self._known:
            self._known.add(trial)
            self.trials.append(trial)
        for logger in self._batched:
            logger.log_trial_start(trial)
        self._call("on_trial_start", iteration=iteration, trials=self.trials, trial=trial)

    def on_trial_restore(self, iteration: int, trial: Trial) -> None:
        self._call("on_trial_restore", iteration=iteration, trials=self.trials, trial=trial)

    def on_trial_result(self, iteration: int, trial: Trial, row: Row) -> None:
        """Hand one row to the user's callbacks, each its own copy. Call it only if `wants_rows`."""
        for hook in self._overriding["on_trial_result"]:
            hook(iteration=iteration, trials=self.trials, trial=trial, result=dict(row))

    def on_checkpoint(self, iteration: int, trial: Trial, checkpoint: Checkpoint) -> None:
        """A checkpoint was committed: both hooks that tell of it, the general one first."""
        self._call("on_trial_save", iteration=iteration, trials=self.trials, trial=trial)
        self._call("on_checkpoint", iteration=iteration, trials=self.trials, trial=trial, checkpoint=checkpoint)

    def on_trial_complete(self, iteration: int, trial: Trial) -> None:
        self._call("on_trial_complete", iteration=iteration, trials=self.trials, trial=trial)

    def on_trial_error(self, iteration: int, trial: Trial) -> None:
        self._call("on_trial_error", iteration=iteration, trials=self.trials, trial=trial)

    def on_experiment_end(self) -> None:
        self._call("on_experiment_end", trials=self.trials)

    def take_warnings(self) -> list[str]:
        """What callbacks that work in the background want the user to know."""
        return [text for callback in self._warning for text in _call_one(callback, "take_warnings")]

    # States that a search keeps.

    def get_states(self) -> list[dict[str, Any] | None] | None:
        """What the user's callbacks want to have kept; None if none of them keeps anything."""
        keepers = [callback for callback in self._callbacks if not _is_inherited(callback, "get_state", Callback)]
        if not keepers:
            return None
        return [_call_one(callback, "get_state") for callback in self._registered_first()]

    def set_states(self, states: Sequence[dict[str, Any] | None]) -> None:
        """Give back what `get_states` returned."""
        for callback, state in zip(self._registered_first(), states, strict=False):
            if state is not None:
                _call_one(callback, "set_state", state)

    def _registered_first(self) -> list[Callback]:
        """In an order that holds if a restore makes those with a name again, and is not given the others."""
        return sorted(self._callbacks, key=lambda callback: callback.registered_as is None)

    # Rows for the loggers that take them in batches.

    def log_rows(self, trial: Trial, rows: Sequence[Row]) -> None:
        for logger in self._batched:
            logger.log_rows(trial, rows)
        self._dirty = True
        self.flush(force=False)

    def log_validation(self, trial: Trial, row: Row) -> None:
        for logger in self._batched:
            logger.log_validation(trial, row)
        self._dirty = True

    def rewind(self, trial: Trial, keep: int, history: Callable[[int], Iterable[Row]] | None = None) -> None:
        """Keep only the first `keep` rows in the loggers' files.

        `history(n)` gives the surviving rows from the n-th on. It is needed when another
        driver wrote the files and may have died with rows in its buffer.
        """
        for logger in self._rewindable:
            there = logger.rewind(trial, keep)
            if there < keep and history is not None:
                missing = iter(history(there))
                while batch := list(islice(missing, _REPLAY_BATCH)):
                    logger.log_rows(trial, batch)
        self.flush()

    def flush(self, force: bool = True) -> None:
        """Hand buffered rows to the operating system; with force=False at most every 100 ms."""
        if not self._dirty:
            return
        now = time.monotonic()
        if force or now - self._flushed_at >= FLUSH_INTERVAL_S:
            for logger in self._rewindable:
                logger.flush()
            self._flushed_at = now
            self._dirty = False

    def close_trial(self, trial: Trial, failed: bool) -> None:
        """Write out and close the files of a trial."""
        for logger in self._batched:
            logger.log_trial_end(trial, failed=failed)

    def _call(self, name: str, **arguments: Any) -> None:
        for hook in self._overriding[name]:
            hook(**arguments)


class _Hook:
    """A hook of one of the user's callbacks, to be called with keywords."""

    def __init__(self, callback: Callback, name: str) -> None:
        self._callback = callback
        self._name = name
        # Callbacks older than its arguments have a setup() without them.
        self._call = keyword_call(getattr(callback, name), _ARGUMENTS[name], 0 if name == "setup" else None)

    def __call__(self, **arguments: Any) -> None:
        try:
            self._call(arguments)
        except StorageError:  # says itself what is wrong, as for the loggers that are on by default
            raise
        except Exception as error:
            raise _failed(self._callback, self._name, error) from error


def _replaced_by_user(logger: RowLogger, user_callbacks: Sequence[Callback]) -> bool:
    """True if the user brought a logger of this kind, so that the default one would write twice."""
    return any(isinstance(callback, type(logger)) for callback in user_callbacks)


def _call_one(callback: Callback, method: str, *args: Any) -> Any:
    try:
        return getattr(callback, method)(*args)
    except Exception as error:
        raise _failed(callback, method, error) from error


def _failed(callback: Callback, method: str, error: Exception) -> TrainingFailedError:
    what = f"{type(error).__name__}: {error}"
    return TrainingFailedError(f"The callback {type(callback).__qualname__} failed in {method}(): {what}")


def _overrides(callback: Callback, hook: str) -> bool:
    """True if calling this hook does something."""
    if not _is_inherited(callback, hook, Callback, LoggerCallback):
        return True
    logger_hook = _LOGGER_HOOKS.get(hook)
    if logger_hook is None or not isinstance(callback, LoggerCallback):
        return False
    return not _is_inherited(callback, logger_hook, LoggerCallback)


def _is_inherited(callback: Callback, name: str, *bases: type[Callback]) -> bool:
    method = getattr(callback, name)
    function = getattr(method, "__func__", method)
    return any(function is vars(base).get(name) for base in bases)


def _check_is_callback(callback: object) -> None:
    if isinstance(callback, type):
        name = callback.__name__
        raise ConfigError(f"callbacks= holds the class {name}. Put an instance there: {name}().")
    if not isinstance(callback, Callback):
        raise ConfigError(
            f"callbacks= holds a {type(callback).__name__}, which is not a Callback. {_how_to_make_it_one(callback)}"
        )


def _how_to_make_it_one(given: object) -> str:
    if all(callable(getattr(given, method, None)) for method in ("open", "send", "close")):
        return f"If it is a tracker, write TrackerCallback({type(given).__name__}(...)), from paceline.trackers."
    return "Derive its class from paceline.tune.Callback or paceline.tune.logger.LoggerCallback."


def _warn_of_misspelt_hooks(kind: type[Callback]) -> None:
    """A method that is nearly called like a hook is never called."""
    import difflib

    hooks = [name for name in dir(LoggerCallback if issubclass(kind, LoggerCallback) else Callback) if name[0] != "_"]
    inherited = {name for base in kind.__mro__ if base.__module__.startswith("paceline.") for name in vars(base)}
    for name in dir(kind):
        if not name.startswith(("on_", "log_")) or name in inherited or not callable(getattr(kind, name)):
            continue
        meant = difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
        if meant:
            warn_at_users_line(
                f"The callback {kind.__name__} has a method {name}(), which is never called: there is no such hook. "
                f"Did you mean {meant[0]}()?"
            )
