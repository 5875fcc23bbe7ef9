"""Keras on two workers: rows from a dataset, a checkpoint in every epoch, and a run that is trained further.

The table is scikit-learn's: 1797 handwritten digits of 8 x 8 pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from paceline import data, train
from paceline.data.preprocessors import Concatenator
from paceline.train import Result, RunConfig, ScalingConfig
from paceline.train.tensorflow import (
    TensorflowCheckpoint,
    TensorflowPredictor,
    TensorflowTrainer,
    prepare_dataset_shard,
)

PIXELS = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
BATCH_SIZE = 64
"""Of all workers together: TensorFlow gives each of them its part."""


def new_model() -> Any:
    import tensorflow as tf

    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((64,)), layers.Rescaling(1 / 16), layers.Dense(64, "relu")])
    model.add(layers.Dense(10))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


def train_func(config: dict[str, Any]) -> None:
    import tensorflow as tf

    first_epoch = 0
    checkpoint = train.get_checkpoint()
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        if checkpoint is None:
            model = new_model()
        else:  # with the state of its optimizer
            model = TensorflowCheckpoint.from_checkpoint(checkpoint).get_model()
            first_epoch = checkpoint.get_metadata()["epoch"] + 1

    rows = prepare_dataset_shard(train.get_dataset_shard("train").to_tf("pixels", "target", batch_size=BATCH_SIZE))
    for epoch in range(first_epoch, config["epochs"]):
        history = model.fit(rows, verbose=0).history
        saved = TensorflowCheckpoint.from_model(model)
        saved.set_metadata({"epoch": epoch})
        metrics = {"epoch": epoch, "loss": history["loss"][0], "accuracy": history["accuracy"][0]}
        train.report(metrics, checkpoint=saved)


def fit(rows: data.Dataset, epochs: int, start: Result | None = None) -> Result:
    return TensorflowTrainer(
        train_func,
        train_loop_config={"epochs": epochs},
        datasets={"train": rows},
        preprocessor=Concatenator("pixels", include=PIXELS, dtype=np.float32),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="digits"),
        resume_from_checkpoint=start.checkpoint if start else None,
    ).fit()


def main() -> None:
    frame = load_digits(as_frame=True).frame
    train_rows, test_rows = data.from_pandas(frame).train_test_split(0.2, shuffle=True, seed=0)

    first = fit(train_rows, epochs=3)
    second = fit(train_rows, epochs=8, start=first)
    assert second.checkpoint is not None
    assert second.metrics_dataframe is not None
    print(f"went on at epoch {second.metrics_dataframe['epoch'][0]}, loss {second.metrics['loss']:.2f}")

    test = test_rows.to_pandas()
    predictor = TensorflowPredictor.from_checkpoint(second.checkpoint)  # with the preprocessor of the training
    scores = predictor.predict(test.drop(columns="target"))["predictions"]
    right = np.stack(list(scores)).argmax(axis=1) == test["target"].to_numpy()
    print(f"{right.mean():.0%} of {len(right)} test images right")


if __name__ == "__main__":
    main()
