"""What every scheduler must do, as one test class.

A scheduler's test module subclasses SchedulerContract and says how to make one::

    class TestMyScheduler(SchedulerContract):
        def make_scheduler(self):
            return MyScheduler(max_t=20)

The trials report ``training_iteration`` (1 to 30), ``time_total_s`` and ``score``, and have
a configuration with one entry, ``number``.
"""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path
from typing import Any

import pytest

from paceline.testing.scheduler_simulation import Curve, SchedulerSimulation, replayed
from paceline.tune.schedulers.trial_scheduler import TrialScheduler

SEEDS = (0, 1, 2)
FAILING = {3: 0, 8: 2, 11: 7}


def recorded_curves(seed: int, count: int = 40, length: int = 30) -> list[Curve]:
    """Noisy learning curves; here and there one value that is not a number, or none at all."""
    generator = random.Random(seed)
    curves: list[Curve] = []
    for _ in range(count):
        end, pace = generator.random(), generator.uniform(0.05, 0.5)
        rows: list[dict[str, Any]] = [
            {
                "training_iteration": t,
                "time_total_s": 2.0 * t,
                "score": end * (1 - math.exp(-pace * t)) + generator.gauss(0, 0.05),
            }
            for t in range(1, length + 1)
        ]
        if generator.random() < 0.2:
            rows[generator.randrange(length)]["score"] = math.nan
        if generator.random() < 0.2:
            del rows[generator.randrange(length)]["score"]
        curves.append(rows)
    return curves


class SchedulerContract:
    """Subclass it, and define `make_scheduler`."""

    def make_scheduler(self) -> TrialScheduler:
        """A new scheduler, without a metric and a mode of its own."""
        raise NotImplementedError

    def simulation(self, folder: Path, seed: int, **settings: Any) -> SchedulerSimulation:
        folder.mkdir(exist_ok=True)
        settings = {"failing": FAILING, "experiment_path": str(folder), **settings}
        return SchedulerSimulation(self.make_scheduler(), recorded_curves(seed), seed=seed, **settings)

    @pytest.mark.parametrize("slots", [1, 4, 64])
    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_every_trial_comes_to_one_end(self, tmp_path: Path, slots: int, mode: str) -> None:
        simulation = self.simulation(tmp_path, 1, slots=slots, mode=mode).run()
        assert sorted(simulation.ended) == list(range(40))
        assert simulation.scheduler.debug_string()

    @pytest.mark.parametrize("most_open", [1, 3])
    def test_a_search_that_holds_back_leads_to_no_standstill(self, tmp_path: Path, most_open: int) -> None:
        simulation = self.simulation(tmp_path, 2, most_open=most_open).run()
        assert len(simulation.ended) == 40

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_same_calls_lead_to_the_same_decisions(self, tmp_path: Path, seed: int) -> None:
        first = self.simulation(tmp_path / "first", seed).run()
        second = self.simulation(tmp_path / "second", seed).run()
        assert described(second) == described(first)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_replay_of_what_is_kept_leads_to_the_same_decisions(self, tmp_path: Path, seed: int) -> None:
        earlier = self.simulation(tmp_path, seed).run()
        again = self.make_scheduler()
        assert replayed(again, earlier, seed=seed) == [call.decision for call in earlier.calls]
        assert again.debug_string() == earlier.scheduler.debug_string()

    @pytest.mark.parametrize("steps", [0, 1, 17, 100, 250])
    def test_an_interrupted_experiment_goes_on_as_if_it_had_not_been(self, tmp_path: Path, steps: int) -> None:
        straight = self.simulation(tmp_path / "straight", 1).run()
        interrupted = self.simulation(tmp_path / "interrupted", 1)
        for _ in range(steps):
            interrupted.step()
        interrupted.scheduler = self.make_scheduler()
        replayed(interrupted.scheduler, interrupted, seed=1)
        assert described(interrupted.run()) == described(straight)

    def test_asking_who_should_run_changes_nothing(self, tmp_path: Path) -> None:
        class Curious(SchedulerSimulation):
            def step(self) -> bool:
                for _ in range(3):
                    self.scheduler.choose_trial_to_run(self)
                return super().step()

        once = self.simulation(tmp_path / "once", 0).run()
        (tmp_path / "often").mkdir()
        often = Curious(
            self.make_scheduler(),
            recorded_curves(0),
            seed=0,
            failing=FAILING,
            experiment_path=str(tmp_path / "often"),
        ).run()
        assert described(often) == described(once)

    def test_a_copy_made_before_use_is_as_good(self, tmp_path: Path) -> None:
        """An experiment copies its scheduler: what one learns must not count in the next."""
        original = self.make_scheduler()
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
        made = [
            SchedulerSimulation(
                copy.deepcopy(original), recorded_curves(0), seed=0, experiment_path=str(tmp_path / name)
            ).run()
            for name in ("first", "second")
        ]
        assert described(made[0]) == described(made[1])

    def test_a_metric_that_contradicts_its_own_is_refused(self) -> None:
        scheduler = self.make_scheduler()
        assert scheduler.set_search_properties("score", "max")
        if scheduler.metric is not None:
            assert not scheduler.set_search_properties("loss", "max")
            assert not scheduler.set_search_properties("score", "min")
            assert scheduler.set_search_properties("score", "max")
            assert (scheduler.metric, scheduler.mode) == ("score", "max")


def described(simulation: SchedulerSimulation) -> list[Any]:
    """All that happened, trials by their number: comparable between two experiments."""
    return [
        simulation.rows_taken,
        simulation.ended,
        [(trial, rows, _plain(decision)) for trial, rows, decision in simulation.decisions],
    ]


def _plain(decision: Any) -> Any:
    if isinstance(decision, str):
        return decision
    return (decision.config, decision.donor and decision.donor.trial_id, decision.resources)
