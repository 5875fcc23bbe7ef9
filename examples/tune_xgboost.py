"""A Tuner over a trainer: the parameters of XGBoost, with validation rows for the search and test rows for the end.

Each trial is a training run with a worker of its own. ASHA ends the ones that fall behind, round by round. The
datasets are split and prepared once for all trials.
"""

from __future__ import annotations

from sklearn.datasets import load_breast_cancer

from paceline import data, tune
from paceline.train import RunConfig, ScalingConfig
from paceline.train.xgboost import XGBoostPredictor, XGBoostTrainer
from paceline.tune import TuneConfig, Tuner
from paceline.tune.schedulers import ASHAScheduler

ROUNDS = 30


def main() -> None:
    frame = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    test_rows, rest = frame.head(100), data.from_pandas(frame.iloc[100:])
    train_rows, valid_rows = rest.train_test_split(0.3, shuffle=True, seed=0)

    trainer = XGBoostTrainer(
        params={"objective": "binary:logistic", "eval_metric": ["logloss", "error"]},
        label_column="target",
        num_boost_round=ROUNDS,
        datasets={"train": train_rows, "valid": valid_rows},
        scaling_config=ScalingConfig(num_workers=1),
    )
    results = Tuner(
        trainer,
        param_space={
            "params": {
                "max_depth": tune.randint(2, 8),
                "eta": tune.loguniform(0.02, 0.5),
                "subsample": tune.quniform(0.5, 1.0, 0.1),
                "min_child_weight": tune.choice([1, 3, 10]),
            }
        },
        tune_config=TuneConfig(
            metric="valid-logloss",
            mode="min",
            num_samples=8,
            scheduler=ASHAScheduler(max_t=ROUNDS, grace_period=5, reduction_factor=3),
        ),
        run_config=RunConfig(name="tune_xgboost"),
    ).fit()

    best = results.get_best_result()
    rounds = [result.metrics["training_iteration"] for result in results]
    print(f"rounds of the trials: {rounds}")
    print(f"best: logloss {best.metrics['valid-logloss']:.3f} with {best.config['params']}")
    predictor = XGBoostPredictor.from_checkpoint(best.checkpoint)
    predicted = predictor.predict(test_rows.drop(columns="target"))["predictions"] > 0.5
    right = int((predicted.to_numpy() == test_rows["target"].to_numpy()).sum())
    print(f"{right} of {len(test_rows)} test rows right")


if __name__ == "__main__":
    main()
