"""Trainers as trainables: a trial's configuration laid over the trainer's own arguments."""

from __future__ import annotations

import threading
from typing import Any

import pandas as pd
import pytest
from sklearn.tree import DecisionTreeClassifier

from paceline import data
from paceline.air import CheckpointConfig, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, SerializationError
from paceline.run.attempt import pickled_task
from paceline.train import BaseTrainer, DataParallelTrainer
from paceline.train.sklearn import SklearnTrainer
from paceline.train.xgboost import XGBoostTrainer
from paceline.tune.trainable.kinds import kind_of
from tests.tune.trainable.one_trial import run_trial
from tests.tune.trainable.small_trainables import loop

QUIET = RunConfig(verbose=0)
TWO = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5})


@pytest.fixture
def trainer() -> DataParallelTrainer:
    own = {"lr": 0.1, "model": {"layers": 2, "width": 8}}
    return DataParallelTrainer(loop, train_loop_config=own, scaling_config=TWO, run_config=RunConfig(name="own"))


@pytest.fixture
def rows() -> data.Dataset:
    return data.from_pandas(pd.DataFrame({"x": [0.0, 1.0] * 20, "y": [0, 1] * 20}))


# -- merging ------------------------------------------------------------------------------------


def test_a_configuration_is_laid_over_the_trainers_own(trainer: DataParallelTrainer) -> None:
    config = {
        "train_loop_config": {"lr": 0.5, "model": {"width": 16}},
        "scaling_config": {"num_workers": 1},
    }
    result = run_trial(trainer, config)
    assert (result.metrics["lr"], result.metrics["model"]) == (0.5, {"layers": 2, "width": 16})
    assert result.metrics["workers"] == 1
    assert result.config == {
        "train_loop_config": {"lr": 0.5, "model": {"layers": 2, "width": 16}},
        "scaling_config": {"num_workers": 1},
    }
    assert trainer.train_loop_config == {"lr": 0.1, "model": {"layers": 2, "width": 8}}


def test_a_scaling_config_is_merged_field_by_field(trainer: DataParallelTrainer) -> None:
    kind = kind_of(trainer)
    for given in ({"num_workers": 3}, ScalingConfig(num_workers=3)):
        spec = kind.run_spec({"scaling_config": given}, QUIET)
        assert spec.scaling == ScalingConfig(num_workers=3, resources_per_worker={"CPU": 0.5})
        assert kind.resources({"scaling_config": given}).bundles == [{"CPU": 1}, *[{"CPU": 0.5}] * 3]
        assert spec.config["scaling_config"] == {"num_workers": 3}
    assert kind.resources({}).bundles == [{"CPU": 1}, {"CPU": 0.5}, {"CPU": 0.5}]


def test_the_process_that_drives_workers_costs_nothing_but_one_that_trains_does(
    trainer: DataParallelTrainer, rows: data.Dataset
) -> None:
    alone = SklearnTrainer(estimator=DecisionTreeClassifier(), label_column="y", datasets={"train": rows})
    assert not kind_of(trainer).counts_own_bundle
    assert kind_of(alone).counts_own_bundle
    assert kind_of(alone).resources({"scaling_config": {"trainer_resources": {"CPU": 2}}}).bundles == [{"CPU": 2}]


def test_room_is_reserved_for_what_a_run_of_the_trainer_asks_for(
    trainer: DataParallelTrainer, rows: data.Dataset
) -> None:
    more = ScalingConfig(trainer_resources={"CPU": 2, "GPU": 1})
    alone = SklearnTrainer(
        estimator=DecisionTreeClassifier(), label_column="y", datasets={"train": rows}, scaling_config=more
    )
    for kind, workers in ((kind_of(alone), 1), (kind_of(trainer), 2)):
        placement = kind.placement({}, kind.resources({}))
        each, own = kind.run_spec({}, QUIET).scaling.on_nodes()
        assert (placement.world_size, placement.resources, placement.driver_resources) == (workers, each, own)


def test_the_run_config_of_the_search_replaces_the_trainers(trainer: DataParallelTrainer) -> None:
    kind = kind_of(trainer)
    assert kind.run_config is trainer.run_config
    assert kind.run_spec({}, QUIET).run_config is QUIET


