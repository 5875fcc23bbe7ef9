"""Room for trials on an engine that reserves it: a trial starts when its room is its own, and not before.

So nothing waits inside `start_group`, whose threads are needed to end other trials. A trial keeps its room from
attempt to attempt, unless a machine of it is gone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from paceline.air.errors import EngineError, EngineLost, StartupTimeoutError
from paceline.engine.base import Engine
from paceline.run.phases import Phase
from paceline.run.run import Run
from paceline.tune.experiment.trials import Request, Shared, TrialRun

ANNOUNCED_AFTER_S = 10.0
"""How long there may be no room for any trial before the user is told."""
TOTALS_S = 2.0
"""How old the numbers of what there is may be: machines come and go."""
OWED_S = 30.0
"""How long others wait for a trial under way that has lost its room, once no trial is left whose end makes room."""

FORGOTTEN_S = 10.0
"""Machines that nobody has missed for so long may have been there meanwhile."""


@dataclass
class _Wait:
    """Of a trial, for room."""

    since: float = field(default_factory=lambda: time.monotonic())
    gone: str = ""
    """Lost machines that it cannot do without."""
    gone_since: float = 0.0

    def note(self, gone: str, since: float) -> None:
        if gone and not self.gone:
            self.gone_since = since
        self.gone = gone

    @property
    def missed_s(self) -> float:
        """How long these machines have been gone."""
        return time.monotonic() - self.gone_since if self.gone else 0.0


class Rooms:
    """Reserves room for trials, and tells the user if there is none."""

    def __init__(self, shared: Shared, engine: Engine) -> None:
        self._trials, self._audience = shared.trials, shared.audience
        self._engine = engine
        self._are_reserved = engine.capabilities.chooses_nodes
        self._without: dict[TrialRun, _Wait] = {}
        """Trials under way that lost their room: they come before others."""
        self._before: dict[TrialRun, _Wait] = {}
        """Trials that have not started, or are to continue, and find no room."""
        self._patience_s = shared.setup.run_config.failure_config.start_timeout_s
        self._missed: dict[str, tuple[float, float]] = {}
        """Since when trials have missed lost machines, and when one last did: one clock for all trials."""
        self._none_since: float | None = None
        self._unanswered_since: float | None = None
        self._counted = time.monotonic()

    @property
    def are_owed(self) -> bool:
        """A trial under way waits for room that new ones would take. Where machines are gone that it needs, or others
        keep the room for long, new trials do not wait for it."""
        for trial_run in [each for each in self._without if each not in self._trials.active]:
            del self._without[trial_run]
        now = time.monotonic()
        return any(
            not wait.gone and (self._is_some_used or now - wait.since < OWED_S) for wait in self._without.values()
        )

    @property
    def _is_some_used(self) -> bool:
        return any(trial_run.reservation is not None for trial_run in self._trials.active)

    def has_room(self, trial_run: TrialRun) -> bool:
        """Whether the trial may start: it has room, from now on if not before."""
        if not self._are_reserved:
            return True
        if trial_run.reservation is not None and trial_run.reservation.is_lost:
            trial_run.release_room()
        if trial_run.reservation is None:
            self._reserve(trial_run)
        return trial_run.reservation is not None

    def may_start(self, trial_run: TrialRun) -> bool:
        """Whether a trial that waits for its turn has room."""
        for other in [each for each in self._before if each.trial not in self._trials.waiting]:
            del self._before[other]
        return self._looked_up(trial_run, self._before)

    def has_room_again(self, trial_run: TrialRun, run: Run) -> bool:
        """Whether the next attempt of a trial under way has room."""
        if run.phase not in (Phase.OPENED, Phase.STARTING) or run.stop.pending:
            self._without.pop(trial_run, None)
            return True
        return self._looked_up(trial_run, self._without)

    def _looked_up(self, trial_run: TrialRun, waits: dict[TrialRun, _Wait]) -> bool:
        """Raises when lost machines, without which there is no room, have been gone for as long as a start may take."""
        try:
            has_room = self.has_room(trial_run)
            gone = "" if has_room else self._engine.what_is_gone(trial_run.wanted.placement)
        except EngineLost:
            raise
        except EngineError as error:
            self._note_no_answer(error)
            return False
        self._unanswered_since = None
        if has_room:
            waits.pop(trial_run, None)
            return True
        wait = waits.setdefault(trial_run, _Wait())
        wait.note(gone, self._missed_since(gone))
        if wait.missed_s > self._patience_s:
            del waits[trial_run]
            raise StartupTimeoutError(
                f"no machine that is left has room for {_in_words(trial_run.wanted)}: the cluster lost {wait.gone}, "
                f"and start_timeout_s={self._patience_s:g} s have passed. Restore the search once it is back."
            )
        return False

    def _missed_since(self, gone: str) -> float:
        now = time.monotonic()
        since, last = self._missed.get(gone, (now, now))
        if now - last > FORGOTTEN_S:
            since = now
        self._missed[gone] = since, now
        return since

    def _note_no_answer(self, error: EngineError) -> None:
        """A cluster that is busy answers later. Raises if it has not for as long as a start may take."""
        now = time.monotonic()
        if self._unanswered_since is None:
            self._unanswered_since = now
        elif now - self._unanswered_since > self._patience_s:
            raise error
        self._audience.warn_once(f"No room for trials at the moment: {error}. The search tries again.")

    def _reserve(self, trial_run: TrialRun) -> None:
        placement, run = trial_run.wanted.placement, trial_run.run
        group = run.group if run is not None else None  # one that waits inside report() can run nowhere else
        nodes = None if group is None else [place.node.node_id for place in group.places]
        trial_run.reservation = self._engine.reserve(placement, nodes)
        self._count()
        if trial_run.reservation is not None or self._is_some_used:
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
            there_is = ", ".join(f"{name} {amount:g}" for name, amount in self._trials.ledger.total.items() if amount)
            gone = self._engine.what_is_gone(trial_run.wanted.placement)
            why = f"and has lost {gone}" if gone else "which other programs are using"
            self._audience.warn_once(
                f"Waiting for room: no node can take a trial that needs {_in_words(trial_run.wanted)} now. The "
                f"cluster has {there_is}, {why}. The search continues as soon as there is room; Ctrl-C ends it."
            )


def _in_words(request: Request) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in request.amounts.items())
