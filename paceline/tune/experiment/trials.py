"""The table of an experiment's trials: what is known of each, which wait, which are at work, and what they hold.

Holding resources is plain bookkeeping, nothing is enforced. A trial that asks for more than there is runs alone. GPUs
are handed out by name, so that two trials never share one by accident; a trial that asks for a part of one shares it on
purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.air.errors import ConfigError
from paceline.engine.base import Placement, Reservation
from paceline.run.decisions import Donor, Stop
from paceline.run.run import Run
from paceline.run.spec import Trial
from paceline.tune.experiment.audience import Audience
from paceline.tune.experiment.files import ExperimentFiles, ExperimentPlace
from paceline.tune.experiment.setup import SearchSetup
from paceline.tune.schedulers.trial_scheduler import Restart
from paceline.tune.trial_outcome import TrialOutcome

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Request:
    """What one trial needs while it runs."""

    amounts: Mapping[str, float]
    gpus_per_worker: float = 0.0
    workers: int = 1
    placement: Placement = field(default_factory=lambda: Placement("", ()))
    """The same as an engine is asked for it; it says no more than how many workers there are, and what they need."""

    @property
    def gpu_parts(self) -> tuple[int, float]:
        """(how many cards, how much of each)."""
        share = self.gpus_per_worker
        if share <= 0:
            return 0, 0.0
        if share >= 1:
            return math.ceil(share) * self.workers, 1.0
        per_card = int(1 / share + _ROUNDING)
        cards = -(-self.workers // per_card)
        return cards, min(1.0, share * min(self.workers, per_card))


def resized(request: Request, amounts: Mapping[str, float]) -> Request:
    """The same number of workers, who share these amounts with what is beside them."""
    gpus = amounts.get("GPU", 0.0)
    workers = max(1, request.workers) if gpus else request.workers
    placement = request.placement
    size = placement.world_size or 1
    bundles = shared_out([placement.resources] * size + list(placement.beside), amounts, size)
    return replace(
        request,
        amounts=dict(amounts),
        gpus_per_worker=gpus / max(1, workers),
        workers=workers,
        placement=replace(placement, resources=bundles[0], beside=tuple(bundles[size:])),
    )


def shared_out(
    bundles: Sequence[Mapping[str, float]], amounts: Mapping[str, float], workers: int = 1
) -> list[dict[str, float]]:
    """Bundles that add up to these amounts; each has the part that it had. What none had is for the first ones."""
    shared: list[dict[str, float]] = [{} for _ in bundles]
    for name, amount in amounts.items():
        parts = [bundle.get(name, 0.0) for bundle in bundles]
        if not any(parts):
            parts = [float(number < workers) for number in range(len(bundles))]
        for bundle, part in zip(shared, parts, strict=True):
            bundle[name] = amount * part / sum(parts)
    return shared


@dataclass(frozen=True)
class Grant:
    """What a trial holds; given back as a whole."""

    amounts: Mapping[str, float]
    devices: tuple[str, ...] = ()
    share_of_each: float = 0.0


class Ledger:
    """The machine's resources and who holds them. Without `decides` it only counts: the engine knows what fits."""

    def __init__(self, total: Mapping[str, float], devices: Sequence[str] = (), *, decides: bool = True) -> None:
        self.total = dict(total)
        self._decides = decides
        self.used: dict[str, float] = dict.fromkeys(total, 0.0)
        self._free_share = dict.fromkeys(devices, 1.0)
        self._holders = 0

    @property
    def free(self) -> dict[str, float]:
        return {name: max(0.0, amount - self.used.get(name, 0.0)) for name, amount in self.total.items()}

    def check(self, request: Request) -> None:
        """Refuse what can never be had: a trial cannot do with fewer cards than it asks for."""
        (cards, _), there_are = request.gpu_parts, len(self._free_share)
        if self._decides and cards > there_are:
            raise ConfigError(
                f"A trial asks for {request.amounts.get('GPU', 0):g} GPU(s), on {cards} card(s), and {there_are} can "
                "be seen here. Ask for fewer; CUDA_VISIBLE_DEVICES limits which are seen."
            )

    def fits(self, request: Request) -> bool:
        """Whether the trial may start now. One that is larger than the machine waits until it can be alone."""
        if self._holders == 0 or not self._decides:
            return True
        free = self.free
        enough = all(amount <= free.get(name, 0.0) + _ROUNDING for name, amount in request.amounts.items())
        return enough and self._devices_for(request) is not None

    def take(self, request: Request) -> Grant:
        """Hand out what was asked for; of cards that there are not, none."""
        devices = self._devices_for(request) or ()
        _, share = request.gpu_parts
        for name, amount in request.amounts.items():
            self.used[name] = self.used.get(name, 0.0) + amount
        for device in devices:
            self._free_share[device] -= share
        self._holders += 1
        return Grant(dict(request.amounts), devices, share)

    def give_back(self, grant: Grant) -> None:
        for name, amount in grant.amounts.items():
            left = self.used[name] - amount
            self.used[name] = left if left > _ROUNDING else 0.0
        for device in grant.devices:
            self._free_share[device] = min(1.0, self._free_share[device] + grant.share_of_each)
        self._holders -= 1

    def _devices_for(self, request: Request) -> tuple[str, ...] | None:
        """Cards with enough left, the fullest first, so that whole ones stay free; None if there are too few."""
        cards, share = request.gpu_parts
        usable = [device for device, free in self._free_share.items() if free + _ROUNDING >= share]
        if len(usable) < cards:
            return None
        usable.sort(key=lambda device: self._free_share[device])
        return tuple(usable[:cards])


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
    reservation: Reservation | None = None
    """Its room, on an engine that reserves some."""
    workers: int | None = None
    """How many an elastic trial has: what fitted when it started. None: its configuration says how many."""
    is_resized: bool = False
    """The scheduler has given it other resources than its configuration asks for."""
    seen: int = 0
    """The last row that scheduler and searcher saw. A retry reports some rows again; they are not shown twice."""
    judged_by: dict[str, Any] = field(default_factory=dict)
    """The last value of each metric that it is judged by."""
    has_files: bool = False
    """Its directory holds a run that can be continued."""
    change: Restart | None = None
    """How it shall continue when it is chosen to run again."""
    donor: Donor | None = None
    """Whose state it takes over then, as it was when that was decided: the other trial may be further by then."""
    searcher_knows_end: bool = False
    """The searcher knows its end already, from an attempt that failed before a restore."""
    outcome: TrialOutcome | None = None
    due: float = 0.0
    """When its run is to be stepped at the latest."""

    def forget_change(self) -> None:
        """It will not run again, or the scheduler decided otherwise."""
        self.change = None
        if self.donor is not None:
            self.donor.release()
            self.donor = None

    @property
    def wanted(self) -> Request:
        """What it needs when it starts: the scheduler may have planned to give it other resources."""
        if self.change is None or self.change.resources is None:
            return self.request
        return resized(self.request, self.change.resources)

    def set_resources(self, amounts: Mapping[str, float]) -> None:
        """What it asks for from now on."""
        self.request = resized(self.request, amounts)
        self.trial.resources = dict(amounts)
        self.is_resized = True

    def devices(self) -> tuple[str, ...] | None:
        """The GPUs that it may use; None: all that there are."""
        return None if self.grant is None else self.grant.devices

    def release_room(self) -> None:
        """Others may have it."""
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None


