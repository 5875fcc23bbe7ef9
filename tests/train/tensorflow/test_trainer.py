"""Two workers train with TensorFlow: Keras' fit and loops of one's own, reports, checkpoints, resuming, data, stops."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from paceline import data
from paceline.air import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig, session
from paceline.air.errors import ConfigError, TrainingFailedError
from paceline.air.integrations.keras import ReportCheckpointCallback
from paceline.data.preprocessors import StandardScaler
from paceline.train.batch_predictor import BatchPredictor
from paceline.train.tensorflow import (
    TensorflowCheckpoint,
    TensorflowTrainer,
    prepare_dataset_shard,
)
from paceline.tune import Tuner, grid_search

TWO_WORKERS = ScalingConfig(num_workers=2)
QUIET = {"verbose": 0}


# -- save and load checkpoints of weights -----------------------------------------------------


def save_and_load(config: dict[str, Any]) -> None:
    import tensorflow as tf

    tf.keras.utils.set_random_seed(session.get_world_rank())
    n = 100
    X = np.random.normal(0, 1, size=(n, 4))
    Y = np.random.uniform(0, 1, size=(n, 1))

    start_epoch = 0
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, activation="linear", input_shape=(4,))])
        checkpoint = session.get_checkpoint()
        if checkpoint:
            checkpoint_dict = checkpoint.to_dict()
            model.set_weights(checkpoint_dict.get("model_weights"))
            start_epoch = checkpoint_dict.get("epoch", -1) + 1
        model.compile(optimizer="Adam", loss="mean_squared_error", metrics=["mse"])

    for epoch in range(start_epoch, config["num_epochs"]):
        history = model.fit(X, Y, batch_size=20, **QUIET)
        weights = model.get_weights()
        checkpoint = Checkpoint.from_dict({"epoch": epoch, "model_weights": weights})
        row = {"epoch": epoch, "loss": history.history["loss"][0], "kernel": weights[0].ravel().tolist()}
        session.report(row, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def saved_and_loaded(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """A run of two epochs, and one of five that goes on from its checkpoint."""
    run_config = RunConfig(storage_path=str(tmp_path_factory.mktemp("results")), verbose=0)
    results: list[Result] = []
    for num_epochs in (2, 5):
        trainer = TensorflowTrainer(
            save_and_load,
            train_loop_config={"num_epochs": num_epochs},
            scaling_config=TWO_WORKERS,
            run_config=run_config,
            resume_from_checkpoint=results[-1].checkpoint if results else None,
        )
        results.append(trainer.fit())
    return results


def test_resuming_continues_at_the_next_epoch(saved_and_loaded: list[Result]) -> None:
    first, second = saved_and_loaded
    assert list(first.metrics_dataframe["epoch"]) == [0, 1]
    assert list(second.metrics_dataframe["epoch"]) == [2, 3, 4]
    state = second.checkpoint.to_dict()
    assert (state["epoch"], state["_current_checkpoint_id"]) == (4, 4)
    assert [weights.shape for weights in state["model_weights"]] == [(4, 1), (1,)]


def test_losses_fall_over_both_runs(saved_and_loaded: list[Result]) -> None:
    losses = [loss for result in saved_and_loaded for loss in result.metrics_dataframe["loss"]]
    assert losses == sorted(losses, reverse=True)


def test_ranks_end_with_identical_weights(saved_and_loaded: list[Result]) -> None:
    ranks = saved_and_loaded[1].rank_metrics
    assert ranks[0]["kernel"] == ranks[1]["kernel"]
    assert ranks[0]["kernel"] == saved_and_loaded[1].checkpoint.to_dict()["model_weights"][0].ravel().tolist()


def test_weights_of_a_dict_checkpoint_are_set_in_a_model(saved_and_loaded: list[Result]) -> None:
    import keras

    def build_model() -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    checkpoint = saved_and_loaded[1].checkpoint
    model = TensorflowCheckpoint.from_checkpoint(checkpoint).get_model(build_model)
    np.testing.assert_array_equal(model.get_weights()[0], checkpoint.to_dict()["model_weights"][0])


# -- datasets, callbacks, prediction ----------------------------------------------------------


def bind_error(port: int) -> int:
    """What a stranger gets who wants that port."""
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stranger.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno or 0
    return 0


def can_connect(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Notes(ReportCheckpointCallback):
    """With methods of its own beside those of its base."""

    batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        print(f"noted epoch {epoch}")


def from_datasets(config: dict[str, Any]) -> None:
    rank = session.get_world_rank()
    port = int(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][rank].rpartition(":")[2])
    before = {"errno": bind_error(port), "listens": can_connect(port)}
    import tensorflow as tf

    if rank == 1:
        time.sleep(config["late_s"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        tf.keras.utils.set_random_seed(0)
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    rows = prepare_dataset_shard(session.get_dataset_shard("train").to_tf("x", "y", batch_size=16))
    whole = prepare_dataset_shard(session.get_dataset_shard("valid").to_tf("x", "y", batch_size=16))
    callback = Notes(metrics={"loss": "loss", "error": "val_mae"})
    model.fit(rows, validation_data=whole, epochs=3, callbacks=[callback], **QUIET)
    session.report(
        {
            "before": before,
            "after": {"errno": bind_error(port), "listens": can_connect(port)},
            "kernel": model.get_weights()[0].ravel().tolist(),
            "steps": callback.batches,
            "keras": tf.keras.Model.__module__,
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
    )


def numbers(rows: int) -> data.Dataset:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 4)).astype(np.float32)
    return data.from_items([{"x": x[row], "y": float(x[row] @ [1, 2, 3, 4]), "z": float(row)} for row in range(rows)])


@pytest.fixture(scope="module")
def trained_on_datasets(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Where the network has a proxy, and rank 0 must wait longer for rank 1 than a worker may be without a sign of
    life."""
    trainer = TensorflowTrainer(
        from_datasets,
        train_loop_config={"late_s": 4.0},
        scaling_config=TWO_WORKERS,
        run_config=RunConfig(
            storage_path=str(tmp_path_factory.mktemp("results")),
            failure_config=FailureConfig(heartbeat_timeout_s=3.0),
            verbose=0,
        ),
        datasets={"train": numbers(101), "valid": numbers(20)},
        preprocessor=StandardScaler(["z"]),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("http_proxy", "http://127.0.0.1:9")
        patched.setenv("no_proxy", "example.org")
        patched.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        return trainer.fit()


def test_fit_reads_the_shards_of_a_dataset(trained_on_datasets: Result) -> None:
    ranks = trained_on_datasets.rank_metrics
    losses = list(trained_on_datasets.metrics_dataframe["loss"])[:3]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < losses[0] / 4
    assert ranks[0]["kernel"] == ranks[1]["kernel"]
    # 50 rows of 101 each, in 3 batches of 16 and one of 2, of which TensorFlow makes two steps each; 3 epochs.
    assert ranks[0]["steps"] == ranks[1]["steps"] == 3 * 2 * 4


def test_the_port_of_a_worker_is_held_until_its_server_listens(trained_on_datasets: Result) -> None:
    for row in trained_on_datasets.rank_metrics.values():
        assert row["before"] == {"errno": 98, "listens": False}
        assert row["after"] == {"errno": 98, "listens": True}


def test_workers_without_gpus_see_none(trained_on_datasets: Result) -> None:
    """Each of them would take them all, whatever the driver sees."""
    assert [row["gpus"] for row in trained_on_datasets.rank_metrics.values()] == ["", ""]


def test_tf_keras_is_used_where_it_is_installed(trained_on_datasets: Result) -> None:
    assert trained_on_datasets.metrics["keras"].startswith("tf_keras.")


def test_the_callback_reports_the_chosen_metrics_and_the_model(trained_on_datasets: Result) -> None:
    frame = trained_on_datasets.metrics_dataframe
    assert frame["error"].notna().sum() == 3
    assert "mae" not in frame
    model = trained_on_datasets.checkpoint.get_model()
    assert type(model).__module__.startswith("tf_keras.")
    assert model.get_weights()[0].ravel().tolist() == trained_on_datasets.metrics["kernel"]
    assert model.optimizer.iterations.numpy() >= 24
    log = next(iter(sorted(trained_on_datasets.log_dir.glob("logs/rank_0.log")))).read_text()
    assert [f"noted epoch {epoch}" in log for epoch in range(3)] == [True] * 3


def test_the_checkpoint_predicts_a_dataset(trained_on_datasets: Result) -> None:
    predictor = BatchPredictor(trained_on_datasets.checkpoint)
    rows = numbers(30)
    predicted = predictor.predict(rows, feature_columns=["x"], keep_columns=["y"]).to_pandas()
    errors = np.stack(predicted["predictions"].to_numpy()).ravel() - predicted["y"].to_numpy()
    assert len(errors) == 30
    assert np.abs(errors).mean() < 1.5
    assert isinstance(trained_on_datasets.checkpoint.get_preprocessor(), StandardScaler)


# -- Keras 3 ----------------------------------------------------------------------------------


def custom_loop_then_fit() -> None:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    generator = np.random.default_rng(session.get_world_rank())
    X = generator.normal(size=(128, 4)).astype("f4")
    Y = X @ np.array([[1.0], [2.0], [3.0], [4.0]], "f4")
    with strategy.scope():
        tf.keras.utils.set_random_seed(0)
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.1)
        model.compile(optimizer=optimizer, loss="mse")
    batches = iter(
        strategy.distribute_datasets_from_function(lambda _: tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))
    )

    @tf.function
    def step(batch: Any) -> Any:
        def on_replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2) / 2
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("sum", strategy.run(on_replica, args=batch), axis=None)

    losses = [float(step(batch)) for batch in batches]
    row = {"keras": tf.keras.Model.__module__, "losses": losses, "kernel": model.get_weights()[0].ravel().tolist()}
    row["predicted"] = list(model.predict(X[:8], **QUIET).shape)
    checkpoint = TensorflowCheckpoint.from_model(model) if session.get_world_rank() == 0 else None
    assert checkpoint is None or checkpoint.get_model().count_params() == 5  # no other rank is needed for that
    session.report(row, checkpoint=TensorflowCheckpoint.from_model(model))
    strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))  # both have reported
    model.fit(X, Y, **QUIET)


