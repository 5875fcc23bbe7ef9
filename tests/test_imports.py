"""The public surface: what can be imported, from where, and at what price."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HEAVY = {"cloudpickle", "fsspec", "numpy", "pandas", "pyarrow", "rich", "tensorboardX", "xxhash"} | {
    *("accelerate", "datasets", "fastapi", "horovod", "joblib", "keras", "lightgbm", "lightning", "pytorch_lightning"),
    *("flax", "jax", "jaxlib", "optax", "orbax"),
    *("skops", "sklearn", "tensorflow", "tf_keras", "tokenizers", "torch", "transformers", "uvicorn", "xgboost"),
    *("aim", "comet_ml", "mlflow", "wandb"),
}

CONFIGS = {"CheckpointConfig", "DataConfig", "FailureConfig", "RunConfig", "ScalingConfig", "SyncConfig"}
OLDEST_SESSION = {"load_checkpoint", "local_rank", "report", "save_checkpoint", "world_rank", "world_size"}
STOPPERS = {
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "NoopStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
}

READERS = {
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_parquet_bulk",
    "read_text",
    "read_tfrecords",
    "read_webdataset",
}
PREPROCESSORS = {
    "BatchMapper",
    "Categorizer",
    "Chain",
    "Concatenator",
    "CountVectorizer",
    "CustomKBinsDiscretizer",
    "FeatureHasher",
    "HashingVectorizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiHotEncoder",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PowerTransformer",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "Tokenizer",
    "TorchVisionPreprocessor",
    "UniformKBinsDiscretizer",
}

SPACE = {
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
}

# What each public package exports: a name that comes or goes is a decision, made here too.
EXPORTED: dict[str, set[str]] = {
    "paceline.air": CONFIGS | {"Checkpoint", "DataBatchType", "DatasetConfig", "ResourceRequest", "Result", "session"},
    "paceline.data": READERS
    | {"from_arrow", "from_huggingface", "from_items", "from_numpy", "from_pandas", "from_torch"}
    | {"from_dask", "from_polars", "from_spark", "from_tf", "read_datasource", "read_sql"}
    | {"range", "range_table", "range_tensor"}
    | {"DataContext", "DatasetContext", "ExecutionOptions", "ExecutionResources", "NodeIdStr", "set_progress_bars"}
    | {"DatasetIterator", "DatasetPipeline", "Datasource", "MaterializedDataset", "ReadTask", "Schema"}
    | {"ActorPoolStrategy", "DataIterator", "Dataset", "GroupedData", "Preprocessor"},
    "paceline.data.preprocessors": PREPROCESSORS | {"Preprocessor"},
    "paceline.train": CONFIGS
    | OLDEST_SESSION
    | {"get_checkpoint", "get_context", "get_dataset_shard", "get_all_reported_checkpoints"}
    | {"Preemption", "preempted", "should_checkpoint"}
    | {"ScalingSituation", "get_previous_world_size"}
    | {"ReportedCheckpoint", "UserCallback", "ValidationConfig", "ValidationTask"}
    | {"Checkpoint", "Result", "TrainContext", "TrainingFailedError", "TRAIN_DATASET_KEY"}
    | {"Backend", "BackendConfig", "BaseTrainer", "DataParallelTrainer", "BatchPredictor", "Predictor"},
    "paceline.train.torch": {
        "MemoryEstimate",
        "RankMemory",
        "TorchCheckpoint",
        "TorchConfig",
        "TorchDetectionPredictor",
        "TorchPredictor",
        "TorchTrainer",
        "TorchWorkerProfiler",
        "accelerate",
        "backward",
        "enable_reproducibility",
        "estimate_memory",
        "get_device",
        "get_devices",
        "load_sharded",
        "prepare_data_loader",
        "prepare_model",
        "prepare_optimizer",
        "save_sharded",
    },
    "paceline.train.jax": {"JaxCheckpoint", "JaxConfig", "JaxPredictor", "JaxTrainer"},
    "paceline.train.tensorflow": {
        "RayTrainReportCallback",
        "ReportCallback",
        "TensorflowCheckpoint",
        "TensorflowConfig",
        "TensorflowPredictor",
        "TensorflowTrainer",
        "prepare_dataset_shard",
    },
    "paceline.air.integrations.comet": {"CometLoggerCallback"},
    "paceline.air.integrations.keras": {"Callback", "ReportCheckpointCallback"},
    "paceline.air.integrations.mlflow": {"MLflowLoggerCallback", "setup_mlflow"},
    "paceline.air.integrations.wandb": {"WandbLoggerCallback", "setup_wandb"},
    "paceline.trackers": {"Tracker", "TrackerCallback", "TrackedCheckpoint", "TrackedRow", "TrackedRun", "send"}
    | {"Outcome", "RejectedError", "RunGoneError"},
    "paceline.train.horovod": {"HorovodConfig", "HorovodTrainer"},
    "paceline.train.huggingface": {
        "AccelerateTrainer",
        "HuggingFaceCheckpoint",
        "HuggingFacePredictor",
        "HuggingFaceTrainer",
        "TransformersCheckpoint",
        "TransformersPredictor",
        "TransformersTrainer",
    },
    "paceline.train.huggingface.accelerate": {"AccelerateTrainer"},
    "paceline.train.huggingface.transformers": {
        "RayTrainReportCallback",
        "ReportCallback",
        "TransformersCheckpoint",
        "TransformersPredictor",
        "TransformersTrainer",
        "prepare_trainer",
    },
    "paceline.train.lightning": {
        "DDPStrategy",
        "DeepSpeedStrategy",
        "FSDPStrategy",
        "LightningCheckpoint",
        "LightningConfigBuilder",
        "LightningEnvironment",
        "LightningPredictor",
        "LightningTrainer",
        "ModelParallelStrategy",
        "RayDDPStrategy",
        "RayDeepSpeedStrategy",
        "RayFSDPStrategy",
        "RayLightningEnvironment",
        "RayTrainReportCallback",
        "ReportCallback",
        "prepare_trainer",
    },
    "paceline.train.lightgbm": {
        "LightGBMCheckpoint",
        "LightGBMConfig",
        "LightGBMPredictor",
        "LightGBMTrainer",
        "RayTrainReportCallback",
        "ReportCallback",
        "get_network_params",
    },
    "paceline.train.sklearn": {"SklearnCheckpoint", "SklearnPredictor", "SklearnTrainer"},
    "paceline.train.xgboost": {
        "RayTrainReportCallback",
        "ReportCallback",
        "XGBoostCheckpoint",
        "XGBoostConfig",
        "XGBoostPredictor",
        "XGBoostTrainer",
    },
    "paceline.tune": SPACE
    | {"checkpoint_dir", "get_checkpoint", "get_context", "get_trial_dir", "get_trial_id", "get_trial_name", "report"}
    | {"get_trial_resources", "is_session_enabled", "with_parameters", "with_resources", "Trainable"}
    | {"ResultGrid", "TuneConfig", "Tuner", "TuneError", "create_scheduler", "create_searcher"}
    | {"Experiment", "ExperimentAnalysis", "register_env", "register_trainable", "run", "run_experiments"}
    | {"CLIReporter", "JupyterNotebookReporter", "ProgressReporter"}
    | {"Checkpoint", "CheckpointConfig", "FailureConfig", "RunConfig"}
    | {"Callback", "PlacementGroupFactory", "Stopper", "SyncConfig", "Trial"},
    "paceline.tune.integration.keras": {"TuneReportCallback", "TuneReportCheckpointCallback"},
    "paceline.tune.integration.lightgbm": {"TuneReportCallback", "TuneReportCheckpointCallback"},
    "paceline.tune.integration.pytorch_lightning": {"TuneReportCallback", "TuneReportCheckpointCallback"},
    "paceline.tune.integration.xgboost": {"TuneReportCallback", "TuneReportCheckpointCallback"},
    "paceline.tune.logger": {"CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"}
    | {"CSVLogger", "JsonLogger", "Logger", "NoopLogger", "TBXLogger", "UnifiedLogger"}
    | {"LegacyLoggerCallback", "pretty_print"},
    "paceline.tune.stopper": STOPPERS,
    "paceline.tune.utils": {"date_str", "deep_update", "flatten_dict", "merge_dicts", "unflattened_lookup"}
    | {"diagnose_serialization", "validate_save_restore", "wait_for_gpu"},
}

# Paths that code of earlier API generations imports from.
OLD_PATHS: dict[str, set[str]] = {
    "paceline.air.base_trainer": {"BaseTrainer", "TrainingFailedError"},
    "paceline.air.checkpoint": {"Checkpoint"},
    "paceline.air.config": CONFIGS | {"DatasetConfig"},
    "paceline.air.constants": {"MODEL_KEY", "PREPROCESSOR_KEY", "TRAINING_ITERATION", "TRAIN_DATASET_KEY"},
    "paceline.air.result": {"Result"},
    "paceline.tune.analysis": {"ExperimentAnalysis"},
    "paceline.tune.callback": {"Callback"},
    "paceline.tune.error": {"TuneError"},
    "paceline.tune.experiment": {"Experiment", "Trial"},
    "paceline.tune.experiment.trial": {"Trial"},
    "paceline.tune.progress_reporter": {"CLIReporter", "JupyterNotebookReporter", "ProgressReporter"},
    "paceline.tune.registry": {"register_env", "register_trainable"},
    "paceline.tune.result_grid": {"ResultGrid"},
    "paceline.tune.schedulers": {
        "ASHAScheduler",
        "AsyncHyperBandScheduler",
        "FIFOScheduler",
        "HyperBandScheduler",
        "MedianStoppingRule",
        "PB2",
        "PopulationBasedTraining",
        "PopulationBasedTrainingReplay",
        "ResourceChangingScheduler",
        "TrialScheduler",
    },
    "paceline.tune.schedulers.async_hyperband": {"ASHAScheduler", "AsyncHyperBandScheduler"},
    "paceline.tune.schedulers.pb2": {"PB2"},
    "paceline.tune.schedulers.pbt": {"PopulationBasedTraining", "PopulationBasedTrainingReplay"},
    "paceline.tune.search": {"BasicVariantGenerator", "ConcurrencyLimiter", "Repeater", "Searcher"},
    "paceline.tune.search.basic_variant": {"BasicVariantGenerator"},
    "paceline.tune.search.hyperopt": {"HyperOptSearch"},
    "paceline.tune.search.optuna": {"OptunaSearch"},
    "paceline.tune.search.variant_generator": {"count_variants", "generate_variants", "grid_search"},
    "paceline.tune.search.sample": SPACE | {"Categorical", "Domain", "Float", "Integer"},
    "paceline.tune.trainable": {"Trainable", "with_parameters", "with_resources"},
    "paceline.tune.tuner": {"ResultGrid", "TuneConfig", "Tuner"},
    "paceline.air.session": {
        "get_checkpoint",
        "get_dataset_shard",
        "get_experiment_name",
        "get_local_rank",
        "get_local_world_size",
        "get_node_rank",
        "get_previous_world_size",
        "get_trial_dir",
        "get_trial_id",
        "get_trial_name",
        "get_trial_resources",
        "get_world_rank",
        "get_world_size",
        "report",
    },
    "paceline.data.aggregate": {"AggregateFn", "Count", "Max", "Mean", "Min", "Std", "Sum"},
    "paceline.data.dataset": {"Dataset"},
    "paceline.data.context": {"DataContext", "DatasetContext"},
    "paceline.data.dataset_pipeline": {"DatasetPipeline"},
    "paceline.data.extensions": {"ArrowTensorArray", "ArrowTensorType", "TensorArray"},
    "paceline.data.extensions.tensor_extension": {"ArrowTensorArray", "ArrowTensorType", "TensorArray"},
    "paceline.data.datasource": {"Datasink", "Datasource", "Partitioning", "PathPartitionFilter", "ReadTask"},
    "paceline.data.datasource.file_based_datasource": {"BlockWritePathProvider", "FileExtensionFilter"},
    "paceline.data.datasource.partitioning": {"Partitioning", "PartitionStyle"},
    "paceline.data.grouped": {"GroupedData"},
    "paceline.data.grouped_data": {"GroupedData"},
    "paceline.data.dataset_legacy": {"RandomAccessDataset"},
    "paceline.data.iterator": {"DataIterator"},
    "paceline.data.preprocessor": {"Preprocessor", "PreprocessorNotFittedException"},
    "paceline.train.backend": {"Backend", "BackendConfig"},
    "paceline.train.base_trainer": {"BaseTrainer", "TrainingFailedError"},
    "paceline.train.batch_predictor": {"BatchPredictor"},
    "paceline.train.callbacks": {"TorchTensorboardProfilerCallback"},
    "paceline.train.data_parallel_trainer": {"DataParallelTrainer"},
    "paceline.train.error": {"SessionMisuseError", "TrainingFailedError"},
    "paceline.train.predictor": {"Predictor", "PredictorNotSerializableException"},
    "paceline.train.trainer": {"BaseTrainer", "Trainer"},
}


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running `code`."""
    program = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def exported() -> dict[str, list[str]]:
    """What each package of EXPORTED has in __all__, seen by another interpreter: a framework that a name loads may set
    environment variables."""
    program = """
import importlib, json, sys
exported = {}
for name in json.loads(sys.argv[1]):
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module)), f"dir({name}) lacks names"
    assert all(getattr(module, each) is not None for each in module.__all__), name
    exported[name] = module.__all__
print(json.dumps(exported))
"""
    command = [sys.executable, "-c", program, json.dumps([*EXPORTED])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    "code",
    [
        "import paceline",
        "import paceline.ray; paceline.ray.install(); import ray.train; ray.tune",
        "from paceline.air import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, session",
        "from paceline import train; train.report, train.get_context",
        "from paceline.train import DataParallelTrainer",
        "from paceline import data; import paceline.data.preprocessors, paceline.data.datasource",
        "from paceline.train.torch import TorchConfig, TorchPredictor, TorchTrainer, prepare_model",
        "from paceline.train import BatchPredictor, Predictor; import paceline.train.predictor",
        "from paceline.train.xgboost import XGBoostCheckpoint, XGBoostPredictor, XGBoostTrainer",
        "from paceline.train.lightgbm import LightGBMCheckpoint, LightGBMPredictor, LightGBMTrainer",
        "from paceline.train.sklearn import SklearnCheckpoint, SklearnPredictor, SklearnTrainer",
        "from paceline.train.tensorflow import TensorflowCheckpoint, TensorflowPredictor, TensorflowTrainer",
        "from paceline.train.jax import JaxCheckpoint, JaxConfig, JaxPredictor, JaxTrainer",
        "from paceline.train.horovod import HorovodConfig, HorovodTrainer",
        "from paceline.train.huggingface import TransformersCheckpoint, TransformersPredictor, TransformersTrainer",
        "from paceline.train.huggingface import AccelerateTrainer, HuggingFaceTrainer",
        "from paceline.train.huggingface.transformers import TransformersTrainer, prepare_trainer",
        "from paceline.train.lightning import LightningCheckpoint, LightningConfigBuilder, LightningTrainer",
        "from paceline.train.lightning import LightningPredictor, prepare_trainer, DDPStrategy, ReportCallback",
        "from paceline.air.integrations.mlflow import MLflowLoggerCallback, setup_mlflow; MLflowLoggerCallback()",
        "from paceline.air.integrations.wandb import WandbLoggerCallback, setup_wandb; WandbLoggerCallback()",
        "from paceline.air.integrations.comet import CometLoggerCallback; CometLoggerCallback()",
    ],
)
def test_import_is_cheap(code: str) -> None:
    assert not modules_after(code) & HEAVY