class Trials:
    """All trials in the order of their creation; the index is a trial's number."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.waiting: dict[Trial, TrialRun] = {}
        """Those that are PENDING or PAUSED, in the order in which they became so."""
        self.active: dict[TrialRun, None] = {}
        """Those with processes, or that will have some in a moment."""
        self.are_complete = False
        """The searcher has nothing more to suggest."""
        self._all: list[TrialRun] = []
        self._by_trial: dict[Trial, TrialRun] = {}

    def __iter__(self) -> Iterator[TrialRun]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, number: int) -> TrialRun:
        return self._all[number]

    def of(self, trial: Trial) -> TrialRun:
        """The row of a trial that a scheduler named."""
        return self._by_trial[trial]

    def add(self, trial_run: TrialRun) -> None:
        """Take in a new trial, which waits for its turn."""
        self._all.append(trial_run)
        self._by_trial[trial_run.trial] = trial_run
        self.waiting[trial_run.trial] = trial_run

    def wait(self, trial_run: TrialRun) -> None:
        """Let a trial wait until the scheduler chooses it."""
        self.waiting[trial_run.trial] = trial_run

    def no_longer_waits(self, trial_run: TrialRun) -> None:
        self.waiting.pop(trial_run.trial, None)

    def activate(self, trial_run: TrialRun) -> None:
        """Have the loop step the trial, now and from now on."""
        self.active[trial_run] = None
        trial_run.due = 0.0

    def no_longer_active(self, trial_run: TrialRun) -> None:
        self.active.pop(trial_run, None)

    def take_resources(self, trial_run: TrialRun) -> None:
        trial_run.grant = self.ledger.take(trial_run.request)

    def give_back(self, trial_run: TrialRun) -> None:
        """Others may have the resources that the trial holds, if it holds some."""
        if trial_run.grant is not None:
            self.ledger.give_back(trial_run.grant)
            trial_run.grant = None
        trial_run.release_room()

    @property
    def holding_resources(self) -> int:
        return sum(1 for trial_run in self.active if trial_run.grant is not None)

    @property
    def waiting_processes(self) -> int:
        """Trials that wait inside report()."""
        return sum(1 for waiting in self.waiting.values() if waiting.run is not None and waiting.run.group)

    @property
    def are_busy(self) -> bool:
        """Whether some trial is at work, or ending: its end may change what the scheduler and the searcher want."""
        return any(trial_run.trial not in self.waiting for trial_run in self.active)


class ExperimentController:
    """Answers a scheduler's questions, and takes down what it decides about trials that wait.

    The experiment acts on that when the scheduler has returned, so that nothing calls back into a scheduler that is
    still deciding. In a replay nothing is taken down: what came of it is in the journal too.
    """

    def __init__(self, setup: SearchSetup, place: ExperimentPlace, trials: Trials) -> None:
        self._setup = setup
        self._place = place
        self._trials = trials
        self.replaying = False
        self._queued: list[tuple[Trial, Stop | Restart]] = []

    @property
    def metric(self) -> str | None:
        return self._setup.metric

    @property
    def mode(self) -> str | None:
        return self._setup.mode

    @property
    def experiment_path(self) -> str:
        return str(self._place.root)

    @property
    def expects_more_trials(self) -> bool:
        return not self._trials.are_complete

    @property
    def total_resources(self) -> dict[str, float]:
        return dict(self._trials.ledger.total)

    @property
    def free_resources(self) -> dict[str, float]:
        return self._trials.ledger.free

    def get_trials(self) -> list[Trial]:
        return [trial_run.trial for trial_run in self._trials]

    def waiting_trials(self) -> list[Trial]:
        stopped = {trial for trial, decision in self._queued if isinstance(decision, Stop)}
        return [trial for trial in self._trials.waiting if trial not in stopped]

    def has_resources_for(self, trial: Trial) -> bool:
        return self._trials.ledger.fits(self._trials.of(trial).wanted)

    def stop_trial(self, trial: Trial) -> None:
        self._decide(trial, Stop())

    def restart_trial(self, trial: Trial, restart: Restart) -> None:
        self._decide(trial, restart)

    def _decide(self, trial: Trial, decision: Stop | Restart) -> None:
        if not self.replaying:
            self._queued.append((trial, decision))

    def take_decisions(self) -> list[tuple[Trial, Stop | Restart]]:
        """What was decided since this was last called, in order."""
        queued, self._queued = self._queued, []
        return queued


@dataclass(frozen=True)
class Shared:
    """What every part of an experiment is given."""

    setup: SearchSetup
    place: ExperimentPlace
    trials: Trials
    audience: Audience
    files: ExperimentFiles
    controller: ExperimentController