@pytest.fixture(scope="module")
def keras_3_failure(tmp_path_factory: pytest.TempPathFactory) -> TrainingFailedError:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TF_USE_LEGACY_KERAS", "0")
        trainer = TensorflowTrainer(
            custom_loop_then_fit,
            scaling_config=TWO_WORKERS,
            run_config=RunConfig(storage_path=str(tmp_path_factory.mktemp("results")), verbose=0),
        )
        with pytest.raises(TrainingFailedError) as caught:
            trainer.fit()
    return caught.value


@pytest.mark.slow
def test_a_custom_loop_trains_a_keras_3_model(keras_3_failure: TrainingFailedError) -> None:
    ranks = keras_3_failure.result.rank_metrics
    assert ranks[0]["keras"].startswith("keras.")
    assert ranks[0]["losses"][-1] < ranks[0]["losses"][0] / 5
    assert ranks[0]["losses"] == ranks[1]["losses"]
    assert ranks[0]["kernel"] == ranks[1]["kernel"]
    assert ranks[0]["predicted"] == [8, 1]


@pytest.mark.slow
def test_fit_of_a_keras_3_model_is_stopped_with_the_ways_that_work(keras_3_failure: TrainingFailedError) -> None:
    assert isinstance(keras_3_failure.__cause__, ConfigError)
    message = str(keras_3_failure.__cause__)
    assert all(noun in message for noun in ("Keras 3", "fit()", "MultiWorkerMirroredStrategy"))
    assert all(way in message for way in ("TF_USE_LEGACY_KERAS=1", "strategy.run()", "HorovodTrainer"))
    assert "PerReplica" not in str(keras_3_failure)


