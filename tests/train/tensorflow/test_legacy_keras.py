"""The Keras callback and checkpoints with tf_keras as `tf.keras`, as in workers: a model that Horovod has compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("horovod")

SCRIPT = """
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

from paceline.air import session
from paceline.air.integrations.keras import Callback, ReportCheckpointCallback
from paceline.train.tensorflow import TensorflowCheckpoint

assert tf.keras.Model.__module__.startswith("tf_keras."), tf.keras.Model.__module__


class Reports:
    checkpoints = []

    def report(self, metrics, checkpoint=None, reduce=None, validation=None):
        self.checkpoints.append(checkpoint)


session.install(Reports())
hvd.init()
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.1)), loss="mse")
wrapper = type(model.optimizer)
callbacks = [Callback(frequency=0), ReportCheckpointCallback()]
assert all(isinstance(callback, tf.keras.callbacks.Callback) for callback in callbacks)
model.fit(np.ones((8, 4)), np.ones(8), epochs=2, verbose=0, callbacks=callbacks)
assert [checkpoint is None for checkpoint in Reports.checkpoints] == [True, False] * 2
assert type(model.optimizer) is wrapper  # it goes on with Horovod

loaded = Reports.checkpoints[-1].get_model()
assert type(loaded.optimizer) is tf.keras.optimizers.Adam, type(loaded.optimizer)
for then, now in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
    np.testing.assert_array_equal(then, now)
assert int(loaded.optimizer.iterations) == 2
print("done")
"""


@pytest.mark.slow
def test_callbacks_and_checkpoints_of_a_model_that_horovod_has_compiled() -> None:
    variables = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr
