"""Slips in the arguments of XGBoostTrainer are told where they are made."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pandas as pd
import pytest

from paceline import data
from paceline.air import ScalingConfig
from paceline.air.errors import ConfigError
from paceline.train.xgboost import ReportCallback, XGBoostConfig, XGBoostTrainer
from paceline.train.xgboost.loop import approximate_metrics

ROWS = pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, 1.0]})


def trainer_of(**changes: Any) -> XGBoostTrainer:
    arguments: dict[str, Any] = {
        "params": {},
        "label_column": "y",
        "datasets": {"train": data.from_pandas(ROWS)},
        "scaling_config": ScalingConfig(num_workers=2),
        **changes,
    }
    return XGBoostTrainer(**arguments)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"xgb_model": "model.ubj"}, "resume_from_checkpoint"),
        ({"evals": []}, "datasets="),
        ({"evals_result": {}}, "metrics_dataframe"),
        ({"feval": max}, "custom_metric"),
        ({"params": {"n_estimators": 5}}, "num_boost_round="),
        ({"params": {"early_stopping_rounds": 5}}, "early_stopping_rounds"),
        ({"params": {"objective": max}}, "obj="),
        ({"params": {"eval_metric": max}}, "custom_metric="),
        ({"params": {"booster": "gblinear"}}, "gblinear"),
        ({"params": {"process_type": "update"}}, "process_type.*train function"),
        ({"params": {"objective": "rank:ndcg"}}, "'train'.*'qid'"),
        ({"params": {"eval_metric": ["logloss", "map@3-"]}}, "'train'.*'qid'"),
        ({"callbacks": max}, "callbacks=.*list.*builtin"),
        ({"dmatrix_params": {"train": {"ignore": ["y"]}}}, "'y'.*label_column"),
        ({"dmatrix_params": {"train": {"weight": "x", "ignore": "x"}}}, "'x'.*weight"),
        ({"params": {"objective": "survival:cox"}}, "Cox.*one worker"),
        ({"params": {"eval_metric": ["rmse", "cox-nloglik"]}}, "Cox.*one worker"),
        ({"params": {"tree_method": "exact"}}, "exact.*one worker"),
        ({"datasets": {"train": data.from_pandas(ROWS), "my-set": data.from_pandas(ROWS)}}, "'my-set'.*'-'"),
        ({"dmatrix_params": {"train": {"weigth": "x"}}}, "'weigth'.*'weight'"),
        ({"dmatrix_params": {"train": {"weight": [1.0]}}}, "weight.*column"),
        ({"callbacks": [ReportCallback()]}, "ReportCallback"),
        ({"xgboost_config": {}}, "dict.*XGBoostConfig"),
    ],
)
def test_slips_are_told_when_the_trainer_is_made(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        trainer_of(**changes)


def test_an_unknown_keyword_is_told() -> None:
    with pytest.raises(TypeError, match="early_stopping_rounds"):
        trainer_of(early_stopping_round=3)


def test_a_missing_column_is_told_before_workers_start() -> None:
    with pytest.raises(ConfigError, match=r"weight='w'.*x, y"):
        trainer_of(dmatrix_params={"train": {"weight": "w"}}).to_run_spec()


@pytest.mark.parametrize("seconds", [0, -1, "long", True, float("inf")])
def test_a_timeout_is_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        XGBoostConfig(timeout_s=seconds)


@pytest.mark.parametrize(
    ("params", "keywords", "in_parts"),
    [
        ({}, {}, True),
        ({"eval_metric": "logloss"}, {}, True),
        ({"eval_metric": ["error@0.7", "poisson-nloglik"]}, {}, True),
        ({"eval_metric": ["logloss", "auc"]}, {}, False),
        ({"eval_metric": "aucpr"}, {}, False),
        ({}, {"custom_metric": max}, False),
    ],
)
def test_evaluation_sets_are_dealt_where_metrics_add_up(
    params: dict[str, Any], keywords: dict[str, Any], in_parts: bool
) -> None:
    assert (approximate_metrics(params, keywords) == []) is in_parts
    trainer = trainer_of(params=params, datasets={name: data.from_pandas(ROWS) for name in ("train", "v")}, **keywords)
    configs = trainer.get_dataset_config()
    assert (configs["train"].split, configs["v"].split) == (True, in_parts)


@pytest.mark.parametrize("name", ["reg:absoluteerror", "reg:quantileerror"])
def test_leaves_that_are_quantiles_need_rows_in_random_order(name: str, recwarn: pytest.WarningsRecorder) -> None:
    trainer_of(params={"objective": name}, scaling_config=ScalingConfig(num_workers=1)).to_run_spec()
    assert not recwarn.list
    with pytest.warns(UserWarning, match=f"objective='{name}'.*random_shuffle") as caught:
        trainer_of(params={"objective": name}).to_run_spec()
    assert caught[0].filename == __file__


def test_the_package_loads_no_framework() -> None:
    code = (
        "import sys, paceline.train.xgboost; "
        "print(sorted({'xgboost', 'numpy', 'pandas', 'pyarrow', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