@pytest.mark.slow
def test_a_keras_3_checkpoint_is_loaded_by_keras_3(keras_3_failure: TrainingFailedError) -> None:
    model = keras_3_failure.result.checkpoint.get_model()
    assert type(model).__module__.startswith("keras.")
    assert model.get_weights()[0].ravel().tolist() == keras_3_failure.result.metrics["kernel"]


# -- one worker, searches, stops --------------------------------------------------------------


def endless(config: dict[str, Any]) -> None:
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)  # a trial that does not learn must not win by its first weights
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.SGD(config["lr"]), loss="mse")
    try:
        model.fit(np.ones((8, 2)), np.ones(8), epochs=10**6, callbacks=[ReportCheckpointCallback()], **QUIET)
    finally:
        print("fit has ended")


@pytest.mark.slow
def test_a_search_over_the_trainer_whose_fits_are_stopped() -> None:
    trainer = TensorflowTrainer(endless, scaling_config=ScalingConfig(num_workers=1))
    grid = Tuner(
        trainer,
        param_space={"train_loop_config": {"lr": grid_search([0.0, 0.1])}},
        run_config=RunConfig(stop={"training_iteration": 3}, verbose=0),
    ).fit()
    assert [result.error for result in grid] == [None, None]
    assert [len(result.metrics_dataframe) for result in grid] == [3, 3]
    best = grid.get_best_result("loss", "min")
    assert best.config["train_loop_config"] == {"lr": 0.1}
    assert best.checkpoint.get_model().count_params() == 3
    assert "fit has ended" in (best.log_dir / "logs" / "rank_0.log").read_text()


# -- no strategy ------------------------------------------------------------------------------


def without_a_strategy() -> None:
    sys.modules["tensorflow"] = ModuleType("tensorflow")  # to import it takes seconds
    session.report({"loss": 0.0})


def test_workers_that_were_never_connected_are_told(trained_on_datasets: Result) -> None:
    result = TensorflowTrainer(without_a_strategy, scaling_config=TWO_WORKERS).fit()
    assert any("2 workers" in warning and "by itself" in warning for warning in result.warnings)
    assert not any("by itself" in warning for warning in trained_on_datasets.warnings)
