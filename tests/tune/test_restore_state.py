"""What only the user's own objects know is kept with the experiment and given back to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import RunConfig
from paceline.tune import Callback, TuneConfig, Tuner
from paceline.tune.search import Searcher


def doubled(config: dict[str, Any]) -> dict[str, Any]:
    return {"x": 2 * config["a"]}


class Counting(Searcher):
    """Suggests 1, 2, 3, ...; knows the sum of what came of it."""

    def __init__(self) -> None:
        super().__init__("x", "max")
        self.last = 0
        self.total = 0
        self.asked_again = False

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.last += 1
        return {"a": self.last}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self.total += result["x"] if result else 0

    def remember(self, trial_id: str, config: dict[str, Any]) -> None:
        self.asked_again = True
        super().remember(trial_id, config)


class Saving(Counting):
    """One that brings its own way to keep what it knows."""

    def save(self, path: str) -> None:
        Path(path).write_text(json.dumps([self.last, self.total]))

    def restore(self, path: str) -> None:
        self.last, self.total = json.loads(Path(path).read_text())


@pytest.mark.parametrize("kind", [Counting, Saving])
def test_a_searcher_of_ones_own_goes_on_where_it_was(kind: type[Counting], tmp_path: Path) -> None:
    run_config = RunConfig(name="own", storage_path=str(tmp_path), verbose=0, engine="inline")
    settings = TuneConfig(search_alg=kind(), num_samples=3, max_concurrent_trials=1)
    Tuner(doubled, param_space={"a": 0}, tune_config=settings, run_config=run_config).fit()
    again = kind()
    grid = Tuner.restore(
        tmp_path / "own", doubled, num_samples=5, tune_config=TuneConfig(search_alg=again), run_config=run_config
    ).fit()
    assert [result.metrics["x"] for result in grid] == [2, 4, 6, 8, 10]
    assert (again.last, again.total) == (5, 30)
    assert again.asked_again == (kind is Counting)
    assert len(list((tmp_path / "own").glob("*.state"))) == (kind is Saving)


class Tally(Callback):
    """Counts the trials that ended, over all drivers."""

    def __init__(self) -> None:
        self.ended = 0

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended += 1

    def get_state(self) -> dict[str, Any]:
        return {"ended": self.ended}

    def set_state(self, state: dict[str, Any]) -> None:
        self.ended = state["ended"]


def test_a_callback_gets_its_state_back(tmp_path: Path) -> None:
    tallies = [Tally(), Tally()]
    for tally, samples in zip(tallies, (3, 4), strict=True):
        run_config = RunConfig(
            name="tally", storage_path=str(tmp_path), verbose=0, engine="inline", callbacks=[Callback(), tally]
        )
        space, settings = {"a": tune.uniform(0, 1)}, TuneConfig(num_samples=samples)
        if samples == 3:
            Tuner(doubled, param_space=space, tune_config=settings, run_config=run_config).fit()
        else:
            Tuner.restore(tmp_path / "tally", doubled, num_samples=samples, run_config=run_config).fit()
    assert [tally.ended for tally in tallies] == [3, 4]
