"""Errors that code ported from a tuning library catches by these names."""

from paceline.air.errors import PacelineError

__all__ = ["TuneError"]


class TuneError(PacelineError, RuntimeError):
    """A search failed as a whole: trials of `tune.run` ended with errors, or `fail_fast` asked for it."""
