"""How many trials of a Tuner run at a time, and on which cards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import tune
from paceline.air import Checkpoint, FailureConfig, RunConfig, session
from paceline.air.errors import ConfigError, StartupTimeoutError
from paceline.engine.base import Capabilities, Placement, Reservation, WorkerGroup
from paceline.engine.local.engine import LocalEngine
from paceline.tune import Tuner
from paceline.tune.schedulers import Restart, TrialScheduler
from tests.tune.searching import Overlap, column, config_of, search, tuner

pytestmark = pytest.mark.usefixtures("two_cpus")


def declare(**pool: float) -> None:
    paceline.shutdown()
    paceline.init(**pool)  # type: ignore[arg-type]


@contextlib.contextmanager
def machine_with(**pool: float) -> Iterator[None]:
    declare(**pool)
    try:
        yield
    finally:
        declare(num_cpus=2)


def overlapping(overlap: Overlap, meet: int) -> Any:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        overlap.enter()
        overlap.meet(meet)
        session.report({"step": 1})
        overlap.leave()
        return {"step": 2}

    return train


def test_two_cpus_are_room_for_two_trials(tmp_path: Path) -> None:
    overlap = Overlap(tmp_path / "marks")
    search(overlapping(overlap, meet=2), num_samples=6)
    assert overlap.most == 2


def test_one_trial_that_takes_all_cpus_is_alone(tmp_path: Path) -> None:
    overlap = Overlap(tmp_path / "marks")
    search(tune.with_resources(overlapping(overlap, meet=1), {"cpu": 2}), num_samples=3)
    assert overlap.most == 1


def test_a_trial_larger_than_the_machine_is_alone_and_small_ones_are_not(tmp_path: Path) -> None:
    overlap = Overlap(tmp_path / "marks")
    sized = tune.with_resources(overlapping(overlap, meet=1), lambda config: {"CPU": config["cpus"]})
    grid = search(sized, {"cpus": tune.grid_search([1, 64, 1, 64])})
    assert len(grid) == 4
    alone = {result.metrics["trial_id"] for result in grid if config_of(result)["cpus"] == 64}
    inside: list[str] = []
    for mark in overlap.marks.read("step"):
        if mark["change"] == 1:
            inside.append(mark["trial"])
            assert len(inside) == 1 or not alone.intersection(inside)
        else:
            inside.remove(mark["trial"])


def test_parts_of_a_cpu_and_a_limit_of_the_users(tmp_path: Path) -> None:
    many = Overlap(tmp_path / "many")
    search(tune.with_resources(overlapping(many, meet=4), {"CPU": 0.5}), num_samples=6)
    assert many.most == 4
    few = Overlap(tmp_path / "few")
    search(tune.with_resources(overlapping(few, meet=3), {"CPU": 0.5}), num_samples=6, max_concurrent_trials=3)
    assert few.most == 3


def test_trials_at_the_same_time_have_different_cards(tmp_path: Path) -> None:
    overlap = Overlap(tmp_path / "marks")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        overlap.enter()
        overlap.meet(2)
        card = os.environ["CUDA_VISIBLE_DEVICES"]
        overlap.marks.say("card", card=card)
        overlap.marks.wait("card", 2)
        overlap.leave()
        return {"card": card}

    with machine_with(num_cpus=8, num_gpus=2):
        grid = search(tune.with_resources(train, {"CPU": 1, "GPU": 1}), num_samples=4)
    assert overlap.most == 2
    first_two = [mark["card"] for mark in overlap.marks.read("card")[:2]]
    assert sorted(first_two) == ["0", "1"]
    assert {result.metrics["card"] for result in grid} == {"0", "1"}


def test_cards_keep_their_names_and_parts_of_one_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    overlap = Overlap(tmp_path / "marks")

    def train(config: dict[str, Any]) -> dict[str, Any]:
        overlap.enter()
        overlap.meet(4)
        overlap.leave()
        return {"card": os.environ["CUDA_VISIBLE_DEVICES"]}

    with machine_with(num_cpus=8):
        grid = search(tune.with_resources(train, {"CPU": 1, "GPU": 0.5}), num_samples=4)
    assert overlap.most == 4
    assert sorted(result.metrics["card"] for result in grid) == ["5", "5", "7", "7"]


def test_cards_that_are_not_there_are_refused_before_any_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    greedy = tune.with_resources(lambda config: {"x": 1}, {"gpu": 1})
    with pytest.raises(ConfigError, match=r"\b1 GPU\(s\)"):
        Tuner(greedy, run_config=RunConfig(storage_path=str(tmp_path), verbose=0)).fit()


class FirstWaitsForSecond(TrialScheduler):
    """The first trial makes way for the second after a row, and continues beside it."""

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
        is_first = trial is controller.get_trials()[0]
        return self.PAUSE if is_first and result["training_iteration"] == 1 else self.CONTINUE

    def choose_trial_to_run(self, controller: Any) -> Any:
        first, *others = controller.get_trials() or [None]
        waiting = controller.waiting_trials()
        if first in waiting and first.status == "PENDING":
            return first
        if first is not None and first.status == "PAUSED" and others:
            return others[0] if others[0] in waiting else first
        return None


def test_a_trial_that_continues_has_the_cards_that_it_is_given_then(tmp_path: Path) -> None:
    overlap = Overlap(tmp_path / "marks")

    def train(config: dict[str, Any]) -> None:
        card, checkpoint = os.environ["CUDA_VISIBLE_DEVICES"], session.get_checkpoint()
        if config["number"] == 1:
            overlap.marks.wait("continued", 1)  # the first one does so beside this one
        if checkpoint is not None:
            overlap.marks.say("continued")
        session.report({"card": card}, checkpoint=Checkpoint.from_dict({}))
        if config["number"] == 0:
            session.report({"card": card}, checkpoint=Checkpoint.from_dict({}))

    with machine_with(num_cpus=8, num_gpus=2):
        grid = search(
            tune.with_resources(train, {"CPU": 1, "GPU": 1}),
            {"number": tune.grid_search([0, 1])},
            scheduler=FirstWaitsForSecond(),
            max_concurrent_trials=2,
        )
    assert column(grid[0], "card")[:2] == ["0", "1"]
    assert column(grid[1], "card") == ["0"]


class ReservingEngine(LocalEngine):
    """This machine, where room is reserved as on a cluster."""

    capabilities = Capabilities(chooses_nodes=True)

    def __init__(self) -> None:
        super().__init__(num_cpus=4)
        self.reserved: list[dict[str, float]] = []
        self.started: list[dict[str, float]] = []

    def reserve(self, placement: Placement, on: Any = None) -> Reservation | None:
        self.reserved.append(dict(placement.resources))
        return Reservation()

    def start_group(self, placement: Placement) -> WorkerGroup:
        self.started.append(dict(placement.resources))
        return super().start_group(placement)


def test_room_is_reserved_for_what_the_scheduler_has_changed_a_trial_to() -> None:
    class Grows(TrialScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
            return self.PAUSE if result["training_iteration"] == 1 else self.CONTINUE

        def choose_trial_to_run(self, controller: Any) -> Any:
            chosen = next(iter(controller.waiting_trials()), None)
            if chosen is not None and chosen.status == "PAUSED":
                controller.restart_trial(chosen, Restart(resources={"CPU": 3.0}))
            return chosen

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        for step in range(checkpoint.to_dict()["step"] + 1 if checkpoint else 1, 3):
            session.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    engine = ReservingEngine()
    try:
        grid = search(train, scheduler=Grows(), engine=engine)
    finally:
        engine.close()
    assert column(grid[0], "step") == [1, 2]
    assert engine.reserved == engine.started == [{"CPU": 1.0}, {"CPU": 3.0}]


class LosingEngine(ReservingEngine):
    """It has lost the only node with a licence, and has never had one with 64 CPUs."""

    def reserve(self, placement: Placement, on: Any = None) -> Reservation | None:
        if placement.resources.get("CPU") == 64:
            raise ConfigError("no node has CPU 64")
        return None if "licence" in placement.resources else super().reserve(placement, on)

    def what_is_gone(self, placement: Placement) -> str:
        return "h2 (10.0.0.2)" if "licence" in placement.resources else ""


def test_new_trials_that_no_node_can_take_fail_alone() -> None:
    engine = LosingEngine()
    wanted: dict[str, dict[str, float]] = {"a": {"CPU": 1}, "b": {"licence": 1}, "c": {"CPU": 64}, "d": {"CPU": 1}}

    def train(config: dict[str, Any]) -> dict[str, Any]:
        return {"who": config["who"]}

    try:
        grid = tuner(
            tune.with_resources(train, lambda config: wanted[config["who"]]),
            {"who": tune.grid_search(list(wanted))},
            engine=engine,
            failure_config=FailureConfig(start_timeout_s=3.0),
        ).fit()
    finally:
        engine.close()
    assert [result.metrics.get("who") for result in grid] == ["a", None, None, "d"]
    lost, too_large = grid.errors
    assert isinstance(lost, StartupTimeoutError)
    assert "no machine that is left has room for licence 1: the cluster lost h2 (10.0.0.2)" in str(lost)
    assert "no node has CPU 64" in str(too_large)
