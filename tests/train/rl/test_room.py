"""A search reserves room for all that a trial's RLlib starts on a cluster."""

from __future__ import annotations

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("ray")

from paceline.air import RunConfig, ScalingConfig
from paceline.run.run_files import saved_settings
from paceline.train.rl import RLTrainer
from paceline.tune.trainable.kinds import kind_of

pytestmark = [
    pytest.mark.rl,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:google.*"),
    pytest.mark.filterwarnings("ignore::UserWarning:gymnasium.*"),
]


def test_the_runners_of_a_trials_own_configuration_are_counted() -> None:
    settings = {"env": "CartPole-v1", "evaluation_interval": 1, "evaluation_num_env_runners": 1}
    run_config = RunConfig(stop={"training_iteration": 1}, verbose=0)
    kind = kind_of(RLTrainer(algorithm="PPO", config=settings, run_config=run_config))
    for runners in (1, 2):
        config = {"config": {"num_env_runners": runners}}
        placement = kind.placement(config, kind.resources(config))
        spec = kind.run_spec(config, run_config)
        assert [placement.resources, *placement.beside] == list(spec.room)
        assert len(placement.beside) == runners + 1


def test_where_processes_shall_be_reaches_the_run_and_its_restore() -> None:
    scaling = ScalingConfig(
        num_workers=2, placement_strategy="SPREAD", accelerator_type="T4", trainer_resources={"CPU": 3}
    )
    run_config = RunConfig(stop={"training_iteration": 1}, verbose=0)
    trainer = RLTrainer("PPO", config={"env": "CartPole-v1"}, scaling_config=scaling, run_config=run_config)
    spec = trainer.to_run_spec()
    assert (spec.scaling.placement_strategy, spec.scaling.accelerator_type) == ("SPREAD", "T4")
    again = RLTrainer(**RLTrainer._restored_arguments(saved_settings(spec), {"run_config": run_config}))
    assert again.scaling_config == scaling
    assert again.scaling_config.accelerator_type == "T4"
    assert again.to_run_spec().room == spec.room
