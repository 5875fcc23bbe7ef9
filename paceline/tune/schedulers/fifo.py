"""The scheduler of those who want none."""

from __future__ import annotations

from paceline.run.trial import Trial
from paceline.tune.schedulers.trial_scheduler import Controller, Decision, Row, TrialScheduler


class FIFOScheduler(TrialScheduler):
    """Runs trials in the order of their creation, each to its end."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def decides(self) -> bool:
        # A subclass that looks at rows wants to be heard.
        return type(self).on_trial_result is not FIFOScheduler.on_trial_result

    @property
    def result_keys(self) -> tuple[str, ...] | None:
        return None if self.decides else ()

    def on_trial_result(self, controller: Controller, trial: Trial, result: Row) -> Decision:
        return self.CONTINUE
