"""What LightGBMTrainer refuses, where it was written."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paceline.air.errors import ConfigError
from paceline.train.lightgbm import ReportCallback
from tests.train.lightgbm.boosting import numbers, quick_trainer

FRAMES = {"train": numbers(100)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"params": {"machines": "a:1,b:2"}}, "'machines'.*connected"),
        ({"params": {"port": 12400}}, "'port'.*connected"),
        ({"params": {"num_machines": 4}}, "ScalingConfig.num_workers"),
        ({"params": {"weight_column": "w"}}, "dmatrix_params"),
        ({"params": {"tree_learner": "serial"}}, "'serial'.*2 workers"),
        ({"params": {"tree": "feature"}}, "'feature'.*'data'.*'voting'"),
        ({"params": {"tree_learner": "dat"}}, "'dat'.*'data'.*'voting'"),
        ({"params": {"linear_tree": True}}, "linear_tree.*one worker"),
        ({"params": {"interaction_constraints": [[0, 1]]}}, "interaction_constraints.*one worker"),
        ({"params": {"cegb_penalty_feature_coupled": [1] * 5}}, "cegb_penalty_feature_coupled.*one worker"),
        ({"params": {"mc_method": "advanced"}}, "'advanced'.*one worker"),
        ({"params": {"num_iterations": 7}, "num_boost_round": 9}, r"\b7\b.*num_boost_round.*\b9\b"),
        (
            {"params": {"n_estimators": 7, "num_trees": 8}, "num_boost_round": None},
            "num_trees",
        ),
        ({"init_model": "model.txt"}, "resume_from_checkpoint=LightGBMCheckpoint"),
        ({"valid_sets": []}, "datasets="),
        ({"early_stopping_rounds": 5}, "lightgbm.early_stopping"),
        ({"callbacks": [ReportCallback()]}, "ReportCallback"),
        ({"lightgbm_config": {}}, "dict.*LightGBMConfig"),
        ({"dmatrix_params": {"train": {"base_margin": "f0"}}}, "'base_margin'"),
        ({"dmatrix_params": {"train": {"group": [2, 3]}}}, "group.*column"),
    ],
)
def test_refused_at_construction(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        quick_trainer(FRAMES, **arguments)


@pytest.mark.parametrize("name", ["num_iterations", "n_estimators", "num_boost_round"])
def test_the_number_of_rounds_may_be_a_parameter(name: str) -> None:
    params = {"objective": "regression", name: 3}
    trainer = quick_trainer(FRAMES, params=params, num_boost_round=None, inline=True)
    assert trainer.fit().metrics["training_iteration"] == 3


def test_the_driver_loads_no_lightgbm() -> None:
    code = (
        "import sys; from paceline.train.lightgbm import LightGBMTrainer, LightGBMCheckpoint, LightGBMPredictor;"
        "assert not {'lightgbm', 'sklearn', 'pandas', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "params",
    [{"linear_tree": True}, {"interaction_constraints": [[0, 1], [2, 3, 4]]}, {"mc_method": "advanced"}],
)
def test_one_worker_takes_what_several_cannot(params: dict[str, Any]) -> None:
    quick_trainer(FRAMES, inline=True, params={"objective": "regression", **params}).fit()


@pytest.mark.parametrize("name", ["mae", "quantile", "mape"])
def test_leaves_that_are_quantiles_need_rows_in_random_order(name: str, recwarn: pytest.WarningsRecorder) -> None:
    quick_trainer(FRAMES, workers=1, params={"app": name}).to_run_spec()
    assert not recwarn.list
    with pytest.warns(UserWarning, match=f"objective='{name}'.*random_shuffle") as caught:
        quick_trainer(FRAMES, params={"app": name}).to_run_spec()
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("binary_loglos", "'binary_loglos'.*'binary_logloss'"),
        (["l2", "foo"], "'foo'"),
        ("ndcg@5", r"'eval_at': \[5\]"),
    ],
)
def test_metrics_that_there_are_not(metric: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        quick_trainer({"train": numbers()}, params={"metric": metric})


@pytest.mark.parametrize("metric", ["AUC", "l2, r2", "None", ["average_precision"], None])
def test_metrics_that_there_are(metric: Any) -> None:
    quick_trainer({"train": numbers()}, params={"metric": metric})


def test_leaves_have_rows() -> None:
    for name in ("min_data_in_leaf", "min_child_samples"):
        with pytest.raises(ConfigError, match=f"{name}.*1"):
            quick_trainer({"train": numbers()}, params={name: 0})
    quick_trainer({"train": numbers()}, params={"min_data_in_leaf": 0}, workers=1)