@pytest.mark.parametrize("module_name", EXPORTED)
def test_exported_members_are_pinned(module_name: str, exported: dict[str, list[str]]) -> None:
    names = exported[module_name]
    assert len(names) == len(set(names))
    assert set(names) == EXPORTED[module_name]


@pytest.mark.parametrize("module_name", OLD_PATHS)
def test_old_paths_work(module_name: str) -> None:
    module = importlib.import_module(module_name)
    missing = {name for name in OLD_PATHS[module_name] if not hasattr(module, name)}
    assert not missing


def test_everything_is_reachable_from_the_package() -> None:
    code = (
        "import paceline\n"
        "paceline.air.session.report, paceline.air.config.RunConfig, paceline.tune.logger.LoggerCallback\n"
        "paceline.train.torch.TorchTrainer, paceline.train.torch.prepare_model\n"
        "paceline.train.xgboost.XGBoostTrainer, paceline.train.sklearn.SklearnTrainer\n"
        "paceline.train.lightgbm.LightGBMTrainer, paceline.train.predictor, paceline.train.batch_predictor\n"
        "paceline.train.tensorflow.TensorflowTrainer, paceline.train.horovod.HorovodTrainer\n"
        "paceline.train.huggingface.TransformersTrainer, paceline.train.huggingface.accelerate.AccelerateTrainer\n"
        "paceline.train.lightning.LightningTrainer, paceline.air.integrations\n"
        "paceline.data.read_parquet, paceline.data.preprocessors.StandardScaler\n"
        "paceline.init, paceline.shutdown, paceline.is_initialized"
    )
    assert "paceline.train.torch" in modules_after(code)


def test_configs_are_the_same_classes_everywhere() -> None:
    from paceline import air, train

    for name in CONFIGS | {"Checkpoint", "Result"}:
        assert getattr(air, name) is getattr(train, name)


@pytest.mark.parametrize("line", ["from paceline.tune import Tunar", "import paceline.no_such_package"])
def test_what_is_not_there_fails_as_an_import_does(line: str) -> None:
    with pytest.raises(ImportError):
        exec(line)


@pytest.mark.parametrize(("name", "way"), [("read_mongo", "from_arrow"), ("from_modin", "from_pandas")])
def test_a_source_that_is_not_there_names_another_way(name: str, way: str) -> None:
    with pytest.raises(AttributeError, match=rf"paceline\.data\.{name} .*{way}"):
        getattr(importlib.import_module("paceline.data"), name)


def test_layers_are_respected() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
