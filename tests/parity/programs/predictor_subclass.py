"""A Predictor of one's own for a framework that has none, with BatchPredictor (Ray AIR)."""

import os
import pickle
from typing import Optional

import numpy as np
import pandas as pd
import ray
from ray.air import Checkpoint, session
from ray.air.config import ScalingConfig
from ray.data.preprocessor import Preprocessor
from ray.data.preprocessors import StandardScaler
from ray.train.batch_predictor import BatchPredictor
from ray.train.data_parallel_trainer import DataParallelTrainer
from ray.train.predictor import Predictor


class LineModel:
    def __init__(self, slope, intercept):
        self.slope, self.intercept = slope, intercept

    def __call__(self, x):
        return self.slope * x + self.intercept


class LinePredictor(Predictor):
    def __init__(self, model, preprocessor: Optional[Preprocessor] = None):
        self.model = model
        super().__init__(preprocessor)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs) -> "LinePredictor":
        with checkpoint.as_directory() as path:
            with open(os.path.join(path, "line.pkl"), "rb") as f:
                slope, intercept = pickle.load(f)
        return cls(LineModel(slope, intercept), checkpoint.get_preprocessor())

    def _predict_pandas(self, df: pd.DataFrame, round_to=6) -> pd.DataFrame:
        return pd.DataFrame({"predictions": self.model(df["x"]).round(round_to)})


def train_func():
    rows = list(session.get_dataset_shard("train").iter_rows())
    slope, intercept = np.polyfit([row["x"] for row in rows], [row["y"] for row in rows], 1)
    os.makedirs("line", exist_ok=True)
    with open("line/line.pkl", "wb") as f:
        pickle.dump((float(slope), float(intercept)), f)
    session.report({"slope": slope}, checkpoint=Checkpoint.from_directory("line"))


class CountingTransformer(Preprocessor):
    """A preprocessor of one's own."""

    _is_fittable = True

    def _fit(self, ds):
        self.stats_ = {"n": ds.count()}
        return self

    def _transform_pandas(self, df: pd.DataFrame) -> pd.DataFrame:
        return df.assign(n=self.stats_["n"])


frame = pd.DataFrame({"x": np.arange(20.0)})
frame["y"] = 3 * frame["x"] + 1
ds = ray.data.from_pandas(frame)
assert CountingTransformer().fit_transform(ds).take(1)[0]["n"] == 20
trainer = DataParallelTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=1),
    datasets={"train": ds},
    preprocessor=StandardScaler(columns=["x"]),
)
result = trainer.fit()
batch_predictor = BatchPredictor.from_checkpoint(result.checkpoint, LinePredictor)
scored = batch_predictor.predict(
    ds.drop_columns(["y"]), batch_size=8, min_scoring_workers=1, max_scoring_workers=1, round_to=2
)
values = [row["predictions"] for row in scored.take_all()]
predictor = LinePredictor.from_checkpoint(result.checkpoint)
one = predictor.predict(pd.DataFrame({"x": [4.0]}))
print("predictions:", values[:3], "of", len(values), "and", one["predictions"][0])
