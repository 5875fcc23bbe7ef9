"""XGBoost on the breast cancer table, then batch prediction (Ray AIR)."""

import pandas as pd
import ray
from ray.air.config import CheckpointConfig, RunConfig, ScalingConfig
from ray.data.preprocessors import StandardScaler
from ray.train.batch_predictor import BatchPredictor
from ray.train.xgboost import XGBoostPredictor, XGBoostTrainer
from sklearn.datasets import load_breast_cancer


def prepare_data():
    frame = load_breast_cancer(as_frame=True).frame
    dataset = ray.data.from_pandas(frame)
    train_dataset, valid_dataset = dataset.train_test_split(test_size=0.3, shuffle=True, seed=0)
    test_dataset = valid_dataset.drop_columns(["target"])
    return train_dataset, valid_dataset, test_dataset


def train_xgboost(num_workers):
    train_dataset, valid_dataset, _ = prepare_data()
    trainer = XGBoostTrainer(
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=False),
        label_column="target",
        params={"tree_method": "hist", "objective": "binary:logistic", "eval_metric": ["logloss", "error"]},
        datasets={"train": train_dataset, "valid": valid_dataset},
        preprocessor=StandardScaler(columns=["mean radius", "mean texture"]),
        num_boost_round=20,
        run_config=RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_frequency=10)),
    )
    result = trainer.fit()
    print(result.metrics)
    return result


def predict_xgboost(result):
    _, valid_dataset, test_dataset = prepare_data()
    batch_predictor = BatchPredictor.from_checkpoint(result.checkpoint, XGBoostPredictor)
    predicted_labels = batch_predictor.predict(test_dataset).map_batches(
        lambda df: (df > 0.5).astype(int), batch_format="pandas"
    )
    labels = predicted_labels.to_pandas()["predictions"]
    print("PREDICTED LABELS", labels.value_counts().to_dict())
    shap_values = batch_predictor.predict(test_dataset, pred_contribs=True)
    assert shap_values.take(1)[0]["predictions_30"] is not None  # 30 features and the bias
    return labels, valid_dataset.to_pandas()["target"]


if __name__ == "__main__":
    result = train_xgboost(num_workers=2)
    predicted, actual = predict_xgboost(result)
    booster = XGBoostTrainer.get_model(result.checkpoint)
    assert booster.num_boosted_rounds() == 20
    accuracy = (pd.Series(predicted.values) == pd.Series(actual.values)).mean()
    print("accuracy above 0.9:", accuracy > 0.9)
