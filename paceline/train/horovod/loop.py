"""What a worker is told before it calls `hvd.init()`, and what it gives back in the end.

These functions are sent to workers by the backend. The driver imports this module too, so
Horovod is not imported here; it is the train function that chooses a flavour.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from paceline.air.errors import ConfigError
from paceline.run.spec import TrainFunction
from paceline.train.imports import AfterImport, referred_modules

_FLAVOURS = ("horovod.torch", "horovod.tensorflow")


def enter(environment: Mapping[str, str | None]) -> None:
    """Set this rank's variables; None removes one that would lead elsewhere."""
    leave_horovod()
    CORRECTIONS.install()
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def leave() -> None:
    """End Horovod's threads, unless the train function already did."""
    leave_horovod()
    CORRECTIONS.remove()


@dataclass(frozen=True)
class HorovodFunction(TrainFunction):
    """The user's function. A rank that returns leaves at once, as a process that ends under `horovodrun` does: one that
    still waits for it in a collective operation gets an error instead of waiting for ever."""

    def __call__(self) -> None:
        super().__call__()
        leave_horovod()


def leave_horovod() -> None:
    """Each flavour that is loaded has an engine of its own. A failed run in this same process leaves it running."""
    for name in _FLAVOURS:
        flavour = sys.modules.get(name)
        if flavour is not None and flavour.is_initialized():
            flavour.shutdown()


# -- which framework a train function uses ---------------------------------------------------------


_TORCH = ("torch", "horovod.torch")
_TENSORFLOW = ("tensorflow", "keras", "tf_keras", "horovod.tensorflow", "horovod.keras")


def uses_only_torch(*values: Any) -> bool:
    """True if the functions and other values refer to PyTorch and not to TensorFlow. A function that hides what it uses
    is not taken for one that does."""
    names = referred_modules(*values)
    return _refers(names, _TORCH) and not _refers(names, _TENSORFLOW)


def _refers(names: set[str], modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in names for module in modules)


# -- Keras -----------------------------------------------------------------------------------------
# Horovod knows Keras 2. Beside a Keras 3, its callbacks mix both, and its optimizers do nothing: every worker would
# train alone, without a word. With tf_keras installed `tf.keras` is a Keras 2, and all of it works.


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
