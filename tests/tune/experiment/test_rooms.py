"""Who waits for room on a cluster, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.air import FailureConfig, RunConfig
from paceline.air.errors import StartupTimeoutError
from paceline.engine.base import Capabilities, Placement, Reservation
from paceline.run.run import Phase
from paceline.tune.experiment import rooms as rooms_module
from paceline.tune.experiment.rooms import ANNOUNCED_AFTER_S, OWED_S, Rooms
from paceline.tune.experiment.trials import Request

START_S = 60.0


class LostRoom(Reservation):
    is_lost = True


class Cluster:
    """As an engine: there is room, or not."""

    capabilities = Capabilities(chooses_nodes=True)
    has_room = False
    gone = ""

    def reserve(self, placement: Placement, on: Any = None) -> Reservation | None:
        return Reservation() if self.has_room else None

    def what_is_gone(self, placement: Placement) -> str:
        return self.gone

    def resources(self) -> dict[str, float]:
        return {"CPU": 4.0}


class Waiting:
    """A search on such a cluster, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.cluster = Cluster()
        self.active: dict[Any, None] = {}
        config = RunConfig(failure_config=FailureConfig(start_timeout_s=START_S))
        shared: Any = SimpleNamespace(
            trials=SimpleNamespace(active=self.active, ledger=SimpleNamespace(total={"CPU": 4.0})),
            audience=SimpleNamespace(warn_once=self.said.append),
            setup=SimpleNamespace(run_config=config),
        )
        engine: Any = self.cluster
        self.rooms: Any = Rooms(shared, engine)

    def trial(self, reservation: Reservation | None = None) -> Any:
        """One that is under way."""
        request = Request({"CPU": 1.0}, placement=Placement.sketch(1, {"CPU": 1.0}))
        trial = Trial(request, reservation)
        self.active[trial] = None
        return trial

    def asks_again(self, trial: Any) -> bool:
        """Whether its next attempt may start."""
        run: Any = SimpleNamespace(phase=Phase.STARTING, stop=SimpleNamespace(pending=False))
        return bool(self.rooms.has_room_again(trial, run))


class Trial:
    run = None

    def __init__(self, request: Request, reservation: Reservation | None) -> None:
        self.request = self.wanted = request
        self.reservation = reservation

    def release_room(self) -> None:
        self.reservation = None


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    found = Waiting()
    monkeypatch.setattr(rooms_module, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def test_a_trial_that_lost_its_room_comes_before_new_ones(waiting: Waiting) -> None:
    trial = waiting.trial(LostRoom())
    waiting.trial(Reservation())
    assert not waiting.asks_again(trial)
    waiting.now += 2 * OWED_S
    assert waiting.rooms.are_owed, "the end of the other trial makes room"
    waiting.cluster.has_room = True
    assert waiting.asks_again(trial)
    assert not waiting.rooms.are_owed


def test_new_trials_do_not_wait_for_one_that_other_programs_leave_no_room(waiting: Waiting) -> None:
    trial = waiting.trial(LostRoom())
    assert not waiting.asks_again(trial)
    assert waiting.rooms.are_owed
    waiting.now += OWED_S + 1
    assert not waiting.rooms.are_owed
    waiting.now += 2 * START_S
    assert not waiting.asks_again(trial), "it waits for its turn"


def test_a_trial_that_needs_a_lost_node_holds_up_nobody_and_fails_in_the_end(waiting: Waiting) -> None:
    trial = waiting.trial(LostRoom())
    waiting.trial(Reservation())
    waiting.cluster.gone = "h2 (10.0.0.2)"
    assert not waiting.asks_again(trial)
    assert not waiting.rooms.are_owed
    waiting.now += START_S - 1
    assert not waiting.asks_again(trial)
    waiting.now += 2
    with pytest.raises(StartupTimeoutError, match=r"CPU 1: the cluster lost h2 \(10\.0\.0\.2\)"):
        waiting.asks_again(trial)


def test_a_new_trial_that_needs_a_lost_node_fails_in_the_end(waiting: Waiting) -> None:
    trial = waiting.trial()
    waiting.cluster.gone = "h2 (10.0.0.2)"
    assert not waiting.rooms.may_start(trial)
    waiting.now += START_S + 1
    with pytest.raises(StartupTimeoutError, match=r"CPU 1: the cluster lost h2"):
        waiting.rooms.may_start(trial)


def test_a_new_trial_waits_for_other_programs_as_long_as_it_takes(waiting: Waiting) -> None:
    trial = waiting.trial()
    assert not waiting.rooms.may_start(trial)
    waiting.now += 100 * START_S
    assert not waiting.rooms.may_start(trial)
    waiting.cluster.has_room = True
    assert waiting.rooms.may_start(trial)


def test_a_node_that_comes_back_is_not_counted_as_gone(waiting: Waiting) -> None:
    trial = waiting.trial(LostRoom())
    for gone in ("h2", "", "h2"):
        waiting.cluster.gone = gone
        assert not waiting.asks_again(trial)
        waiting.now += START_S - 1


@pytest.mark.parametrize(
    ("gone", "why"), [("", "which other programs are using"), ("h2 (10.0.0.2)", "has lost h2 (10.0.0.2)")]
)
def test_the_user_learns_why_the_search_waits(waiting: Waiting, gone: str, why: str) -> None:
    trial = waiting.trial()
    waiting.cluster.gone = gone
    assert not waiting.rooms.has_room(trial)
    waiting.now += ANNOUNCED_AFTER_S + 1
    assert not waiting.rooms.has_room(trial)
    [text] = waiting.said
    assert "needs CPU 1 now. The cluster has CPU 4" in text
    assert why in text
