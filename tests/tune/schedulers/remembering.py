"""What a scheduler holds of trials, seen from outside: everything that it keeps is in its pickled form."""

from __future__ import annotations

import pickle
import re

from paceline.run.spec import Trial
from paceline.tune.schedulers import TrialScheduler


def known_trials(scheduler: TrialScheduler) -> set[bytes]:
    """The ids of trials that it still knows."""
    return set(re.findall(rb"[0-9a-f]{5}_\d{5}", pickle.dumps(scheduler)))


def holds_trials(scheduler: TrialScheduler) -> bool:
    """Whether it holds a trial itself, with its configuration and its checkpoint."""
    return Trial.__module__.encode() in pickle.dumps(scheduler)
