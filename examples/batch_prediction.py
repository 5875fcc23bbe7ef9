"""A whole table of files is predicted in a stream, and written to files again.

The table is scikit-learn's: 1797 images of digits with 8 x 8 pixels each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sklearn.datasets import load_digits

from paceline import data
from paceline.train import RunConfig, ScalingConfig
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.xgboost import XGBoostTrainer


def main() -> None:
    frame = load_digits(as_frame=True).frame
    result = XGBoostTrainer(
        params={"objective": "multi:softmax", "num_class": 10, "max_depth": 4},
        label_column="target",
        num_boost_round=20,
        datasets={"train": data.from_pandas(frame[:1000])},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="digits_trees"),
    ).fit()

    with tempfile.TemporaryDirectory() as directory:
        images, scored = Path(directory, "images"), Path(directory, "scored")
        data.from_pandas(frame[1000:].assign(image=range(1000, len(frame)))).repartition(4).write_parquet(images)

        # Nothing is read yet. Writing pulls rows through the model, a batch at a time.
        predictions = BatchPredictor(result.checkpoint).predict(
            data.read_parquet(images), keep_columns=["image", "target"], batch_size=256
        )
        predictions.write_parquet(scored)

        table = data.read_parquet(scored).to_pandas().sort_values("image")
    right = int((table["predictions"] == table["target"]).sum())
    print(table.head(3).to_string(index=False))
    print(f"{right} of {len(table)} images right, {right / len(table):.1%}")


if __name__ == "__main__":
    main()
