"""Settings of a restored search: what must be given again, what holds, and what contradicts the experiment."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.air import CheckpointConfig, FailureConfig, RunConfig
from paceline.air.errors import ConfigError, RestoreError
from paceline.air.settings import stored
from paceline.run.spec import Trial
from paceline.tune import Callback, TuneConfig, Tuner
from paceline.tune.schedulers import ASHAScheduler, FIFOScheduler
from paceline.tune.schedulers.trial_scheduler import Controller
from tests.tune.counting import count
from tests.tune.interrupting import Bench, InterruptAt, facts
from tests.tune.search_invariants import experiment_records

# -- contradictions ---------------------------------------------------------------------------


def doubled(config: dict[str, Any]) -> dict[str, Any]:
    return {"x": 2 * config["a"]}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A finished experiment, to be left as it is."""
    return (
        Tuner(
            doubled,
            param_space={"a": tune.grid_search([1, 2]), "b": (1, 2)},
            tune_config=TuneConfig(metric="x", mode="min"),
            run_config=RunConfig(name="searched", storage_path=str(tmp_path_factory.mktemp("made")), verbose=0),
        )
        .fit()
        .experiment_path
    )


@pytest.mark.parametrize(
    "space", [{"a": tune.grid_search([5, 6])}, {"c": 1}, {"a": tune.grid_search([1, 2]), "b": doubled}]
)
def test_another_space_would_mix_two_searches(searched: str, space: dict[str, Any]) -> None:
    with pytest.raises(RestoreError, match=r"param_space.*another name"):
        Tuner.restore(searched, doubled, param_space=space)


def test_the_same_space_may_be_given_again(searched: str, tmp_path: Path) -> None:
    space = {"a": tune.grid_search([1, 2]), "b": (1, 2)}
    grid = Tuner.restore(
        shutil.copytree(searched, tmp_path / "searched"), doubled, param_space=space, num_samples=2
    ).fit()
    assert [result.metrics["x"] for result in grid] == [2, 4, 2, 4]
    assert [result.config["b"] for result in grid if result.config] == [(1, 2)] * 4


@pytest.mark.parametrize(("name", "value"), [("mode", "max"), ("metric", "y")])
def test_another_goal_is_refused(searched: str, name: str, value: str) -> None:
    with pytest.raises(RestoreError, match=rf"{name}=.*{value!r}"):
        Tuner.restore(searched, doubled, tune_config=TuneConfig(**{"metric": "x", "mode": "min", name: value}))


def test_an_edited_script_that_resumes_is_told(searched: str) -> None:
    path = Path(searched)
    with pytest.raises(RestoreError, match=r"param_space.*another name"):
        tune.run(
            doubled,
            config={"a": tune.grid_search([7, 8, 9])},
            name=path.name,
            storage_path=str(path.parent),
            resume=True,
            verbose=0,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# -- what must be given again ---------------------------------------------------------------------


def test_space_with_functions_is_to_be_given_again(bench: Bench) -> None:
    space = {"x": tune.sample_from(lambda spec: 7), "marks": str(bench.marks.directory)}
    grid = bench.interrupted(at=0, space=space)
    with pytest.raises(RestoreError, match=r"functions.*param_space=\.\.\.") as caught:
        Tuner.restore(grid.experiment_path, count)
    assert "Tuner.restore(" in str(caught.value)
    restored = Tuner.restore(grid.experiment_path, count, param_space=space).fit()
    assert [each["config"]["x"] for each in facts(restored)] == [7] * 4


class OwnScheduler(FIFOScheduler):
    pass


def test_scheduler_of_ones_own_is_to_be_given_again(bench: Bench) -> None:
    grid = bench.interrupted(at=0, scheduler=OwnScheduler())
    with pytest.raises(RestoreError, match=r"TuneConfig\(scheduler="):
        Tuner.restore(grid.experiment_path, count)
    restored = Tuner.restore(grid.experiment_path, count, tune_config=TuneConfig(scheduler=OwnScheduler())).fit()
    assert [each["rows"] for each in facts(restored)] == [3] * 4


def test_trainable_is_to_be_given_again(bench: Bench) -> None:
    grid = bench.tuner(num_samples=1).fit()
    with pytest.raises(ConfigError, match=r"Tuner\.restore\(\).*trainable"):
        Tuner.restore(grid.experiment_path)


# -- what an earlier restore was given ------------------------------------------------------------


@pytest.mark.parametrize("what", ["stop", "scheduler"])
def test_settings_of_a_restore_hold_for_the_next(bench: Bench, what: str) -> None:
    grid = bench.interrupted(at=1, max_concurrent_trials=1)
    run_config = RunConfig(
        callbacks=[InterruptAt(2)], verbose=0, stop={"training_iteration": 2} if what == "stop" else None
    )
    settings = TuneConfig(
        scheduler=ASHAScheduler(max_t=2, grace_period=2) if what == "scheduler" else None, num_samples=5
    )
    with pytest.raises(KeyboardInterrupt):
        Tuner.restore(grid.experiment_path, count, run_config=run_config, tune_config=settings).fit()
    restored = facts(Tuner.restore(grid.experiment_path, count).fit())
    assert [each["rows"] for each in restored] == [3, 2, 2, 2, 2]


class Broken(FIFOScheduler):
    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        raise RuntimeError("broken")


def test_settings_with_which_a_restore_fails_do_not_hold_for_the_next(bench: Bench) -> None:
    grid = bench.interrupted(at=1)
    before = experiment_records(grid.experiment_path)
    with pytest.raises(RuntimeError, match="broken"):
        Tuner.restore(grid.experiment_path, count, tune_config=TuneConfig(scheduler=Broken())).fit()
    assert experiment_records(grid.experiment_path) == before
    assert [each["rows"] for each in facts(Tuner.restore(grid.experiment_path, count).fit())] == [3] * 4


def test_callbacks_that_are_not_given_again_are_mentioned_each_time(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    grid = bench.tuner(callbacks=[Callback()], verbose=1, num_samples=1).fit()
    for _ in range(2):
        capfd.readouterr()
        Tuner.restore(grid.experiment_path, count).fit()
        assert re.search(r"callbacks.*restore\(\)", " ".join("".join(capfd.readouterr()).split()))


def test_a_restored_search_has_all_the_settings(tmp_path: Path) -> None:
    """Those of every single field: tests/air/test_settings.py."""
    run_config = RunConfig(
        name="settings",
        storage_path=str(tmp_path),
        verbose=0,
        engine="inline",
        stop={"x": 7},
        max_log_bytes=5_000_000,
        failure_config=FailureConfig(fail_fast=True, hang_timeout_s=77.0, stop_grace_s=1.5),
        checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_score_attribute="x"),
    )
    settings = TuneConfig(
        metric="x", mode="min", num_samples=2, max_concurrent_trials=1, time_budget_s=600, chdir_to_trial_dir=False
    )
    grid = Tuner(doubled, param_space={"a": 1}, tune_config=settings, run_config=run_config).fit()
    restoration = Tuner.restore(grid.experiment_path, doubled)._restoration
    assert restoration is not None
    assert stored(restoration.setup.run_config) == stored(run_config)
    assert stored(restoration.setup.tune) == stored(settings)
    assert restoration.setup.run_config.name == "settings"
