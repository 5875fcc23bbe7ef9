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
        ({"estimator": LogisticRegression}, r"estimator.*LogisticRegression\(\)"),
        ({"estimator": "LogisticRegression"}, r"estimator.*\bstr\b.*fit\(\)"),
        ({"params": [("C", 1)]}, "params.*dict"),
        ({"params": {"max_itr": 3}}, "LogisticRegression.*'max_itr'.*max_iter"),
        (
            {"estimator": make_pipeline(LogisticRegression()), "params": {"logisticregression__CC": 1}},
            r"logisticregression__CC.*logisticregression__C\b",
        ),
        ({"label_column": None}, "LogisticRegression.*label_column"),
        ({"label_column": ["y"]}, "label_column.*one column"),
        ({"label_column": "z"}, "label_column='z'.*'train'.*x, y"),
        ({"sample_weight": "w"}, "sample_weight='w'.*'train'"),
        ({"cv": 1}, r"cv is 1\b"),
        ({"cv": True}, "cv is True"),
        ({"cv": "5"}, "cv is '5'"),
        ({"cv": KFold}, r"cv.*KFold\(\)"),
        ({"cv": [1, 2]}, "cv.*pairs"),
        ({"cv": 2, "scoring": "acuracy"}, "'acuracy'.*accuracy"),
        ({"cv": 2, "scoring": ["accuracy", "f"]}, "scorer 'f'"),
        ({"cv": 2, "scoring": accuracy_score}, "scoring.*LogisticRegression"),
        ({"estimator": NearestNeighbors(), "cv": 2}, "NearestNeighbors"),
        ({"groups": "x"}, "groups=.*cv="),
        ({"resume_from_checkpoint": None}, "resume_from_checkpoint"),
        ({"parallelize_cv": "yes"}, "parallelize_cv is 'yes'"),
        ({"set_estimator_cpus": 2}, "set_estimator_cpus is 2"),
        ({"scaling_config": ScalingConfig(use_gpu=True)}, "use_gpu=True.*SklearnTrainer"),
        (
            {"run_config": RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1))},
            "checkpoint_frequency.*SklearnTrainer.*estimator",
        ),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**arguments)


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"valid": ROWS}, r"'train'.*\['valid'\]"),
        ({}, "'train'"),
        ({"train": ROWS, "cv": ROWS}, "called 'cv'"),
    ],
)
def test_names_of_datasets_are_keys_and_settings(datasets: dict[str, Any], message: str) -> None:
    for kind in (KeyError, ValueError):
        with pytest.raises(kind, match=message):
            made(datasets=datasets)


def test_a_slip_in_a_name_is_not_taken_for_a_fit_parameter() -> None:
    with pytest.raises(TypeError, match=r"'labels_column'.*label_column\b"):
        made(labels_column="y")
    with pytest.raises(TypeError, match=r"eval_set.*LogisticRegression\.fit\(\)"):
        made(eval_set=[])
    with pytest.raises(TypeError, match=r"scorings.*scoring\b"):
        made(estimator=make_pipeline(LogisticRegression()), scorings="f1")
    made(estimator=make_pipeline(LogisticRegression()), logisticregression__sample_weight="x")


def test_several_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers=2"):
        made(scaling_config=ScalingConfig(num_workers=2)).to_run_spec()


def test_scoring_without_anything_to_score() -> None:
    with pytest.warns(UserWarning, match=r"nothing.*scored") as caught:
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
