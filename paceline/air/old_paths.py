"""Modules under the paths that Ray has for them, where paceline has their names elsewhere.

``from paceline.train.torch.torch_trainer import TorchTrainer`` works, without a file for each such path: the finder of
`paceline.air.absent` asks `new_place`, and makes a module that passes every question on to the one that has the names.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

from paceline.air.absent import no_such_name

_NOTHING: Mapping[str, str] = MappingProxyType({})
_FRAMEWORKS = ("lightgbm", "lightning", "rl", "sklearn", "tensorflow", "torch", "xgboost")
_REPORTING = {
    "keras": "from keras.callbacks.Callback and call session.report()",
    "lightgbm": "pass LightGBM a function that calls session.report()",
    "pytorch_lightning": "from Lightning's Callback and call session.report()",
    "xgboost": "from TrainingCallback and call session.report()",
}
"""Frameworks with callbacks that report, and how to write one without ours."""
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
    "air.execution": "air.resources",
    "air.execution.resources": "air.resources",
    "air.execution.resources.placement_group": "air.resources",
    "air.execution.resources.request": "air.resources",
    "air.execution.resources.fixed": "air.resources",
    "air.execution.resources.resource_manager": "air.resources",
    "air.util": "air.data_batch_type",
    "air.util.data_batch_conversion": "air.data_batch_type",
    "air.util.check_ingest": "compat.train",
    "data.context": "compat.data_context",
    "data.dataset_iterator": "data.iterator",
    "data.datasource.file_meta_provider": "data.datasource",
    "data.datasource.filename_provider": "data.datasource",
    "data.datasource.parquet_base_datasource": "data.datasource",
    "data.extensions": "compat.tensor_extensions",
    "data.extensions.tensor_extension": "compat.tensor_extensions",
    "data.dataset_pipeline": "data.iterator",
    "data.grouped": "data.grouped_data",
    "data.grouped_dataset": "data.grouped_data",
    "data.random_access_dataset": "data.dataset_legacy",
    "data.read_api": "data",
    "data.row": "data.block",
    **{f"ray.util.{name}": "ray.util" for name in ("accelerators", "annotations", "debug")},
    "train._internal": "compat.train",
    "train._internal.utils": "compat.train",
    "train._internal.worker_group": "engine.base",
    "train.backend": "run.backend",
    "train.callbacks": "compat.train",
    "train.error": "air.errors",
    "train.gbdt_trainer": "compat.train",
    "train.trainer": "compat.train",
    **{
        f"train.{name}.config": f"train.{name}.backend"
        for name in ("horovod", "lightgbm", "tensorflow", "torch", "xgboost")
    },
    "train.horovod.horovod_trainer": "train.horovod",
    "train.tensorflow.keras": "train.tensorflow.callback",
    "train.tensorflow.train_loop_utils": "train.tensorflow",
    "train.torch.torch_detection_predictor": "train.torch",
    "train.torch.train_loop_utils": "train.torch",
    "tune.analysis": "compat.experiment_analysis",
    "tune.analysis.experiment_analysis": "compat.experiment_analysis",
    "tune.callback": "run.callbacks",
    "tune.error": "air.errors",
    "tune.execution": "air.resources",
    "tune.execution.placement_groups": "air.resources",
    "tune.experiment.experiment": "tune.experiment",
    "tune.experiment.trial": "run.spec",
    "tune.integration": "compat.tune_integration",
    **{f"tune.integration.{name}": f"compat.tune_integration.{name}" for name in _REPORTING},
    **{f"tune.integration.{name}": f"air.integrations.{name}" for name in ("comet", "mlflow", "wandb")},
    **{f"tune.logger.{name}": "tune.logger" for name in ("csv", "json", "logger", "noop", "tensorboardx", "unified")},
    "tune.progress_reporter": "tune.progress.reporters",
    "tune.result": "air.constants",
    "tune.sample": "tune.search.sample",
    "tune.schedulers.hb_bohb": "tune.schedulers",
    "tune.search.concurrency_limiter": "tune.search.wrapping_searcher",
    "tune.search.repeater": "tune.search.wrapping_searcher",
    "tune.search.search_algorithm": "tune.search",
    "tune.search.search_generator": "tune.search",
    "tune.search.variant_generator": "tune.search.variants",
    "tune.suggest": "tune.search",
    "tune.suggest.suggestion": "tune.search",
    "tune.syncer": "air.config",
    "tune.trainable.function_trainable": "tune.trainable.trainable",
    "tune.trainable.util": "tune.trainable",
    "tune.trial": "run.spec",
    "tune.tune": "compat.tune_run",
    "tune.tune_config": "tune.tuner",
    "tune.utils": "compat.tune_utils",
    "tune.utils.util": "compat.tune_utils",
    **{f"train.{name}.{name}_{kind}": f"train.{name}" for name in _FRAMEWORKS for kind in _KINDS},
    **{f"train.huggingface.huggingface_{kind}": "train.huggingface" for kind in _KINDS},
    **{f"train.huggingface.transformers.transformers_{kind}": "train.huggingface.transformers" for kind in _KINDS},
    **{f"tune.stopper.{name}": "tune.stopper" for name in _STOPPERS},
    **{f"data.datasource.{name}_datasource": "data.datasource" for name in _FILES},
    **{f"data.preprocessors.{name}": "data.preprocessors" for name in _PREPROCESSORS},
}
"""Old path: the module that has its names; both without ``paceline.`` in front."""

_LOOP = "Tuner.fit() runs the trials; callbacks, a TrialScheduler or a Searcher of your own take part in it"
_REPORTER = "derive from ProgressReporter, and pass it as RunConfig(progress_reporter=...)"
_SPACE = "generate_variants(space) yields the chosen values by path, and the configuration with them"
_STORAGE = "RunConfig(storage_path=...) names a directory, a mounted one, or a URI of any fsspec filesystem"
_TRACKER = "pass RunConfig(callbacks=[...]) the MLflowLoggerCallback of paceline.air.integrations.mlflow"
_MIXIN = "call setup_{0}(config) of paceline.air.integrations.{0} in the training function"
_LOGGERS = "a run writes its rows as JSON, CSV and for TensorBoard by itself"
_ADVICE = {
    "air.util": {
        "tensor_extensions": "columns of a Dataset may hold numpy arrays of any shape; no extension type is needed",
        "torch_dist": "paceline.train.torch.TorchTrainer sets up the process group of its workers; in its "
        "train_loop_per_worker, torch.distributed is ready to use",
    },
    "train.callbacks": {
        "JsonLoggerCallback": _LOGGERS,
        "MLflowLoggerCallback": _TRACKER,
        "PrintCallback": "a run shows its progress by itself; to print each row, pass RunConfig(callbacks=[...]) a "
        "paceline.tune.Callback with on_trial_result()",
        "TBXLoggerCallback": _LOGGERS,
        "TrainingCallback": "derive it from paceline.tune.Callback and pass it in RunConfig(callbacks=[...])",
    },
    "train.trainer": {
        "TrainingIterator": "Trainer.fit() returns the Result; RunConfig(callbacks=[...]) sees each report",
    },
    "tune.callback": {"CallbackList": "the run calls the callbacks of RunConfig(callbacks=[...]) itself"},
    "tune.execution": dict.fromkeys(("ray_trial_executor", "trial_runner", "tune_controller"), _LOOP),
    "tune.experiment.trial": {
        "ExportFormat": "save the model in the format that you need, inside of the trainable",
    },
    "tune.integration": {
        "mxnet": "Apache MXNet is retired; report by session.report() in a batch or epoch callback of your own",
        "torch": "a TorchTrainer as the trainable of tune.Tuner trains each trial on several workers",
    },
    "tune.integration.mlflow": {"mlflow_mixin": _MIXIN.format("mlflow")},
    "tune.integration.wandb": {"wandb_mixin": _MIXIN.format("wandb")},
    **{
        f"tune.integration.{name}": {"TuneCallback": f"derive from TuneReportCallback, or {otherwise}"}
        for name, otherwise in _REPORTING.items()
    },
    "tune.progress_reporter": dict.fromkeys(
        ("RemoteReporterMixin", "TrialProgressCallback", "TuneReporterBase"), _REPORTER
    ),
    "tune.search.variant_generator": {
        **dict.fromkeys(("assign_value", "format_vars", "parse_spec_vars"), _SPACE),
        "RecursiveDependencyError": "parameters that depend on each other raise paceline.air.errors.ConfigError",
    },
    "tune.syncer": dict.fromkeys(("Syncer", "SyncerCallback", "get_node_to_storage_syncer"), _STORAGE),
    "tune.trainable.function_trainable": {
        "FuncCheckpointUtil": "session.report(metrics, checkpoint=...) keeps the checkpoints of a function",
    },
}
"""What to write instead of names that nobody has; those of compat/ are advised on there."""


def spec_of(fullname: str) -> ModuleSpec | None:
    """For the import of ``paceline.<old path>``; None if this is not an old path."""
    root, _, path = fullname.partition(".")
    parent, _, name = path.rpartition(".")
    if path in NEW_PLACES:
        return ModuleSpec(fullname, _Forwarding(f"{root}.{NEW_PLACES[path]}", _ADVICE.get(path, {})))
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
    """Loads a module that passes every question on to another, except where it has advice."""

    def __init__(self, place: str, advice: Mapping[str, str] = _NOTHING) -> None:
        self._place = place
        self._advice = advice

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual empty module will do."""

    def exec_module(self, module: ModuleType) -> None:
        def ask(name: str) -> Any:
            # What inspection looks for in any module must not import the new one.
            if name in self._advice or (name.startswith("__") and name != "__all__"):
                raise no_such_name(module.__name__, name, self._advice)
            return getattr(importlib.import_module(self._place), name)

        module.__doc__ = f"The names of {self._place}, under another path."
        module.__path__ = []  # so that advice about its names survives `from ... import`
        # Functions of one module object, as PEP 562 has them; mypy takes them for methods of ModuleType.
        module.__getattr__ = ask  # type: ignore[method-assign]
        module.__dir__ = lambda: dir(importlib.import_module(self._place))  # type: ignore[method-assign]
