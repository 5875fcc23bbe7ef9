"""What SklearnTrainer refuses, at the line that wrote it."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GroupKFold, KFold
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline

from paceline import data
from paceline.air import CheckpointConfig, RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.train.sklearn import SklearnTrainer

ROWS = data.from_items([{"x": 1.0, "y": 0}, {"x": 2.0, "y": 1}])


def made(**arguments: Any) -> SklearnTrainer:
    usual = {"estimator": LogisticRegression(), "datasets": {"train": ROWS}, "label_column": "y"}
    return SklearnTrainer(**{**usual, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": LogisticRegression}, r"give an object of it, LogisticRegression\(\)"),
        ({"estimator": "LogisticRegression"}, r"estimator is a str, which has no fit\(\)"),
        ({"params": [("C", 1)]}, "params must be a dict"),
        ({"params": {"max_itr": 3}}, "LogisticRegression has no parameter 'max_itr': did you mean max_iter"),
        (
            {"estimator": make_pipeline(LogisticRegression()), "params": {"logisticregression__CC": 1}},
            "did you mean logisticregression__C",
        ),
        ({"label_column": None}, "LogisticRegression learns to predict a column: name it with label_column"),
        ({"label_column": ["y"]}, "give the name of one column"),
        ({"label_column": "z"}, "label_column='z': the dataset 'train' has no such column; it has x, y"),
        ({"sample_weight": "w"}, "sample_weight='w': the dataset 'train' has no such column"),
        ({"cv": 1}, "cv is 1: give a number of folds"),
        ({"cv": True}, "cv is True"),
        ({"cv": "5"}, "cv is '5'"),
        ({"cv": KFold}, r"give an object of it, KFold\(\)"),
        ({"cv": [1, 2]}, "pairs"),
        ({"cv": 2, "scoring": "acuracy"}, "no scorer 'acuracy': did you mean accuracy"),
        ({"cv": 2, "scoring": ["accuracy", "f"]}, "no scorer 'f'"),
        ({"cv": 2, "scoring": accuracy_score}, "does not work for LogisticRegression"),
        ({"estimator": NearestNeighbors(), "cv": 2}, "does not work for NearestNeighbors"),
        ({"groups": "x"}, "groups= is for cross-validation: give cv="),
        ({"resume_from_checkpoint": None}, "takes no resume_from_checkpoint"),
        ({"parallelize_cv": "yes"}, "parallelize_cv is 'yes'"),
        ({"set_estimator_cpus": 2}, "set_estimator_cpus is 2"),
        ({"scaling_config": ScalingConfig(use_gpu=True)}, "is not taken by SklearnTrainer"),
        ({"run_config": RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1))}, "fits in one go"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**arguments)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"valid": ROWS}, r"the dataset 'train', which was not given.*given: \['valid'\]"),
        ({}, "the dataset 'train', which was not given"),
        ({"train": ROWS, "cv": ROWS}, "cannot be called 'cv'"),
    ],
)
def test_names_of_datasets_are_keys_and_settings(datasets: dict[str, Any], message: str) -> None:
    for kind in (KeyError, ValueError):
        with pytest.raises(kind, match=message):
            made(datasets=datasets)


def test_a_slip_in_a_name_is_not_taken_for_a_fit_parameter() -> None:
    with pytest.raises(TypeError, match=r"no argument 'labels_column', .* did you mean label_column"):
        made(labels_column="y")
    with pytest.raises(TypeError, match=r"LogisticRegression.fit\(\) takes no such parameter"):
        made(eval_set=[])
    with pytest.raises(TypeError, match="did you mean scoring"):
        made(estimator=make_pipeline(LogisticRegression()), scorings="f1")
    made(estimator=make_pipeline(LogisticRegression()), logisticregression__sample_weight="x")


def test_several_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="runs in one process; num_workers=2"):
        made(scaling_config=ScalingConfig(num_workers=2)).fit()


def test_scoring_without_anything_to_score() -> None:
    with pytest.warns(UserWarning, match="nothing is scored") as caught:
        made(scoring="f1")
    assert caught[0].filename == __file__


def test_what_is_made_by_functions_is_looked_at_later() -> None:
    made(datasets={"train": lambda: ROWS}, label_column="anything")
    made(datasets={"train": ROWS.map_batches(lambda batch: batch)}, label_column="anything")


def test_a_generator_of_splits_and_groups() -> None:
    splits = KFold(2).split([[1.0], [2.0]])
    assert len(made(cv=splits).cv) == 2
    made(cv=GroupKFold(2), groups="x")


def test_the_users_estimator_stays_as_it_is() -> None:
    forest = RandomForestClassifier()
    trainer = made(estimator=forest, params={"n_estimators": 3})
    assert (forest.n_estimators, trainer.estimator.n_estimators) == (100, 3)
