"""Searches whose decisions are kept as fixtures: journals of an earlier version must lead to the same decisions.

`python -m tests.tune.deciding` writes them anew. Do that only if the format of the journals changes on purpose.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paceline
from paceline.air import Checkpoint, RunConfig, session
from paceline.run.spec import Trial
from paceline.tune import TuneConfig, Tuner, grid_search
from paceline.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from paceline.tune.schedulers.trial_scheduler import Decision, Restart
from paceline.tune.stopper import CombinedStopper, MaximumIterationStopper, TrialPlateauStopper

FIXTURES = Path(__file__).parent / "decided"
ITERATION = "training_iteration"
MUTATIONS = {"x": [1, 2, 3, 4, 5, 6]}


def climb(config: dict[str, Any]) -> None:
    """Twelve rows; the slope is x, and no trial is level before its eighth row."""
    checkpoint = session.get_checkpoint()
    state = checkpoint.to_dict() if checkpoint else {"step": 0, "score": 0.0}
    for step in range(state["step"] + 1, 13):
        state = {"step": step, "score": state["score"] + (config["x"] if step < 8 else 0.0)}
        session.report({"score": state["score"]}, checkpoint=Checkpoint.from_dict(state))


SCHEDULERS: dict[str, Callable[[], TrialScheduler | None]] = {
    "asha": lambda: ASHAScheduler(max_t=12, grace_period=1, reduction_factor=2),
    "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "median": lambda: MedianStoppingRule(ITERATION, grace_period=2, min_samples_required=2),
    "pbt": lambda: PopulationBasedTraining(ITERATION, perturbation_interval=3, hyperparam_mutations=MUTATIONS),
    "pbt_synch": lambda: PopulationBasedTraining(
        ITERATION, perturbation_interval=3, hyperparam_mutations=MUTATIONS, synch=True
    ),
    "stoppers": lambda: None,
}


@contextmanager
def listening(told: list[Any]) -> Iterator[None]:
    """Note every decision of a scheduler or a stopper: trial, iteration, decision."""
    kinds: tuple[Any, ...] = (ASHAScheduler, HyperBandScheduler, MedianStoppingRule, PopulationBasedTraining)
    originals = {kind: kind.on_trial_result for kind in kinds}

    def listen(kind: Any) -> Any:
        def on_trial_result(self: Any, controller: Any, trial: Trial, result: Mapping[str, Any]) -> Decision:
            decision: Decision = originals[kind](self, controller, trial, result)
            told.append([_number(trial), result["training_iteration"], _plain(decision)])
            return decision

        return on_trial_result

    def stop(self: Any, trial_id: str, result: Mapping[str, Any]) -> bool:
        told.append([int(trial_id.rpartition("_")[2]), result["training_iteration"], stops(self, trial_id, result)])
        return bool(told[-1][2])

    stopper: Any = CombinedStopper
    stops = stopper.__call__
    try:
        stopper.__call__ = stop
        for kind in kinds:
            kind.on_trial_result = listen(kind)
        yield
    finally:
        stopper.__call__ = stops
        for kind, original in originals.items():
            kind.on_trial_result = original


def _number(trial: Trial) -> int:
    return int(trial.trial_id.rpartition("_")[2])


def _plain(decision: Decision) -> Any:
    if not isinstance(decision, Restart):
        return decision
    donor = None if decision.donor is None else _number(decision.donor)
    return {"config": decision.config, "donor": donor, "resources": decision.resources}


def stopping() -> CombinedStopper:
    return CombinedStopper(MaximumIterationStopper(11), TrialPlateauStopper("score", std=0.0, num_results=3))


def record(case: str, place: Path) -> None:
    told: list[Any] = []
    tuner = Tuner(
        climb,
        param_space={"x": grid_search([4, 2, 6, 1, 5, 3, 2, 4])},
        tune_config=TuneConfig(metric="score", mode="max", scheduler=SCHEDULERS[case]()),
        run_config=RunConfig(
            name=case, storage_path=str(place), verbose=0, stop=stopping() if case == "stoppers" else None
        ),
    )
    with listening(told):
        grid = tuner.fit()
    assert not grid.errors
    home = FIXTURES / case
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (journal,) = (place / case).glob("experiment-*.jsonl")
    shutil.copy(journal, home)
    ends = [[outcome.status, outcome.metrics["training_iteration"]] for outcome in grid.outcomes]
    (home / "decisions.json").write_text(json.dumps({"decisions": told, "ends": ends}) + "\n")


if __name__ == "__main__":
    import tempfile

    paceline.init(num_cpus=2)
    with tempfile.TemporaryDirectory() as directory:
        for name in SCHEDULERS:
            record(name, Path(directory))
