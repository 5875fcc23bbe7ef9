"""TensorflowTrainer: a data-parallel trainer whose workers find each other through TF_CONFIG; and its functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from paceline.air import session
from paceline.air.errors import ConfigError
from paceline.run.spec import TrainFunction
from paceline.train.arguments import DataParallelArguments, chosen_config
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.tensorflow.backend import ClusterMember, TensorflowConfig

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class TensorflowFunction(TrainFunction):
    """The user's function. Workers that TensorFlow never connected have trained a model each: that is told."""

    def __call__(self) -> None:
        super().__call__()
        active = session.active()
        if active.world_size > 1 and "tensorflow" in sys.modules and not ClusterMember.here().has_met:
            active.warn(
                f"Each of the {active.world_size} workers has trained by itself: the train function made no "
                "tf.distribute.MultiWorkerMirroredStrategy(). Make one, and the model within its scope()."
            )


class TensorflowTrainer(DataParallelTrainer):
    """Runs `train_loop_per_worker` on every worker, with TF_CONFIG set for tf.distribute.

    Make the model within a MultiWorkerMirroredStrategy, and train it with `fit` or with a loop of your own.

        def train_func(config):
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            with strategy.scope():
                model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
                model.compile(optimizer="sgd", loss="mse")
            model.fit(x, y, callbacks=[ReportCheckpointCallback()])

        result = TensorflowTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()

    Where tf_keras is installed, it is `tf.keras` in the workers: Keras 3 cannot `fit` on several of them.
    """

    _function_class: ClassVar[type[TrainFunction]] = TensorflowFunction

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        tensorflow_config: TensorflowConfig | None = None,
        tensorflow_backend: TensorflowConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        chosen = chosen_config(
            "TensorflowTrainer",
            TensorflowConfig,
            tensorflow_config=tensorflow_config,
            tensorflow_backend=tensorflow_backend,
        )
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=chosen,
            **common,
        )


def prepare_dataset_shard(tf_dataset_shard: tf.data.Dataset) -> tf.data.Dataset:
    """A worker's own part of the data, so marked that TensorFlow does not deal it out over the workers again."""
    import tensorflow as tf

    if not isinstance(tf_dataset_shard, tf.data.Dataset):
        raise ConfigError(
            f"prepare_dataset_shard() takes a tf.data.Dataset, not {type(tf_dataset_shard).__name__}. A shard gives "
            "one by to_tf(feature_columns, label_columns)."
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options)