def test_arguments_by_place_and_of_a_subclass() -> None:
    class Powers(DataParallelTrainer):
        def __init__(self, exponent: int, *, base: int = 2, **more: Any) -> None:
            super().__init__(loop, train_loop_config={"power": base**exponent}, **more)

    kind = kind_of(Powers(3, scaling_config=ScalingConfig(num_workers=1)))
    shown = [
        kind.run_spec(config, QUIET).config["train_loop_config"]["power"]
        for config in ({}, {"exponent": 4}, {"base": 3}, {"base": 3, "exponent": 2})
    ]
    assert shown == [8, 16, 27, 9]


def test_a_trainer_of_ones_own_gets_the_configuration_in_its_worker() -> None:
    class Mine(BaseTrainer):
        def __init__(self, *, lr: float = 1.0, **more: Any) -> None:
            self.lr = lr
            super().__init__(**more)

        def training_loop(self) -> None:
            session.report({"lr": self.lr})

    result = run_trial(Mine().as_trainable(), {"lr": 0.25})
    assert (result.metrics["lr"], result.config) == (0.25, {"lr": 0.25})


# -- what is refused ----------------------------------------------------------------------------


def test_keys_that_a_trainer_does_not_take_are_refused_with_the_nearest_one(
    trainer: DataParallelTrainer, rows: data.Dataset
) -> None:
    kind = kind_of(trainer)
    kind.check_space({"train_loop_config": {"lr": 1}, "scaling_config": {"num_workers": 1}})
    with pytest.raises(ConfigError, match=r"param_space.*Tuner\(run_config="):
        kind.check_space({"run_config": QUIET})
    with pytest.raises(ConfigError, match=r"'train_loop_confg'.*train_loop_config\?"):
        kind.check_space({"train_loop_confg": {}})
    with pytest.raises(ConfigError, match=r"'lr'.*\{\"train_loop_config\""):
        kind.check_space({"lr": 1})
    with pytest.raises(ConfigError, match=r"'lr'.*train_loop_config.*param_space.*hyperparam_mutations"):
        kind.run_spec({"lr": 1, "__trial_index__": 0}, QUIET)  # a scheduler may have put it there
    with pytest.raises(ConfigError, match=r"'num_worker'.*num_workers\?"):
        kind.check_space({"scaling_config": {"num_worker": 1}})
    trees = XGBoostTrainer(params={}, label_column="y", datasets={"train": rows}, scaling_config=TWO)
    kind_of(trees).check_space({"params": {"eta": 1}, "num_boost_round": 3, "early_stopping_rounds": 2})
    with pytest.raises(ConfigError, match=r"'num_boost_rounds'.*num_boost_round\?"):
        kind_of(trees).check_space({"num_boost_rounds": 3})


def test_mutations_of_a_scheduler_are_arguments_of_the_trainer(trainer: DataParallelTrainer) -> None:
    kind = kind_of(trainer)
    kind.check_mutations({"train_loop_config": {"lr": [1, 2]}}, {})
    with pytest.raises(ConfigError, match=r"^hyperparam_mutations.*'lr'.*\"train_loop_config\""):
        kind.check_mutations({"lr": [1, 2]}, {"train_loop_config": {"lr": 1}})


def test_mutations_of_a_function_may_add_parameters_but_a_near_miss_is_told() -> None:
    kind = kind_of(loop)
    kind.check_mutations({"lr": [1, 2]}, {"batch_size": 3})
    kind.check_mutations({"lr": [1, 2], "lr2": [1]}, {"lr": 3})
    with pytest.warns(UserWarning, match="'learning_rat'.*param_space.*'learning_rate'"):
        kind.check_mutations({"learning_rat": [1, 2]}, {"learning_rate": 3})


def test_how_many_workers_must_be_known() -> None:
    kind = kind_of(DataParallelTrainer(loop))
    with pytest.raises(ConfigError, match="num_workers="):
        kind.check_space({"train_loop_config": {}})
    kind.check_space({"scaling_config": {"num_workers": 2}})


