"""A table with gaps and text, through a chain of preprocessors into XGBoost (Ray AIR)."""

import numpy as np
import pandas as pd
import ray
from ray.air.config import ScalingConfig
from ray.data.preprocessors import (
    Chain,
    Concatenator,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    SimpleImputer,
    StandardScaler,
)
from ray.train.xgboost import XGBoostTrainer

rng = np.random.default_rng(0)
n = 400
df = pd.DataFrame(
    {
        "age": rng.integers(18, 80, n).astype(float),
        "income": rng.normal(40_000, 9_000, n),
        "city": rng.choice(["Oslo", "Rome", "Lima"], n),
        "size": rng.choice(["s", "m", "l"], n),
    }
)
df["bought"] = ((df["age"] > 45) ^ (df["city"] == "Rome")).astype(int)
df.loc[::10, "age"] = np.nan

ds = ray.data.from_pandas(df)
train_ds, valid_ds = ds.train_test_split(0.25, shuffle=True, seed=3)

preprocessor = Chain(
    SimpleImputer(["age"], strategy="mean"),
    StandardScaler(columns=["income"]),
    MinMaxScaler(columns=["age"]),
    OrdinalEncoder(columns=["size"]),
    OneHotEncoder(columns=["city"]),
)
look = preprocessor.fit_transform(train_ds)
print(look.schema())
batch = look.take_batch(50, batch_format="pandas")
assert {"city_Oslo", "city_Rome", "city_Lima"} <= set(batch.columns)
assert batch["age"].between(0, 1).all()
print(preprocessor.preprocessors[1].stats_ if hasattr(preprocessor, "preprocessors") else "")

vectors = Concatenator(output_column_name="x", exclude=["bought"], dtype=np.float32).transform(look)
assert vectors.take(1)[0]["x"].shape == (6,)

trainer = XGBoostTrainer(
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    label_column="bought",
    num_boost_round=15,
    params={"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "max_depth": 4},
    datasets={"train": train_ds, "valid": valid_ds},
    preprocessor=preprocessor,
)
result = trainer.fit()
print(result.metrics["valid-error"])
kept = result.checkpoint.get_preprocessor()
one = kept.transform_batch(pd.DataFrame({"age": [30.0], "income": [1.0], "city": ["Rome"], "size": ["m"]}))
assert one["city_Rome"].iloc[0] == 1
print("learned:", result.metrics["valid-error"] < 0.2)
