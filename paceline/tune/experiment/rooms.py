"""Room for trials on an engine that reserves it: a trial starts when its room is its own, and not before.

So nothing waits inside `start_group`, whose threads are needed to end other trials. A trial keeps its room from
attempt to attempt, unless a machine of it is gone.
"""

from __future__ import annotations

import time

from paceline.engine.base import Engine
from paceline.run.run import Phase, Run
from paceline.tune.experiment.trials import Shared, TrialRun

ANNOUNCED_AFTER_S = 10.0
"""How long there may be no room for any trial before the user is told."""
TOTALS_S = 2.0
"""How old the numbers of what there is may be: machines come and go."""


class Rooms:
    """Reserves room for trials, and tells the user if there is none."""

    def __init__(self, shared: Shared, engine: Engine) -> None:
        self._trials, self._audience = shared.trials, shared.audience
        self._engine = engine
        self._are_reserved = engine.capabilities.chooses_nodes
        self._without: dict[TrialRun, None] = {}
        """Trials under way that lost their room: they come before others."""
        self._none_since: float | None = None
        self._counted = time.monotonic()

    @property
    def are_owed(self) -> bool:
        """A trial under way waits for room."""
        for trial_run in [each for each in self._without if each not in self._trials.active]:
            del self._without[trial_run]
        return bool(self._without)

    def has_room(self, trial_run: TrialRun) -> bool:
        """Whether the trial may start: it has room, from now on if not before."""
        if not self._are_reserved:
            return True
        if trial_run.reservation is not None and trial_run.reservation.is_lost:
            trial_run.release_room()
        if trial_run.reservation is None:
            self._reserve(trial_run)
        return trial_run.reservation is not None

    def has_room_again(self, trial_run: TrialRun, run: Run) -> bool:
        """The same for the next attempt of a trial under way."""
        is_before_attempt = run.phase in (Phase.OPENED, Phase.STARTING) and not run.stop.pending
        if is_before_attempt and not self.has_room(trial_run):
            self._without[trial_run] = None
            return False
        self._without.pop(trial_run, None)
        return True

    def _reserve(self, trial_run: TrialRun) -> None:
        request, run = trial_run.request, trial_run.run
        group = run.group if run is not None else None  # one that waits inside report() can run nowhere else
        nodes = None if group is None else [place.node.node_id for place in group.places]
        trial_run.reservation = self._engine.reserve(request.placement, nodes)
        self._count()
        if trial_run.reservation is not None or any(each.reservation for each in self._trials.active):
            self._none_since = None
        else:
            self._announce(trial_run)

    def _count(self) -> None:
        if time.monotonic() - self._counted > TOTALS_S:
            self._trials.ledger.total.update(self._engine.resources())
            self._counted = time.monotonic()

    def _announce(self, trial_run: TrialRun) -> None:
        now = time.monotonic()
        if self._none_since is None:
            self._none_since = now
        elif now - self._none_since > ANNOUNCED_AFTER_S:
            wants = ", ".join(f"{name} {amount:g}" for name, amount in trial_run.request.amounts.items())
            there_is = ", ".join(f"{name} {amount:g}" for name, amount in self._trials.ledger.total.items() if amount)
            self._audience.warn_once(
                f"The search waits: there is no room for a trial, which needs {wants}. The cluster has {there_is}, and "
                "other programs use it. The search continues as soon as there is room; Ctrl-C ends it."
            )