def test_a_trainer_that_continues_a_run_is_refused(trainer: DataParallelTrainer) -> None:
    path = trainer.with_overrides({}, QUIET).fit().path
    restored = DataParallelTrainer.restore(path, train_loop_per_worker=loop)
    with pytest.raises(ConfigError, match=r"DataParallelTrainer.restore\(\).*resume_from_checkpoint="):
        kind_of(restored)
    with pytest.raises(ConfigError, match="the class DataParallelTrainer"):
        kind_of(DataParallelTrainer)


def test_checkpoint_rules_that_have_no_meaning_are_refused_at_the_start(trainer: DataParallelTrainer) -> None:
    saving = RunConfig(verbose=0, checkpoint_config=CheckpointConfig(checkpoint_frequency=2))
    for trainable in (trainer, loop):
        kind = kind_of(trainable)
        kind.check_run_config(QUIET)
        with pytest.raises(ConfigError, match=r"checkpoint_frequency=2\)"):
            kind.check_run_config(saving)


# -- trainers of libraries ----------------------------------------------------------------------


def test_boosted_trees_with_searched_parameters(rows: data.Dataset) -> None:
    trainer = XGBoostTrainer(
        params={"objective": "binary:logistic", "max_depth": 2},
        label_column="y",
        datasets={"train": rows},
        num_boost_round=2,
        scaling_config=ScalingConfig(num_workers=1),
    )
    result = run_trial(trainer, {"params": {"max_depth": 4}, "num_boost_round": 4}, checkpoint_every=2)
    assert result.config == {
        "params": {"objective": "binary:logistic", "max_depth": 4},
        "num_boost_round": 4,
    }
    assert result.metrics["training_iteration"] == 4
    assert [checkpoint.number for checkpoint, _ in result.best_checkpoints] == [2, 4]


def test_an_estimator_that_a_trial_fitted_needs_no_trust(rows: data.Dataset) -> None:
    kind = kind_of(
        SklearnTrainer(estimator=DecisionTreeClassifier(), label_column="y", datasets={"train": rows, "valid": rows})
    )
    result = run_trial(kind, {"params": {"max_depth": 1}})
    kind.made_here(result)
    assert result.checkpoint is not None
    assert result.checkpoint.made_here
    assert result.checkpoint.get_estimator().get_depth() == 1


# -- cost ---------------------------------------------------------------------------------------


def test_code_and_data_are_pickled_once_for_all_trials() -> None:
    pickled: list[str] = []

    class Counted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __reduce__(self) -> Any:
            pickled.append(self.name)
            return Counted, (self.name,)

    weights = Counted("weights")

    def train(config: dict[str, Any]) -> None:
        session.report({"found": weights.name})

    for trainable in (train, DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1))):
        pickled.clear()
        kind = kind_of(trainable)
        for _ in range(5):
            task = pickled_task(kind.run_spec({}, QUIET))
        assert pickled == ["weights"]
        assert len(task) < 20_000
        assert run_trial(kind, engine="local").metrics["found"] == "weights"


def test_what_cannot_travel_is_named(trainer: DataParallelTrainer) -> None:
    lock = threading.Lock()

    def train(config: dict[str, Any]) -> None:
        lock.acquire()

    kind = kind_of(DataParallelTrainer(train, scaling_config=ScalingConfig(num_workers=1)))
    with pytest.raises(SerializationError, match=r"train_loop_per_worker.*'lock'"):
        kind.run_spec({}, QUIET)
    with pytest.raises(SerializationError, match=r"\['gate'\]"):
        pickled_task(kind_of(trainer).run_spec({"train_loop_config": {"gate": lock}}, QUIET))


def test_the_number_of_a_repetition_goes_to_the_train_function(trainer: DataParallelTrainer) -> None:
    spec = kind_of(trainer).run_spec({"__trial_index__": 1, "train_loop_config": {"lr": 0.2}}, QUIET)
    assert spec.config["train_loop_config"]["lr"] == 0.2
    assert spec.config["train_loop_config"]["__trial_index__"] == 1


def test_a_trainer_without_train_function_does_without_the_number_of_a_repetition() -> None:
    frame = data.from_items([{"x": 0.0, "y": 0.0}, {"x": 1.0, "y": 1.0}])
    tree = SklearnTrainer(estimator=DecisionTreeClassifier(), datasets={"train": frame}, label_column="y")
    assert kind_of(tree).run_spec({"__trial_index__": 1, "params": {"max_depth": 2}}, QUIET) is not None
