"""What a TensorFlow train function calls, and what is looked at when it has returned."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air import session
from paceline.air.errors import ConfigError
from paceline.run.spec import TrainFunction
from paceline.train.tensorflow.cluster import ClusterMember

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
