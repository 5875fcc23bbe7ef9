"""A scikit-learn estimator with cross validation, and batch prediction (Ray AIR)."""

import pandas as pd
import ray
from ray.air.config import RunConfig, ScalingConfig
from ray.data.preprocessors import Chain, OrdinalEncoder, StandardScaler
from ray.train.batch_predictor import BatchPredictor
from ray.train.sklearn import SklearnPredictor, SklearnTrainer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

data_raw = load_breast_cancer(as_frame=True)
df = data_raw.data[["mean radius", "mean texture", "mean area"]].copy()
df["size"] = pd.cut(df["mean area"], 3, labels=["small", "medium", "large"]).astype(str)
df["target"] = data_raw.target
train_df, test_df = df.iloc[:450], df.iloc[450:]
train_dataset = ray.data.from_pandas(train_df)
valid_dataset = ray.data.from_pandas(test_df)

trainer = SklearnTrainer(
    label_column="target",
    estimator=RandomForestClassifier(n_estimators=20, random_state=0),
    datasets={"train": train_dataset, "valid": valid_dataset},
    preprocessor=Chain(OrdinalEncoder(["size"]), StandardScaler(["mean radius", "mean texture"])),
    cv=3,
    scoring="accuracy",
    scaling_config=ScalingConfig(trainer_resources={"CPU": 2}),
    run_config=RunConfig(verbose=0),
    set_estimator_cpus=True,
)
result = trainer.fit()
print(result.metrics["valid"]["test_score"])
assert 0.8 < result.metrics["cv"]["test_score_mean"] <= 1

batch_predictor = BatchPredictor.from_checkpoint(result.checkpoint, SklearnPredictor)
features = valid_dataset.drop_columns(["target"])
predictions = batch_predictor.predict(features, num_estimator_cpus=1).to_pandas()
accuracy = (predictions["predictions"].to_numpy() == test_df["target"].to_numpy()).mean()
estimator = SklearnPredictor.from_checkpoint(result.checkpoint).estimator
print(type(estimator).__name__, "test accuracy above 0.8:", accuracy > 0.8)
