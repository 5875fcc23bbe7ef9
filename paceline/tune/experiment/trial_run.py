"""One trial of an experiment: what is known of it, and the run that carries it out while there is one."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.run.interlude import Donor
from paceline.run.run import Run
from paceline.run.trial import Trial
from paceline.tune.experiment.ledger import Grant, Request
from paceline.tune.schedulers.trial_scheduler import Restart
from paceline.tune.trial_outcome import TrialOutcome


@dataclass(eq=False)
class TrialRun:
    """A trial from its creation to its outcome."""

    number: int
    trial: Trial
    directory: Path
    request: Request
    run: Run | None = None
    """While it has one; it may be waiting for its scheduler."""
    building: Future[Run] | None = None
    """The run while its datasets are prepared."""
    grant: Grant | None = None
    """The resources it holds; none while it is paused."""
    is_resized: bool = False
    """The scheduler has given it other resources than its configuration asks for."""
    seen: int = 0
    """The last row that scheduler and searcher saw. A retry reports some rows again; they are not told twice."""
    judged_by: dict[str, Any] = field(default_factory=dict)
    """The last value of each metric that it is judged by."""
    has_files: bool = False
    """Its directory holds a run that can be continued."""
    change: Restart | None = None
    """How it shall go on when it is chosen to run again."""
    donor: Donor | None = None
    """Whose state it takes over then, as it was when that was decided: the other trial may be further by then."""
    was_told: bool = False
    """The searcher knows its end already, from an attempt that failed before a restore."""
    outcome: TrialOutcome | None = None
    due: float = 0.0
    """When its run is to be stepped at the latest."""

    @property
    def active(self) -> bool:
        """True while there are processes, or will be in a moment."""
        return self.run is not None or self.building is not None

    def forget_change(self) -> None:
        """It will not run again, or was told otherwise."""
        self.change = None
        if self.donor is not None:
            self.donor.release()
            self.donor = None

    def set_resources(self, amounts: Mapping[str, float]) -> None:
        """What it asks for from now on."""
        gpus = amounts.get("GPU", 0.0)
        workers = max(1, self.request.workers) if gpus else self.request.workers
        self.request = replace(
            self.request, amounts=dict(amounts), gpus_per_worker=gpus / max(1, workers), workers=workers
        )
        self.trial.resources = dict(amounts)
        self.is_resized = True
