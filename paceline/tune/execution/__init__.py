"""Old path of `placement_groups`; what carries out a search is in `paceline.tune.experiment`."""

from __future__ import annotations

from typing import NoReturn

from paceline.air.absent import no_such_name

_LOOP = "Tuner.fit() runs the trials; callbacks, a TrialScheduler or a Searcher of your own take part in it"
_ADVICE = dict.fromkeys(("ray_trial_executor", "trial_runner", "tune_controller"), _LOOP)


def __getattr__(name: str) -> NoReturn:
    raise no_such_name(__name__, name, _ADVICE)
