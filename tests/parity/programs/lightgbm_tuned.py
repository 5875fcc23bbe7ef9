"""LightGBM with categories, tuned over its params (Ray AIR)."""

import numpy as np
import pandas as pd
import ray
from ray import tune
from ray.air import RunConfig, ScalingConfig
from ray.data.preprocessors import Categorizer
from ray.train.lightgbm import LightGBMPredictor, LightGBMTrainer
from ray.tune.tune_config import TuneConfig
from ray.tune.tuner import Tuner

rng = np.random.default_rng(1)
frame = pd.DataFrame({"kind": rng.choice(["a", "b", "c"], 300), "x": rng.normal(size=300)})
frame["target"] = ((frame["kind"] == "b") | (frame["x"] > 1)).astype(int)
train_dataset, valid_dataset = ray.data.from_pandas(frame).train_test_split(test_size=0.3)

trainer = LightGBMTrainer(
    scaling_config=ScalingConfig(num_workers=1),
    label_column="target",
    num_boost_round=10,
    params={"objective": "binary", "metric": ["binary_logloss", "binary_error"], "verbose": -1, "min_data_in_leaf": 5},
    datasets={"train": train_dataset, "valid": valid_dataset},
    preprocessor=Categorizer(["kind"]),
)
tuner = Tuner(
    trainer,
    param_space={"params": {"learning_rate": tune.grid_search([0.001, 0.3]), "num_leaves": tune.randint(4, 9)}},
    tune_config=TuneConfig(num_samples=1, metric="valid-binary_error", mode="min"),
    run_config=RunConfig(name="lightgbm", verbose=0),
)
results = tuner.fit()
best = results.get_best_result()
print(best.metrics["train-binary_logloss"], best.config["params"])
predictor = LightGBMPredictor.from_checkpoint(best.checkpoint)
predictions = predictor.predict(pd.DataFrame({"kind": ["b", "a"], "x": [0.0, 0.0]}))
print(predictions)
assert list(predictions.columns) == ["predictions"]
assert predictions["predictions"].iloc[0] > predictions["predictions"].iloc[1]
print("best learning rate:", best.config["params"]["learning_rate"])
