"""Other libraries' own hooks that report to a run, and trackers that runs are sent to."""

from __future__ import annotations

from typing import NoReturn

from paceline.air.absent import no_such_name


def __getattr__(name: str) -> NoReturn:
    raise no_such_name(__name__, name)
