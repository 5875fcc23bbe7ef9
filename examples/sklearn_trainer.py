"""A random forest of scikit-learn: fitted in a worker process, scored on other rows and by cross-validation.

The table is scikit-learn's: 569 tumours with 30 measurements each, malignant or benign.
"""

from __future__ import annotations

from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from paceline import data
from paceline.data.preprocessors import StandardScaler
from paceline.train import RunConfig, ScalingConfig
from paceline.train.sklearn import SklearnPredictor, SklearnTrainer


def main() -> None:
    frame = load_breast_cancer(as_frame=True).frame
    train_rows, valid_rows = data.from_pandas(frame).train_test_split(0.3, shuffle=True, seed=0)
    trainer = SklearnTrainer(
        estimator=RandomForestClassifier(random_state=0),
        params={"n_estimators": 50},
        label_column="target",
        datasets={"train": train_rows, "valid": valid_rows},
        preprocessor=StandardScaler(["mean radius", "mean texture"]),
        scoring=["accuracy", "roc_auc"],
        cv=4,
        scaling_config=ScalingConfig(trainer_resources={"CPU": 2}),  # the forest grows on two CPUs
        run_config=RunConfig(name="forest"),
    )
    result = trainer.fit()

    scores = result.metrics["valid"]
    print(f"validation: accuracy {scores['test_accuracy']:.3f}, ROC AUC {scores['test_roc_auc']:.3f}")
    folds = result.metrics["cv"]
    print(f"cross-validation: accuracy {folds['test_accuracy_mean']:.3f} +- {folds['test_accuracy_std']:.3f}")

    # The checkpoint has the forest and the preprocessor: rows go in as they came from the table.
    predictor = SklearnPredictor.from_checkpoint(result.checkpoint)
    rows = frame.head(3)
    print(predictor.predict(rows).assign(truth=rows["target"]))
    print(predictor.predict(rows, method="predict_proba"))


if __name__ == "__main__":
    main()
