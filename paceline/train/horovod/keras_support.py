"""Keras in Horovod's workers: two of Horovod's modules are corrected while they are imported.

Horovod knows Keras 2. Beside a Keras 3, its callbacks mix both, and its optimizers do nothing: every worker would
train alone, without a word. With tf_keras installed `tf.keras` is a Keras 2, and all of it works.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from paceline.air.errors import ConfigError


def install() -> None:
    """Correct the modules when the train function imports them; nothing is imported here."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def remove() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def _take_backend_of_tf_keras(module: ModuleType) -> None:
    """Models come from `tf.keras`, which need not be the package called keras, whose backend was imported."""
    module.K = module.keras.backend  # type: ignore[attr-defined]


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

    module.create_distributed_optimizer = checked  # type: ignore[attr-defined]


_CORRECTIONS: dict[str, Callable[[ModuleType], None]] = {
    "horovod._keras": _refuse_keras_3,
    "horovod.tensorflow.keras": _take_backend_of_tf_keras,
    "horovod.tensorflow.keras.callbacks": _take_backend_of_tf_keras,
}


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _CORRECTIONS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _CorrectingLoader(spec.loader)
        return spec


class _CorrectingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _CORRECTIONS[module.__name__](module)
