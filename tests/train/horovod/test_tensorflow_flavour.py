"""Train functions with horovod.tensorflow: loops of one's own, and Keras, on two real workers. One fit serves all."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline.air import session
from paceline.air.config import RunConfig, ScalingConfig
from paceline.air.errors import ConfigError
from paceline.air.result import Result
from paceline.train.horovod import HorovodTrainer, backend


def train_both_ways() -> None:
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras
    import keras
    import tensorflow as tf

    hvd.init()
    rows = tf.random.stateless_normal((64, 4), seed=(7, hvd.rank()))
    wanted = rows @ tf.constant([[1.0], [2.0], [3.0], [4.0]])

    weights = tf.Variable(tf.random.stateless_normal((4, 1), seed=(1, hvd.rank())))
    hvd.broadcast_variables([weights], root_rank=0)
    for epoch in range(3):
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((rows @ weights - wanted) ** 2)
            tape = hvd.DistributedGradientTape(tape)
            weights.assign_sub(0.1 * tape.gradient(loss, [weights])[0])
        mean_loss = float(hvd.allreduce(loss))
        session.report({"way": "tape", "epoch": epoch, "loss": mean_loss, "weights": weights.numpy().ravel().tolist()})

    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.05)), loss="mse")
    averaged = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), hvd_keras.callbacks.MetricAverageCallback()]
    history = model.fit(rows, wanted, batch_size=16, epochs=3, verbose=0, callbacks=averaged).history["loss"]
    try:
        hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05))
    except ConfigError as error:
        refused = str(error)
    session.report(
        {
            "way": "keras",
            "history": [float(loss) for loss in history],
            "loss": float(history[-1]),
            "weights": model.get_weights()[0].ravel().tolist(),
            "refused": refused,
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return HorovodTrainer(
        train_both_ways,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path_factory.mktemp("trained"))),
    ).fit()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tape", "keras"])
def test_losses_fall_and_ranks_agree(trained: Result, way: str) -> None:
    rows = trained.rank_dataframe[trained.rank_dataframe["way"] == way]
    last = [rows[rows["rank"] == rank].iloc[-1] for rank in (0, 1)]
    assert list(last[0]["weights"]) == list(last[1]["weights"])
    assert last[0]["loss"] == last[1]["loss"]
    losses = list(rows[rows["rank"] == 0]["loss"]) if way == "tape" else list(last[0]["history"])
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.slow
def test_an_optimizer_of_keras_3_is_refused(trained: Result) -> None:
    assert "gradients of this SGD" in trained.metrics["refused"]
    assert "pip install --no-deps tf_keras" in trained.metrics["refused"]


def test_an_optimizer_of_keras_2_is_passed_on() -> None:
    def create_distributed_optimizer(*arguments: Any, **settings: Any) -> Any:
        return arguments, settings

    module = ModuleType("horovod._keras")
    vars(module)["create_distributed_optimizer"] = create_distributed_optimizer
    backend.CORRECTIONS.act(module)
    keras_2 = type("SGD", (), {"__module__": "tf_keras.src.optimizers.sgd"})()
    of_the_user = type("Own", (type("SGD", (), {"__module__": "keras.src.optimizers.sgd"}),), {})()
    assert module.create_distributed_optimizer("keras", keras_2, name="n") == (("keras", keras_2), {"name": "n"})
    with pytest.raises(ConfigError, match=r"Own.*Keras 3.*pip install"):
        module.create_distributed_optimizer(SimpleNamespace(), of_the_user)
