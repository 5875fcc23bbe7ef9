"""RLTrainer: its arguments, what it reports and keeps, and how it fails."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

import gymnasium
from gymnasium.spaces import Box, Discrete

from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from paceline.air.errors import CheckpointError, ConfigError, RestoreError, TrainingFailedError
from paceline.train.rl import RLCheckpoint, RLTrainer
from tests.train.rl.cartpole import QUICK

pytestmark = pytest.mark.rl


def quick(tmp_path: Path, iterations: int = 2, **arguments: Any) -> RLTrainer:
    run_config = arguments.pop("run_config", None) or RunConfig(
        stop={"training_iteration": iterations}, storage_path=str(tmp_path), verbose=0
    )
    config = arguments.pop("config", QUICK)
    if "scaling_config" not in arguments:
        config = {"num_workers": 0, **config}  # PPO has 2 of its own, which take a while to start
    return RLTrainer("PPO", config=config, **arguments, run_config=run_config)


def test_a_misspelled_argument_is_named_with_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"^RLTrainer\(\) .*'run_confg'.*run_config\?"):
        RLTrainer("PPO", run_confg=None)  # type: ignore[call-arg]


class Corridor(gymnasium.Env[Any, Any]):
    """The goal is to the right. It fails where it is told to."""

    def __init__(self, config: Any = None) -> None:
        self.settings = dict(config or {})
        self.observation_space = Box(0.0, 10.0, (1,))
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.place = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if self.settings.get("fails"):
            raise ValueError("the corridor has collapsed")
        self.place = max(0, min(self.settings.get("length", 5), self.place + (1 if action == 1 else -1)))
        over = self.place == self.settings.get("length", 5)
        return self._seen(), 1.0 if over else -0.1, over, False, {}

    def _seen(self) -> Any:
        import numpy as np

        return np.array([self.place], dtype=np.float32)


# -- what a run reports and keeps -----------------------------------------------------------------


def files_of_ray() -> list[Path]:
    """What Ray writes into the user's home where it is used without paceline, as other tests do."""
    return sorted(path for name in ("ray_results", ".ray") for path in Path.home().joinpath(name).rglob("*"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    before = files_of_ray()
    place = tmp_path_factory.mktemp("run")
    checkpoints = CheckpointConfig(checkpoint_frequency=2)
    stop = {"training_iteration": 3}
    run_config = RunConfig(stop=stop, storage_path=str(place), verbose=0, checkpoint_config=checkpoints)
    result = quick(place, run_config=run_config).fit()
    assert files_of_ray() == before
    return result


def test_each_iteration_is_a_row(result: Any) -> None:
    rows = result.metrics_dataframe
    assert list(rows["training_iteration"]) == [1, 2, 3]
    assert list(rows["timesteps_total"]) == sorted(set(rows["timesteps_total"]))
    assert result.metrics["episode_reward_mean"] == result.metrics["env_runners"]["episode_return_mean"]
    assert result.metrics["learners"]["default_policy"]["policy_loss"] is not None


def test_every_second_iteration_and_the_last_one_are_kept(result: Any) -> None:
    assert sorted(each.name for each in Path(result.path).glob("checkpoint_*")) == [
        "checkpoint_000002",
        "checkpoint_000003",
    ]
    assert isinstance(result.checkpoint, RLCheckpoint)


def test_scratch_directory_is_removed(result: Any) -> None:
    assert not Path(result.path, ".rllib").exists()


def test_stop_criterion_by_a_newer_name(tmp_path: Path) -> None:
    stop = {"env_runners/episode_return_mean": 5, "training_iteration": 10}
    result = quick(tmp_path, run_config=RunConfig(stop=stop, storage_path=str(tmp_path), verbose=0)).fit()
    assert result.metrics["training_iteration"] == 1
    assert result.metrics["episode_reward_mean"] > 5


def test_the_last_iteration_is_not_kept_if_not_wanted(tmp_path: Path) -> None:
    checkpoints = CheckpointConfig(checkpoint_at_end=False)
    run_config = RunConfig(
        stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0, checkpoint_config=checkpoints
    )
    assert quick(tmp_path, run_config=run_config).fit().checkpoint is None


def test_evaluation_is_part_of_the_row(tmp_path: Path) -> None:
    config = {**QUICK, "evaluation_interval": 1, "evaluation_num_workers": 0, "evaluation_num_episodes": 2}
    metrics = quick(tmp_path, 1, config=config).fit().metrics
    assert metrics["evaluation"]["episode_reward_mean"] >= 8


# -- environments ---------------------------------------------------------------------------------


def test_environment_of_ones_own_as_a_class(tmp_path: Path) -> None:
    config = {**QUICK, "env": Corridor, "env_config": {"length": 3}}
    result = quick(tmp_path, config=config, scaling_config=ScalingConfig(num_workers=1)).fit()
    assert result.metrics["episode_reward_max"] == pytest.approx(1.0 - 0.1 * 2)
    assert result.metrics["fault_tolerance"]["num_healthy_workers"] == 1


def test_environment_that_was_registered_by_a_name(tmp_path: Path) -> None:
    from ray.tune.registry import register_env

    register_env("corridor", lambda config: Corridor({**config, "length": 2}))
    config = {**QUICK, "env": "corridor"}
    result = quick(tmp_path, config=config, scaling_config=ScalingConfig(num_workers=1)).fit()
    assert result.metrics["episode_reward_max"] == pytest.approx(1.0 - 0.1)


@pytest.mark.parametrize("runners", [0, 2])
def test_failing_environment_is_named(tmp_path: Path, runners: int) -> None:
    config = {**QUICK, "env": Corridor, "env_config": {"fails": True}, "num_workers": runners}
    with pytest.raises(TrainingFailedError, match="the corridor has collapsed") as caught:
        quick(tmp_path, config=config).fit()
    assert f"{Path(__file__).name}" in str(caught.value)


# -- arguments ------------------------------------------------------------------------------------


def test_training_needs_an_end(tmp_path: Path) -> None:
    trainer = quick(tmp_path, run_config=RunConfig(storage_path=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"RunConfig\(stop="):
        trainer.fit()


def test_wrong_settings_are_refused_when_the_trainer_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)'learning_rate'.*'horizon'|'horizon'.*'learning_rate'"):
        quick(tmp_path, config={**QUICK, "learning_rate": 1, "horizon": 10})
    with pytest.raises(ConfigError, match=r"learning_rate.* lr\?"):
        quick(tmp_path, config={**QUICK, "learning_rate": 1})
    with pytest.raises(ConfigError, match=r"'PP0'.*PPO"):
        RLTrainer("PP0", config=QUICK)


def test_datasets_are_for_algorithms_that_learn_from_them(tmp_path: Path) -> None:
    from paceline import data

    with pytest.raises(ConfigError, match=r"PPO.*BC"):
        quick(tmp_path, datasets={"train": data.from_items([{"obs": [0.0], "actions": 0}])})


def test_number_of_env_runners(tmp_path: Path) -> None:
    import warnings

    with pytest.warns(UserWarning, match=r"num_workers.*3.*num_workers=2"):
        trainer = quick(tmp_path, config={**QUICK, "num_workers": 3}, scaling_config=ScalingConfig(num_workers=2))
    spec = trainer.to_run_spec()
    assert spec.train.config.num_env_runners == 2  # type: ignore[attr-defined]
    assert spec.max_workers == 1
    assert spec.scaling.num_cpus_per_worker == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(tmp_path, config={**QUICK, "num_workers": 3})


def test_env_runners_that_fail_are_started_again_by_rllib_only_if_asked(tmp_path: Path) -> None:
    for given, expected in (
        ({}, False),
        ({"restart_failed_env_runners": True}, True),
        ({"recreate_failed_workers": True}, True),
        ({"max_num_env_runner_restarts": 3}, True),
    ):
        config = quick(tmp_path, config={**QUICK, **given}).to_run_spec().train.config  # type: ignore[attr-defined]
        assert config.restart_failed_env_runners is expected


def test_cpus_of_the_trainer_are_threads_of_the_learner(tmp_path: Path) -> None:
    spec = quick(tmp_path, scaling_config=ScalingConfig(num_workers=1, trainer_resources={"CPU": 3})).to_run_spec()
    assert spec.train.config.num_cpus_for_main_process == 3  # type: ignore[attr-defined]
    assert spec.scaling.num_cpus_per_worker == 4


def test_gpu_is_for_the_learner(tmp_path: Path) -> None:
    trainer = quick(tmp_path, scaling_config=ScalingConfig(num_workers=1, use_gpu=True))
    config = trainer.to_run_spec().train.config  # type: ignore[attr-defined]
    assert (config.num_gpus_per_learner, config.num_gpus_per_env_runner) == (1, 0)


# -- continuing -----------------------------------------------------------------------------------


def test_checkpoints_from_elsewhere_need_trust(result: Any, tmp_path: Path) -> None:
    copied = result.checkpoint.to_directory(tmp_path / "copy")
    for given in (copied, Checkpoint.from_directory(copied)):
        with pytest.raises(CheckpointError, match=r"pickle.*trust=True"):
            quick(tmp_path, resume_from_checkpoint=given)
    quick(tmp_path, resume_from_checkpoint=copied, trust=True)
    quick(tmp_path, resume_from_checkpoint=result.checkpoint)
    with pytest.raises(CheckpointError, match=r"restore\(path, trust=True\)"):
        RLTrainer.restore(result.path)


def test_restored_run_takes_over_its_settings(result: Any) -> None:
    run_config = RunConfig(stop={"training_iteration": 3})
    restored = RLTrainer.restore(result.path, trust=True, run_config=run_config)
    assert restored.algorithm == "PPO"
    assert restored.config == {"num_workers": 0, **QUICK}
    assert restored.scaling_config.num_workers is None


def test_number_of_env_runners_is_known_without_a_scaling_config() -> None:
    assert RLTrainer("PPO", config=QUICK).scaling_config.num_workers == 2, "PPO's own default"


def test_code_is_to_be_given_again(tmp_path: Path) -> None:
    config = {**QUICK, "env": Corridor}
    path = quick(tmp_path, 1, config=config).fit().path
    with pytest.raises(RestoreError, match="config="):
        RLTrainer.restore(path, trust=True)
    RLTrainer.restore(path, trust=True, config=config)


def test_checkpoint_of_another_algorithm_is_refused_before_workers_start(result: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint of PPO.*SAC"):
        RLTrainer("SAC", config={"env": "Pendulum-v1"}, resume_from_checkpoint=result.checkpoint)
    (tmp_path / "model.pt").touch()
    with pytest.raises(CheckpointError, match="not an RLlib checkpoint"):
        quick(tmp_path, resume_from_checkpoint=str(tmp_path), trust=True)


def test_learning_rate_of_the_new_run_is_used_from_the_first_update(result: Any, tmp_path: Path) -> None:
    """With a rate of almost nothing, the weights stay as they were."""
    config = {**QUICK, "lr": 1e-12}
    after = quick(tmp_path, 1, config=config, resume_from_checkpoint=result.checkpoint).fit()
    before, now = (each.checkpoint.get_model().state_dict() for each in (result, after))
    assert all((before[name] - now[name]).abs().max() < 1e-6 for name in before)


def test_secret_in_the_config_is_mentioned(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"env_config\.api_key"):
        quick(tmp_path, config={**QUICK, "env_config": {"api_key": "x"}})


@pytest.mark.parametrize("stored", [False, True])
def test_replay_buffer_is_kept_if_wanted(tmp_path: Path, stored: bool) -> None:
    config = {
        "env": "CartPole-v1",
        "learning_starts": 100,
        "timesteps_per_iteration": 200,
        "store_buffer_in_checkpoints": stored,
    }
    run_config = RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0)
    first = RLTrainer("DQN", config=config, run_config=run_config).fit()
    second = RLTrainer("DQN", config=config, run_config=run_config, resume_from_checkpoint=first.checkpoint).fit()
    assert any("replay buffer" in text for text in second.warnings) is not stored
    sizes = [len(list(Path(each.checkpoint.path).glob("replay_buffer.pkl"))) for each in (first, second)]  # type: ignore[union-attr, arg-type]
    assert sizes == [stored, stored]


def test_inline_engine_trains_in_this_process(tmp_path: Path) -> None:
    import ray

    run_config = RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0, engine="inline")
    for _ in range(2):  # the second Ray of a process has another token
        result = quick(tmp_path, run_config=run_config).fit()
        assert result.metrics["pid"] == os.getpid()
        assert not ray.is_initialized()


# -- a search -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dict", "AlgorithmConfig"])
def test_tuner_over_settings(tmp_path: Path, form: str) -> None:
    from paceline import tune
    from paceline.train.rl.config import algorithm_class, algorithm_config
    from paceline.tune import TuneConfig, Tuner

    config: Any = {"num_workers": 0, **QUICK}
    if form == "AlgorithmConfig":
        config = algorithm_config(algorithm_class("PPO"), config)
    grid = Tuner(
        RLTrainer("PPO", config=config),
        param_space={"config": {"lr": tune.grid_search([1e-4, 1e-2])}},
        tune_config=TuneConfig(metric="episode_reward_mean", mode="max", max_concurrent_trials=2),
        run_config=RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not grid.errors
    rates = [each.metrics["learners"]["default_policy"]["default_optimizer_learning_rate"] for each in grid]
    assert rates == pytest.approx([1e-4, 1e-2])
    assert grid.get_best_result().checkpoint.get_policy().compute_single_action([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_search_needs_an_end_and_continues_only_what_is_trusted(tmp_path: Path) -> None:
    from paceline.tune import TuneConfig, Tuner

    trainer = RLTrainer("PPO", config={"num_workers": 0, **QUICK})
    with pytest.raises(ConfigError, match=r"RunConfig\(stop="):
        Tuner(trainer, run_config=RunConfig(storage_path=str(tmp_path))).fit()
    run_config = RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0)
    grid = Tuner(trainer, tune_config=TuneConfig(num_samples=1), run_config=run_config).fit()
    restored = Tuner.restore(grid.experiment_path, trainer)
    assert len(restored.get_results()) == 1
    with pytest.raises(CheckpointError, match=r"RLTrainer\(\.\.\., trust=True\)"):
        restored.fit()
    trusting = RLTrainer("PPO", config={"num_workers": 0, **QUICK}, trust=True)
    assert len(Tuner.restore(grid.experiment_path, trusting).fit()) == 1


def test_search_sets_values_that_are_defaults_elsewhere() -> None:
    from paceline.train.rl.config import algorithm_class, algorithm_config

    config = algorithm_config(algorithm_class("PPO"), {**QUICK, "train_batch_size": 500})
    trial = RLTrainer("PPO", config=config).with_overrides({"config": {"train_batch_size": 4000}})
    assert trial.to_run_spec().train.config.train_batch_size_per_learner == 4000  # type: ignore[attr-defined]


def test_scheduler_stops_trials(tmp_path: Path) -> None:
    from paceline import tune
    from paceline.tune import TuneConfig, Tuner
    from paceline.tune.schedulers import ASHAScheduler

    grid = Tuner(
        RLTrainer("PPO", config={"num_workers": 0, **QUICK}),
        param_space={"config": {"lr": tune.grid_search([1e-4, 1e-3])}},
        tune_config=TuneConfig(
            metric="episode_reward_mean",
            mode="max",
            scheduler=ASHAScheduler(max_t=3, grace_period=1, reduction_factor=2),
            max_concurrent_trials=1,
        ),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not grid.errors
    assert max(each.metrics["training_iteration"] for each in grid) == 3


def test_population_hands_on_policies(tmp_path: Path) -> None:
    from paceline.tune import TuneConfig, Tuner
    from paceline.tune.schedulers import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        perturbation_interval=1, hyperparam_mutations={"config": {"lr": [1e-4, 1e-3]}}, quantile_fraction=0.5
    )
    grid = Tuner(
        RLTrainer("PPO", config={"num_workers": 0, **QUICK}),
        param_space={"config": {"lr": 1e-3}},
        tune_config=TuneConfig(metric="episode_reward_mean", mode="max", scheduler=scheduler, num_samples=2),
        run_config=RunConfig(stop={"training_iteration": 3}, storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not grid.errors
    assert [each.metrics["training_iteration"] for each in grid] == [3, 3]


def test_output_of_environments_is_in_the_log(tmp_path: Path) -> None:
    class Talking(Corridor):
        def reset(self, **arguments: Any) -> Any:
            print(f"a new episode in process {os.getpid()}", flush=True)
            return super().reset(**arguments)

    config = {**QUICK, "env": Talking}
    result = quick(tmp_path, 1, config=config, scaling_config=ScalingConfig(num_workers=1)).fit()
    log = Path(result.path, "logs", "rank_0.log").read_text()
    assert re.search(r"a new episode in process \d+", log)
