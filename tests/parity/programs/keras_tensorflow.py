"""Keras with MultiWorkerMirroredStrategy and the report callback (Ray AIR)."""

import numpy as np
import ray
import tensorflow as tf
from ray.air import session
from ray.air.config import ScalingConfig
from ray.air.integrations.keras import ReportCheckpointCallback
from ray.train.batch_predictor import BatchPredictor
from ray.train.tensorflow import TensorflowPredictor, TensorflowTrainer, prepare_dataset_shard


def build_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(2,)),
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.Dense(1),
        ]
    )
    return model


def train_func(config):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        multi_worker_model = build_model()
        multi_worker_model.compile(
            optimizer=tf.keras.optimizers.SGD(learning_rate=config["lr"]),
            loss=tf.keras.losses.mean_squared_error,
            metrics=[tf.keras.metrics.mean_squared_error],
        )
    dataset = session.get_dataset_shard("train")
    results = []
    for _ in range(config["epochs"]):
        tf_dataset = prepare_dataset_shard(dataset.to_tf("x", "y", batch_size=16))
        history = multi_worker_model.fit(tf_dataset, callbacks=[ReportCheckpointCallback()], verbose=0)
        results.append(history.history)
    return results


rng = np.random.default_rng(0)
x = rng.uniform(size=(200, 2)).astype(np.float32)
y = (x @ np.array([2.0, -1.0], dtype=np.float32))[:, None]
train_ds = ray.data.from_items([{"x": a, "y": b} for a, b in zip(x, y)])

trainer = TensorflowTrainer(
    train_loop_per_worker=train_func,
    train_loop_config={"lr": 0.05, "epochs": 3},
    scaling_config=ScalingConfig(num_workers=2),
    datasets={"train": train_ds},
)
result = trainer.fit()
print(result.metrics["loss"])

predictor = BatchPredictor.from_checkpoint(result.checkpoint, TensorflowPredictor, model_definition=build_model)
predictions = predictor.predict(train_ds, feature_columns=["x"], batch_size=50)
rows = predictions.take_all()
assert len(rows) == 200
print("columns of predictions:", list(rows[0]), rows[0]["predictions"].shape)
