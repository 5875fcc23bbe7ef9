"""Errors that code ported from a tuning library catches by these names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from paceline.air.errors import ConfigError, PacelineError

__all__ = ["TuneConfigError", "TuneError"]

P = ParamSpec("P")
T = TypeVar("T")


class TuneError(PacelineError, RuntimeError):
    """A search failed as a whole: a setting or a callback was wrong, trials of `tune.run` ended with errors, or
    `fail_fast` asked for it."""


class TuneConfigError(ConfigError, TuneError):
    """A setting of a search that cannot work."""


def raises_tune_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Lets a ConfigError out of `function` as a TuneError as well: most come from layers that do not know of Tune."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            if type(error) is not ConfigError:
                raise
            raised = TuneConfigError(*error.args).with_traceback(error.__traceback__)
            for note in getattr(error, "__notes__", ()):
                raised.add_note(note)
            raise raised from error.__cause__

    return wrapped
