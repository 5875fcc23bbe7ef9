"""Stops `fit` of a Keras 3 model under a strategy of several workers, with the ways that work.

Keras 3 fails there with an error about PerReplica values, or worse. A model under that strategy is fine as such:
custom loops work. So it is the methods that are guarded, at the moment Keras 3 defines them, if it ever does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from paceline.air.errors import ConfigError
from paceline.train.after_import import AfterImport

DEFINING_MODULE = "keras.src.backend.tensorflow.trainer"
GUARDED_METHODS = ("fit", "evaluate", "train_on_batch", "test_on_batch")
"""Those that fail; predict and predict_on_batch work."""


def install() -> None:
    """Guard the methods once Keras 3 is imported in this process."""
    _GUARD.install()


def _guard(module: ModuleType) -> None:
    """Put the check in front of the methods that do not work."""
    trainer: Any = module.TensorFlowTrainer
    for name in GUARDED_METHODS:
        setattr(trainer, name, _checked(getattr(trainer, name)))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(model: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise ConfigError(advice(method.__name__))
        return method(model, *args, **kwargs)

    return checked


def advice(method: str) -> str:
    """What to use instead of this method."""
    if find_spec("tf_keras") is not None:
        use_tf_keras = "build it with `tf.keras` under TF_USE_LEGACY_KERAS=1, which is tf_keras and can"
    else:
        use_tf_keras = "pip install --no-deps tf_keras, which can and is then used as `tf.keras`"
    return (
        f"Keras 3 cannot {method}() a model under a MultiWorkerMirroredStrategy of several workers. Ways that work: "
        f"{use_tf_keras}; or train in a loop of your own with strategy.run(); or use HorovodTrainer "
        "(paceline.train.horovod)."
    )


_GUARD = AfterImport({DEFINING_MODULE: _guard})
