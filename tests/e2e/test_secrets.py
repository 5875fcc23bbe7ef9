"""Secrets in configurations reach the workers, and no file of the results."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import tune
from paceline.air import Checkpoint, CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, RestoreError, TrainingFailedError
from paceline.run.callbacks import Callback
from paceline.storage.journal import read
from paceline.train import DataParallelTrainer
from paceline.tune import ResultGrid, TuneConfig, Tuner
from paceline.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay
from paceline.tune.search import OptunaSearch

MARK = "hush"
"""Part of every secret here, so that one search finds them all."""
NAMED, TYPED, RAW, LISTED = f"{MARK}-named", f"{MARK}-typed", f"{MARK}-raw".encode(), f"{MARK}-listed"


def secret_config(**more: Any) -> dict[str, Any]:
    return {
        "api_key": NAMED,
        "webhook": paceline.Secret(TYPED),
        "store": {"secret": RAW, "hosts": [{"dbPassword": LISTED}], "eos_token": "</s>"},
        **more,
    }


MASKED = {
    "api_key": {"secret": True},
    "webhook": {"secret": True},
    "store": {"secret": {"secret": True}, "hosts": [{"dbPassword": {"secret": True}}], "eos_token": "</s>"},
}


def check_values(config: dict[str, Any]) -> None:
    """In a worker: the real values are there."""
    assert config["api_key"] == NAMED
    assert config["webhook"] == TYPED
    assert repr(config["webhook"]) == "***"
    assert config["store"]["secret"] == RAW
    assert config["store"]["hosts"][0]["dbPassword"] == LISTED


def loop(config: dict[str, Any]) -> None:
    check_values(config)
    start = session.get_checkpoint()
    for step in range(start.to_dict()["step"] + 1 if start else 1, config["steps"] + 1):
        metrics = {"step": step, "score": config.get("x", 1.0) * step}
        session.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))
        if step == config.get("fails_at"):
            raise RuntimeError("as it was told")


def files_below(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def assert_nowhere(root: Path) -> None:
    """No file and no name below `root` has the secret, as it is or in base64 (JSON's form of bytes)."""
    files = list(files_below(root))
    assert len(files) > 5
    for path in files:
        content = path.read_bytes()
        assert MARK.encode() not in content, path
        assert MARK not in str(path.relative_to(root))
        assert base64.b64encode(RAW) not in content, path


def trainer(storage: Path, config: dict[str, Any], **run: Any) -> DataParallelTrainer:
    return DataParallelTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(storage), name="run", **{"verbose": 0, **run}),
    )


class Watch(Callback):
    """Sees what a callback in the driver sees."""

    def __init__(self) -> None:
        self.configs: list[Any] = []

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.configs.append(trial.config)


