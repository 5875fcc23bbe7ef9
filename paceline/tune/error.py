"""TuneError: an experiment that did not come to what was asked of it."""

from __future__ import annotations

from paceline.air.errors import PacelineError


class TuneError(PacelineError, RuntimeError):
    """An experiment failed, or none of its trials qualifies."""
