"""XGBoost on two workers: early stopping, a checkpoint every ten rounds, and a run that is trained further.

The table is scikit-learn's: 569 tumours with 30 measurements each, malignant or benign.
"""

from __future__ import annotations

from pathlib import Path

from sklearn.datasets import load_breast_cancer

from paceline import data
from paceline.data.preprocessors import StandardScaler
from paceline.train import CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.train.xgboost import XGBoostPredictor, XGBoostTrainer

PARAMS = {"objective": "binary:logistic", "eval_metric": ["error", "logloss"], "max_depth": 3, "subsample": 0.8}


def fit(datasets: dict[str, data.Dataset], rounds: int, start: Result | None = None) -> Result:
    """Train until the model has so many rounds; `start` has some of them already."""
    return XGBoostTrainer(
        params=PARAMS,
        label_column="target",
        num_boost_round=rounds,
        early_stopping_rounds=10,
        datasets=datasets,
        preprocessor=StandardScaler(["mean radius", "mean texture"]),
        resume_from_checkpoint=start.checkpoint if start else None,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="boosting", checkpoint_config=CheckpointConfig(checkpoint_frequency=10)),
    ).fit()


def main() -> None:
    frame = load_breast_cancer(as_frame=True).frame
    train_rows, valid_rows = data.from_pandas(frame).train_test_split(0.3, shuffle=True, seed=0)
    datasets = {"train": train_rows, "valid": valid_rows}

    first = fit(datasets, rounds=15)
    stored = [Path(checkpoint.path).name for checkpoint, _ in first.best_checkpoints]
    print(f"15 rounds: validation error {first.metrics['valid-error']:.3f}, stored {', '.join(stored)}")

    second = fit(datasets, rounds=200, start=first)
    booster = second.checkpoint.get_model()
    print(f"went on at round 16, stopped after {booster.num_boosted_rounds()}, best was {booster.best_iteration + 1}")

    # The checkpoint has the trees and the preprocessor: rows go in as they came from the table.
    predictor = XGBoostPredictor.from_checkpoint(second.checkpoint)
    rows = frame.head(5)
    best = predictor.predict(rows, iteration_range=(0, booster.best_iteration + 1))
    print(best.assign(truth=rows["target"]))


if __name__ == "__main__":
    main()
