"""Who waits for room on a cluster, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.air import FailureConfig, RunConfig
from paceline.air.errors import EngineError, EngineLost, StartupTimeoutError
from paceline.engine.base import Capabilities, Placement, Reservation
from paceline.run.phases import Phase
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
    error: Exception | None = None

    def reserve(self, placement: Placement, on: Any = None) -> Reservation | None:
        if self.error is not None:
            raise self.error
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
        self.waiting: dict[Any, Any] = {}
        config = RunConfig(failure_config=FailureConfig(start_timeout_s=START_S))
        shared: Any = SimpleNamespace(
            trials=SimpleNamespace(
                active=self.active, waiting=self.waiting, ledger=SimpleNamespace(total={"CPU": 4.0})
            ),
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

    def new_trial(self) -> Any:
        """One that waits for its turn."""
        trial = Trial(Request({"CPU": 1.0}, placement=Placement.sketch(1, {"CPU": 1.0})), None)
        self.waiting[trial.trial] = trial
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
        self.trial = object()

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
    trial = waiting.new_trial()
    waiting.cluster.gone = "h2 (10.0.0.2)"
    assert not waiting.rooms.may_start(trial)
    waiting.now += START_S + 1
    with pytest.raises(StartupTimeoutError, match=r"CPU 1: the cluster lost h2"):
        waiting.rooms.may_start(trial)


def test_a_new_trial_waits_for_other_programs_as_long_as_it_takes(waiting: Waiting) -> None:
    trial = waiting.new_trial()
    assert not waiting.rooms.may_start(trial)
    waiting.now += 100 * START_S
    assert not waiting.rooms.may_start(trial)
    waiting.cluster.has_room = True
    assert waiting.rooms.may_start(trial)


def test_trials_that_miss_the_same_node_have_one_clock(waiting: Waiting) -> None:
    """Otherwise each would hold up the search for start_timeout_s, one after the other."""
    waiting.cluster.gone = "h2 (10.0.0.2)"
    first = waiting.new_trial()
    for _ in range(int(START_S / 5)):
        assert not waiting.rooms.may_start(first)
        waiting.now += 5
    waiting.now += 1
    for trial in (first, waiting.new_trial()):
        with pytest.raises(StartupTimeoutError, match="the cluster lost h2"):
            waiting.rooms.may_start(trial)
    waiting.now += START_S
    assert not waiting.rooms.may_start(waiting.new_trial()), "the node may have been back meanwhile"


def test_a_trial_that_waits_no_more_is_forgotten(waiting: Waiting) -> None:
    """Its next wait is another one."""
    waiting.cluster.gone = "h2 (10.0.0.2)"
    trial, other = waiting.new_trial(), waiting.new_trial()
    assert not waiting.rooms.may_start(trial)
    del waiting.waiting[trial.trial]  # A scheduler has stopped it, say.
    assert not waiting.rooms.may_start(other)
    waiting.now += START_S + 1
    waiting.waiting[trial.trial] = trial
    assert not waiting.rooms.may_start(trial)


def test_a_cluster_that_does_not_answer_has_no_room_at_the_moment(waiting: Waiting) -> None:
    trial, new = waiting.trial(LostRoom()), waiting.new_trial()
    waiting.cluster.error = EngineError("the Ray cluster did not answer within 30 s")
    assert not waiting.rooms.may_start(new)
    assert not waiting.asks_again(trial)
    assert all("did not answer within 30 s" in text for text in waiting.said)
    waiting.cluster.error, waiting.cluster.has_room = None, True
    waiting.now += 2 * START_S
    assert waiting.rooms.may_start(new)
    assert waiting.asks_again(trial)
    trial.release_room()
    waiting.cluster.error = EngineError("no answer")
    for _ in range(2):
        assert not waiting.asks_again(trial)
        waiting.now += START_S - 1
    with pytest.raises(EngineError, match="no answer"):
        waiting.asks_again(trial)


def test_a_cluster_that_is_gone_has_none_at_all(waiting: Waiting) -> None:
    waiting.cluster.error = EngineLost("the head is gone")
    with pytest.raises(EngineLost):
        waiting.rooms.may_start(waiting.new_trial())


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
