"""Keras in Horovod's workers: some of Horovod's modules are corrected when they are imported.

Horovod knows Keras 2. Beside a Keras 3, its callbacks mix both, and its optimizers do nothing: every worker would
train alone, without a word. With tf_keras installed `tf.keras` is a Keras 2, and all of it works.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from paceline.air.errors import ConfigError
from paceline.train.after_import import AfterImport


def _take_backend_of_tf_keras(module: ModuleType) -> None:
    """Models come from `tf.keras`, which need not be the package called keras, whose backend was imported."""
    module.K = module.keras.backend  # type: ignore[attr-defined]  # what a module has is its own affair


def _refuse_keras_3(module: ModuleType) -> None:
    make = module.create_distributed_optimizer

    @functools.wraps(make)
    def checked(keras: Any, optimizer: Any, *arguments: Any, **settings: Any) -> Any:
        if any(base.__module__.partition(".")[0] == "keras" for base in type(optimizer).__mro__):
            raise ConfigError(
                f"Horovod would not average the gradients of this {type(optimizer).__name__}, which is an optimizer of "
                "Keras 3: every worker would train alone. Use tf.keras and horovod.tensorflow.keras with tf_keras "
                "installed (pip install --no-deps tf_keras) and TF_USE_LEGACY_KERAS not set to 0, or a loop of your "
                "own with horovod.tensorflow.DistributedGradientTape."
            )
        return make(keras, optimizer, *arguments, **settings)

    module.create_distributed_optimizer = checked  # type: ignore[attr-defined]  # as above


CORRECTIONS = AfterImport(
    {
        "horovod._keras": _refuse_keras_3,
        "horovod.tensorflow.keras": _take_backend_of_tf_keras,
        "horovod.tensorflow.keras.callbacks": _take_backend_of_tf_keras,
    }
)
