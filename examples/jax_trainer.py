"""Flax and Optax on two workers: rows from a dataset, a checkpoint in every epoch, and a run that is trained further.

The first layer is sharded over the workers: each of them has, trains and saves a part of it. The table is
scikit-learn's: 1797 handwritten digits of 8 x 8 pixels.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

from paceline import data, train
from paceline.data.preprocessors import Concatenator
from paceline.train import Result, RunConfig, ScalingConfig
from paceline.train.jax import JaxCheckpoint, JaxPredictor, JaxTrainer

PIXELS = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
BATCH_SIZE = 64
"""Of all workers together."""


class Network(nn.Module):
    @nn.compact
    def __call__(self, pixels: Any) -> Any:
        hidden = nn.relu(nn.Dense(64, name="first")(pixels / 16))
        return nn.Dense(10, name="last")(hidden)


def new_state() -> TrainState:
    network = Network()
    params = network.init(jax.random.key(0), jnp.ones((1, len(PIXELS))))["params"]
    return TrainState.create(apply_fn=network.apply, params=params, tx=optax.adam(0.01))


def sharding_of(path: Any, leaf: Any, mesh: Mesh) -> NamedSharding:
    """The kernel of the first layer over all devices; everywhere all of the rest. Adam's moments are like it."""
    is_sharded = "'first']['kernel']" in jax.tree_util.keystr(path)
    return NamedSharding(mesh, PartitionSpec(None, "data") if is_sharded else PartitionSpec())


@jax.jit
def train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, Any]:
    def loss_of(params: Any) -> Any:
        scores = state.apply_fn({"params": params}, batch["pixels"])
        return optax.softmax_cross_entropy_with_integer_labels(scores, batch["target"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def train_func(config: dict[str, Any]) -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    shapes = jax.eval_shape(new_state)
    shardings = jax.tree_util.tree_map_with_path(lambda path, leaf: sharding_of(path, leaf, mesh), shapes)
    state = jax.jit(new_state, out_shardings=shardings)()  # no worker ever has all of it
    first_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:  # of however many workers
        state = JaxCheckpoint.from_checkpoint(checkpoint).get_state(state)
        first_epoch = checkpoint.get_metadata()["epoch"] + 1

    rows = train.get_dataset_shard("train")
    for epoch in range(first_epoch, config["epochs"]):
        for batch in rows.iter_jax_batches(global_batch_size=BATCH_SIZE, drop_last=True):
            state, loss = train_step(state, batch)
        saved = JaxCheckpoint.from_state(state)
        saved.set_metadata({"epoch": epoch})
        train.report({"epoch": epoch, "loss": float(loss)}, checkpoint=saved)


def fit(rows: data.Dataset, epochs: int, workers: int, start: Result | None = None) -> Result:
    return JaxTrainer(
        train_func,
        train_loop_config={"epochs": epochs},
        datasets={"train": rows},
        preprocessor=Concatenator("pixels", include=PIXELS, dtype=np.float32),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="digits"),
        resume_from_checkpoint=start.checkpoint if start else None,
    ).fit()


def predict(params: Any, pixels: Any) -> Any:
    return Network().apply({"params": params}, pixels)


def main() -> None:
    frame = load_digits(as_frame=True).frame
    train_rows, test_rows = data.from_pandas(frame).train_test_split(0.2, shuffle=True, seed=0)

    first = fit(train_rows, epochs=3, workers=2)
    second = fit(train_rows, epochs=8, workers=1, start=first)
    assert second.checkpoint is not None
    assert second.metrics_dataframe is not None
    print(f"went on at epoch {second.metrics_dataframe['epoch'][0]}, loss {second.metrics['loss']:.2f}")

    test = test_rows.to_pandas()
    predictor = JaxPredictor.from_checkpoint(second.checkpoint, predict)  # with the preprocessor of the training
    scores = predictor.predict(test.drop(columns="target"))["predictions"]
    right = np.stack(list(scores)).argmax(axis=1) == test["target"].to_numpy()
    print(f"{right.mean():.0%} of {len(right)} test images right")


if __name__ == "__main__":
    main()
