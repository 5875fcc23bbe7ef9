"""Stops `fit` of a Keras 3 model under a strategy of several workers, with the ways that work.

Keras 3 fails there with an error about PerReplica values, or worse. A model under that strategy is fine as such:
custom loops work. So it is the methods that are guarded, at the moment Keras 3 defines them, if it ever does.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from paceline.air.errors import ConfigError

DEFINING_MODULE = "keras.src.backend.tensorflow.trainer"
GUARDED_METHODS = ("fit", "evaluate", "train_on_batch", "test_on_batch")
"""Those that fail; predict and predict_on_batch work."""


def install() -> None:
    """Guard the methods once Keras 3 is imported in this process."""
    if DEFINING_MODULE in sys.modules:
        guard(sys.modules[DEFINING_MODULE])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def guard(module: ModuleType) -> None:
    """Put the check in front of the methods that do not work."""
    trainer: Any = module.TensorFlowTrainer
    for name in GUARDED_METHODS:
        setattr(trainer, name, _checked(getattr(trainer, name)))


class _Finder(MetaPathFinder):
    """Sees the one import that matters, and leaves finding the module to the others."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != DEFINING_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _GuardingLoader(spec.loader)
        return spec


class _GuardingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        guard(module)


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(model: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise ConfigError(_advice(method.__name__))
        return method(model, *args, **kwargs)

    return checked


def _advice(method: str) -> str:
    if find_spec("tf_keras") is not None:
        use_tf_keras = "build it with `tf.keras` under TF_USE_LEGACY_KERAS=1, which is tf_keras and can"
    else:
        use_tf_keras = "pip install --no-deps tf_keras, which can and is then used as `tf.keras`"
    return (
        f"Keras 3 cannot {method}() a model under a MultiWorkerMirroredStrategy of several workers. Ways that work: "
        f"{use_tf_keras}; or train in a loop of your own with strategy.run(); or use HorovodTrainer "
        "(paceline.train.horovod)."
    )
