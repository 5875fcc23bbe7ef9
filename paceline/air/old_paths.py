"""Modules under the paths that Ray has for them, where paceline has their names elsewhere.

``from paceline.train.torch.torch_trainer import TorchTrainer`` works, without a file for each such path: the finder of
`paceline.air.absent` asks `new_place`, and makes a module that passes every question on to the one that has the names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_FRAMEWORKS = ("lightgbm", "lightning", "rl", "sklearn", "tensorflow", "torch", "xgboost")
_KINDS = ("checkpoint", "predictor", "trainer")
_STOPPERS = (
    "experiment_plateau",
    "function_stopper",
    "maximum_iteration",
    "noop",
    "stopper",
    "timeout",
    "trial_plateau",
)
_FILES = ("binary", "csv", "image", "json", "mongo", "numpy", "parquet", "sql", "text", "tfrecords", "webdataset")
_PREPROCESSORS = (
    *("batch_mapper", "categorizer", "discretizer", "encoder", "hasher", "label_encoder", "normalizer", "power"),
    *("scaler", "tokenizer", "torch", "torch_vision", "transformer", "vectorizer"),
)

NEW_PLACES = {
    "air.base_trainer": "train.base_trainer",
    "air.data_batch_type": "air.util.data_batch_conversion",
    "air.execution": "air.resources",
    "air.execution.resources": "air.resources",
    "air.execution.resources.placement_group": "air.resources",
    "air.execution.resources.request": "air.resources",
    "air.execution.resources.fixed": "air.resources",
    "air.execution.resources.resource_manager": "air.resources",
    "air.util.check_ingest": "compat.check_ingest",
    "data.dataset_iterator": "data.iterator",
    "data.datasource.file_meta_provider": "data.datasource",
    "data.datasource.filename_provider": "data.datasource",
    "data.datasource.parquet_base_datasource": "data.datasource",
    "data.extensions.tensor_extension": "data.extensions",
    "data.dataset_pipeline": "data.iterator",
    "data.grouped": "data.grouped_data",
    "data.grouped_dataset": "data.grouped_data",
    "data.read_api": "data",
    "data.row": "data.block",
    "train.horovod.horovod_trainer": "train.horovod",
    "train.tensorflow.keras": "train.tensorflow.callback",
    "train.tensorflow.train_loop_utils": "train.tensorflow",
    "train.torch.torch_detection_predictor": "train.torch",
    "train.torch.train_loop_utils": "train.torch",
    "tune.analysis.experiment_analysis": "tune.analysis",
    "tune.execution.placement_groups": "air.resources",
    "tune.experiment.experiment": "tune.experiment",
    **{f"tune.logger.{name}": "tune.logger" for name in ("csv", "json", "logger", "noop", "tensorboardx", "unified")},
    "tune.sample": "tune.search.sample",
    "tune.search.search_algorithm": "tune.search",
    "tune.search.search_generator": "tune.search",
    "tune.suggest": "tune.search",
    "tune.suggest.suggestion": "tune.search",
    "tune.trainable.session": "tune.trainable.legacy_session",
    "tune.trainable.util": "tune.trainable",
    "tune.trial": "run.trial",
    "tune.tune": "tune.legacy_run",
    "tune.utils.util": "tune.utils",
    **{f"train.{name}.{name}_{kind}": f"train.{name}" for name in _FRAMEWORKS for kind in _KINDS},
    **{f"train.huggingface.huggingface_{kind}": "train.huggingface" for kind in _KINDS},
    **{f"train.huggingface.transformers.transformers_{kind}": "train.huggingface.transformers" for kind in _KINDS},
    **{f"tune.stopper.{name}": "tune.stopper" for name in _STOPPERS},
    **{f"data.datasource.{name}_datasource": "data.datasource" for name in _FILES},
    **{f"data.preprocessors.{name}": "data.preprocessors" for name in _PREPROCESSORS},
}
"""Old path: the module that has its names; both without ``paceline.`` in front."""


def spec_of(fullname: str) -> ModuleSpec | None:
    """For the import of ``paceline.<old path>``; None if this is not an old path."""
    root, _, path = fullname.partition(".")
    parent, _, name = path.rpartition(".")
    if path in NEW_PLACES:
        return ModuleSpec(fullname, _Forwarding(f"{root}.{NEW_PLACES[path]}"))
    if parent in NEW_PLACES and _is_package(place := f"{root}.{NEW_PLACES[parent]}"):
        return _spec_below(fullname, f"{place}.{name}")
    return None


def _is_package(module: str) -> bool:
    return hasattr(importlib.import_module(module), "__path__")


def _spec_below(fullname: str, place: str) -> ModuleSpec | None:
    """A module of a package that has moved, such as tune.suggest.optuna."""
    try:
        importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name == place:
            return None
        raise
    return ModuleSpec(fullname, _Forwarding(place))


class _Forwarding(Loader):
    """Loads a module that passes every question on to another."""

    def __init__(self, place: str) -> None:
        self._place = place

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual empty module will do."""

    def exec_module(self, module: ModuleType) -> None:
        ask: Callable[[str], Any] = lambda name: getattr(importlib.import_module(self._place), name)  # noqa: E731
        module.__doc__ = f"Old path of {self._place}."
        module.__path__ = []  # so that advice about its names survives `from ... import`
        # Functions of one module object, as PEP 562 has them; mypy takes them for methods of ModuleType.
        module.__getattr__ = ask  # type: ignore[method-assign]
        module.__dir__ = lambda: dir(importlib.import_module(self._place))  # type: ignore[method-assign]
