"""Workers that are given parameters do not load scikit-learn, and can all the same use it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import data
from paceline.air import RunConfig, ScalingConfig
from paceline.train.lightgbm import LightGBMTrainer
from paceline.train.xgboost import XGBoostTrainer

ROWS = data.from_items([{"x": float(number), "y": number % 2} for number in range(40)])
COMMON: dict[str, Any] = {
    "label_column": "y",
    "num_boost_round": 2,
    "datasets": {"train": ROWS},
    "scaling_config": ScalingConfig(num_workers=2),
    "run_config": RunConfig(verbose=0),
}


def loaded_before(predictions: Any) -> float:
    """1.0 if scikit-learn was loaded; then loads it, and uses it."""
    import sys

    before = float("sklearn" in sys.modules)
    from sklearn.metrics import accuracy_score

    assert accuracy_score([0, 1], [0, 1]) == 1.0
    assert len(predictions) == 20
    return before


@pytest.mark.filterwarnings("ignore:.*(weighted mean|approximate).*:UserWarning")
@pytest.mark.parametrize("library", [pytest.param("xgboost", marks=pytest.mark.slow), "lightgbm"])
def test_scikit_learn_is_loaded_by_who_uses_it(library: str) -> None:
    trainer: Any
    if library == "xgboost":

        def metric(predictions: Any, matrix: Any) -> tuple[str, float]:
            return "loaded", loaded_before(predictions)

        trainer = XGBoostTrainer(params={"objective": "binary:logistic"}, custom_metric=metric, **COMMON)
    else:

        def feval(predictions: Any, matrix: Any) -> tuple[str, float, bool]:
            return "loaded", loaded_before(predictions), False

        trainer = LightGBMTrainer(params={"objective": "binary", "min_data_in_leaf": 1}, feval=feval, **COMMON)
    result = trainer.fit()
    assert list(result.metrics_dataframe["train-loaded"]) == [0.0, 1.0]


def test_a_train_function_has_the_classes_in_the_style_of_scikit_learn() -> None:
    def train_func() -> None:
        import numpy
        import xgboost

        from paceline import train

        model = xgboost.XGBClassifier(n_estimators=2, n_jobs=1)
        model.fit(numpy.arange(8.0).reshape(-1, 1), [0, 1] * 4)
        train.report({"trees": model.get_booster().num_boosted_rounds()})

    run = {"scaling_config": ScalingConfig(num_workers=1), "run_config": RunConfig(verbose=0)}
    assert XGBoostTrainer(train_func, **run).fit().metrics["trees"] == 2
