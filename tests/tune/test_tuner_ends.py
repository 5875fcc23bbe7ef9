"""How trials end: by their own word, by the budget's, right after a takeover, or without having said anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import Checkpoint, RunConfig, session
from paceline.air.errors import ConfigError
from paceline.tune import TuneConfig, Tuner
from paceline.tune.schedulers import PopulationBasedTraining


class Nine(tune.Trainable):
    """Says after nine steps that it is done."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps, self.weight = 0, 0.0

    def step(self) -> dict[str, Any]:
        self.steps += 1
        self.weight += self.config["x"]
        return {"steps": self.steps, "weight": self.weight, "done": self.steps >= 9}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"steps": self.steps, "weight": self.weight}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps, self.weight = checkpoint["steps"], checkpoint["weight"]


def population(**settings: Any) -> PopulationBasedTraining:
    return PopulationBasedTraining(
        "training_iteration", perturbation_interval=3, hyperparam_mutations={"x": tune.uniform(0, 1)}, **settings
    )


@pytest.mark.parametrize("synch", [False, True])
def test_no_row_after_the_one_that_says_done(tmp_path: Path, synch: bool) -> None:
    results = Tuner(
        Nine,
        param_space={"x": tune.grid_search([0.1, 0.9, 0.5, 0.3])},
        tune_config=TuneConfig(metric="weight", mode="min", scheduler=population(synch=synch)),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not results.errors
    for result in results:
        assert result.metrics_dataframe is not None
        done = list(result.metrics_dataframe["done"])
        assert done[-1]
        assert sum(done) == 1


def test_metrics_and_checkpoint_are_of_the_same_state(tmp_path: Path) -> None:
    """A trial that takes over a state which is already at its end reports no row of its own any more."""

    def train(config: dict[str, Any]) -> None:
        checkpoint = session.get_checkpoint()
        state = checkpoint.to_dict() if checkpoint else {"step": 0, "who": config["x"]}
        for step in range(state["step"], 6):
            saved = Checkpoint.from_dict({"step": step + 1, "who": state["who"]})
            session.report({"loss": state["who"]}, checkpoint=saved)

    for _ in range(3):
        results = Tuner(
            train,
            param_space={"x": tune.grid_search([0.9, 0.8, 0.7, 0.1])},
            tune_config=TuneConfig(metric="loss", mode="min", scheduler=population()),
            run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
        ).fit()
        for result in results:
            assert result.checkpoint is not None
            assert result.metrics["loss"] == result.checkpoint.to_dict()["who"]


def test_a_trial_that_says_nothing_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def silent(config: dict[str, Any]) -> None:
        pass

    results = Tuner(silent, run_config=RunConfig(storage_path=str(tmp_path))).fit()
    assert results.num_terminated == 1
    assert "ended without having reported anything" in capsys.readouterr().out


def test_cards_that_are_not_there_are_refused_before_any_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    greedy = tune.with_resources(lambda config: {"x": 1}, {"gpu": 1})
    with pytest.raises(ConfigError, match=r"asks for 1 GPU\(s\)"):
        Tuner(greedy, run_config=RunConfig(storage_path=str(tmp_path), verbose=0)).fit()


def test_a_search_without_end_of_which_nothing_works_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(config: dict[str, Any]) -> None:
        raise KeyError("lr")

    results = Tuner(
        broken, tune_config=TuneConfig(num_samples=-1), run_config=RunConfig(storage_path=str(tmp_path), verbose=1)
    ).fit()
    assert 10 <= len(results.errors) <= 20
    assert "the search is given up" in capsys.readouterr().out