def test_a_run_writes_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S10."""
    watch, storage = Watch(), tmp_path / "results"
    config = secret_config(steps=2)
    result = trainer(storage, config, callbacks=[watch], verbose=2).fit()
    assert watch.configs == [{"train_loop_config": config}]
    assert_nowhere(storage)
    assert MARK not in capsys.readouterr().out
    assert MARK not in repr(result)
    masked = {**MASKED, "steps": 2}
    run = Path(result.path)
    assert json.loads((run / "params.json").read_text()) == {"train_loop_config": masked}
    assert result.config == {"train_loop_config": config}
    assert Result.from_path(run).config == {"train_loop_config": masked}
    assert MARK not in result.metrics_dataframe.to_string()
    header = next(iter(read(run / "journal.jsonl")))
    assert header["settings"]["config"] == {"train_loop_config": masked}


def test_a_reported_secret_is_masked(tmp_path: Path) -> None:
    def reports(config: dict[str, Any]) -> None:
        session.report({"config": config, "url": config["webhook"]})

    storage = tmp_path / "results"
    run = trainer(storage, secret_config())
    run.train_loop_per_worker = reports
    result = run.fit()
    assert_nowhere(storage)
    assert result.metrics["config"] == MASKED
    assert result.metrics["url"] == {"secret": True}


def failed_run(storage: Path) -> str:
    with pytest.raises(TrainingFailedError) as caught:
        trainer(storage, secret_config(steps=3, fails_at=2)).fit()
    assert_nowhere(storage)
    assert caught.value.result is not None
    return caught.value.result.path


def test_restore_takes_secrets_from_the_config_passed_again(tmp_path: Path) -> None:
    storage = tmp_path / "results"
    path = failed_run(storage)
    with pytest.raises(RestoreError, match=r"train_loop_config/api_key.*train_loop_config/store/hosts/0/dbPassword"):
        DataParallelTrainer.restore(path, train_loop_per_worker=loop)
    incomplete = secret_config(steps=3)
    del incomplete["webhook"]
    with pytest.raises(RestoreError, match="'train_loop_config/webhook'"):
        DataParallelTrainer.restore(path, train_loop_per_worker=loop, train_loop_config=incomplete)
    as_stored = {**MASKED, "steps": 3}
    with pytest.raises(RestoreError, match="'train_loop_config/webhook'"):
        DataParallelTrainer.restore(path, train_loop_per_worker=loop, train_loop_config=as_stored)
    again = DataParallelTrainer.restore(path, train_loop_per_worker=loop, train_loop_config=secret_config(steps=3))
    again.run_config.verbose = 0
    result = again.fit()
    assert result.metrics["step"] == 3
    assert result.attempts == 2
    assert_nowhere(storage)


def test_restore_without_secrets_needs_no_config(tmp_path: Path) -> None:
    def fails_once(config: dict[str, Any]) -> None:
        session.report({"token": config["token"], "pad_token": config["pad_token"]})
        if session.get_trial_name() and config["fails"]:
            raise RuntimeError("once")

    config = {"fails": True, "token": 5, "pad_token": "<pad>", "tokens": "three"}
    first = DataParallelTrainer(
        fails_once,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(tmp_path), name="run", verbose=0),
    )
    result = first.fit(raise_on_error=False)
    assert result.error is not None
    again = DataParallelTrainer.restore(result.path, train_loop_per_worker=fails_once)
    assert again.train_loop_config == config


# -- searches ---------------------------------------------------------------------------------


def search(storage: Path, space: dict[str, Any], trainable: Any = loop, run: Any = None, **settings: Any) -> Tuner:
    return Tuner(
        trainable,
        param_space=space,
        tune_config=TuneConfig(**{"metric": "score", "mode": "max", **settings}),
        run_config=RunConfig(storage_path=str(storage), name="search", **{"verbose": 0, **(run or {})}),
    )


def fixed(grid: ResultGrid) -> list[str]:
    return [result.config["api_key"] for result in grid if result.config]


def test_a_search_writes_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = tmp_path / "results"
    space = secret_config(steps=2, x=tune.grid_search([1.0, 2.0]))
    grid = search(storage, space, run={"verbose": 2}).fit()
    assert not grid.errors
    assert_nowhere(storage)
    shown = capsys.readouterr().out + repr(grid) + repr(grid[0]) + grid.get_dataframe().to_string()
    assert MARK not in shown
    assert grid[1].config is not None
    assert grid[1].config["api_key"] == NAMED
    read = Result.from_path(grid[1].path)
    assert read.config == {**MASKED, "steps": 2, "x": 2.0}


@pytest.mark.parametrize("searcher", [pytest.param("variants", marks=pytest.mark.slow), "optuna"])
def test_a_restored_search_takes_secrets_from_param_space(tmp_path: Path, searcher: str) -> None:
    storage = tmp_path / "results"
    alg = OptunaSearch(seed=1) if searcher == "optuna" else None
    space = secret_config(steps=2, fails_at=1, x=tune.uniform(1, 2))
    grid = search(storage, space, num_samples=2, search_alg=alg).fit()
    assert len(grid.errors) == 2
    with pytest.raises(RestoreError, match=r"api_key.*param_space"):
        Tuner.restore(grid.experiment_path, loop)
    others = secret_config(steps=5, fails_at=1, x=tune.uniform(1, 2))
    with pytest.raises(RestoreError, match="differs"):
        Tuner.restore(grid.experiment_path, loop, param_space=others)
    tuner = Tuner.restore(grid.experiment_path, loop, resume_errored=True, param_space=space, num_samples=3)
    assert [result.config["api_key"] for result in tuner.get_results() if result.config] == [{"secret": True}] * 2
    again = tuner.fit()
    assert not [error for error in again.errors if "as it was told" not in str(error)], again.errors
    assert [result.metrics["step"] for result in again] == [2, 2, 1]
    assert fixed(again) == [NAMED] * 3
    assert_nowhere(storage)


def test_a_search_over_a_trainer_writes_no_secret(tmp_path: Path) -> None:
    storage = tmp_path / "results"
    own = trainer(tmp_path / "unused", secret_config(steps=2))
    space = {"train_loop_config": {"x": tune.grid_search([1.0, 2.0]), "hf_token": f"{MARK}-space"}}
    grid = search(storage, space, own).fit()
    assert not grid.errors
    assert_nowhere(storage)
    again = Tuner.restore(grid.experiment_path, own, param_space=space, num_samples=2).fit()
    assert len(again) == 4
    assert not again.errors
    assert_nowhere(storage)


@pytest.mark.slow
def test_takeovers_of_a_population_write_no_secret(tmp_path: Path) -> None:
    storage = tmp_path / "results"
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        quantile_fraction=0.5,
        hyperparam_mutations={"x": [1.0, 2.0, 4.0]},
        synch=True,
    )
    space = secret_config(steps=4, x=tune.grid_search([1.0, 4.0]))
    run = {"checkpoint_config": CheckpointConfig(num_to_keep=2)}
    grid = search(storage, space, scheduler=scheduler, run=run).fit()
    assert not grid.errors
    policies = list((storage / "search").glob("pbt_policy_*.txt"))
    assert policies
    assert_nowhere(storage)
    again = Tuner.restore(grid.experiment_path, loop, param_space=space).fit()
    assert not again.errors
    replay = PopulationBasedTrainingReplay(policies[0])
    replayed = search(storage, secret_config(steps=4, x=1.0), scheduler=replay, metric=None, mode=None, run=run).fit()
    assert not replayed.errors
    assert_nowhere(storage)


@pytest.mark.parametrize(
    ("space", "key"),
    [
        ({"api_key": tune.choice(["a", "b"])}, "api_key"),
        ({"db": {"password": tune.grid_search(["a", "b"])}}, "db/password"),
        ({"x": tune.choice([paceline.Secret("a"), paceline.Secret("b")])}, "x"),
        ({"server": tune.choice([{"token": "a"}, {"token": "b"}])}, "server/token"),
    ],
)
def test_searching_over_a_secret_is_rejected(space: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}'"):
        Tuner(loop, param_space=space)


@pytest.mark.parametrize("key", ["hf_token", "credentials/user"])
def test_a_sampled_secret_is_rejected_before_anything_of_the_trial_exists(tmp_path: Path, key: str) -> None:
    sampled: Any = tune.sample_from(lambda spec: f"{MARK}-sampled")
    for name in reversed(key.split("/")):
        sampled = {name: sampled}
    space = secret_config(steps=1, **sampled)
    with pytest.raises(ConfigError, match=f"'{key}'"):
        search(tmp_path / "results", space).fit()
    assert not [path for path in files_below(tmp_path) if MARK.encode() in path.read_bytes()]


def test_mutating_a_secret_is_rejected(tmp_path: Path) -> None:
    scheduler = PopulationBasedTraining(hyperparam_mutations={"api_key": ["a", "b"]})
    with pytest.raises(ConfigError, match="'api_key'"):
        search(tmp_path, secret_config(steps=1, x=tune.uniform(0, 1)), scheduler=scheduler).fit()


def test_numbers_under_such_names_can_be_searched(tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> dict[str, Any]:
        return {"score": config["max_token"]}

    grid = search(tmp_path, {"max_token": tune.grid_search([1, 2])}, loop).fit()
    assert [result.config["max_token"] for result in grid if result.config] == [1, 2]
    assert len(Tuner.restore(grid.experiment_path, loop).get_results()) == 2


def test_points_with_secrets_are_not_written_down(tmp_path: Path) -> None:
    storage = tmp_path / "results"
    space = secret_config(steps=1, x=tune.uniform(0, 1))
    points = [{"x": 0.5, "api_key": NAMED}]
    grid = search(storage, space, search_alg=OptunaSearch(points_to_evaluate=points, seed=1)).fit()
    assert not grid.errors
    assert_nowhere(storage)
    with pytest.raises(RestoreError, match="search_alg"):
        Tuner.restore(grid.experiment_path, loop, param_space=space)


def test_a_retry_writes_no_secret(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    def once(config: dict[str, Any]) -> None:
        check_values(config)
        session.report({"step": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))
        if not marker.exists():
            marker.touch()
            raise RuntimeError("once")

    storage = tmp_path / "results"
    result = DataParallelTrainer(
        once,
        train_loop_config=secret_config(),
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            storage_path=str(storage), name="run", verbose=0, failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    assert result.attempts == 2
    assert_nowhere(storage)
    assert Result.from_path(result.path).config == {"train_loop_config": MASKED}
