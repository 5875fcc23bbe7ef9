"""Trainers, the functions that a train function calls (``from paceline import train``), and prediction.

Everything is loaded on first use, so that importing this package stays cheap.
"""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

_SUBMODULES = (
    "backend",
    "base_trainer",
    "batch_predictor",
    "callbacks",
    "collective",
    "data_parallel_trainer",
    "error",
    "gbdt_trainer",
    "horovod",
    "huggingface",
    "jax",
    "lightgbm",
    "lightning",
    "predictor",
    "rl",
    "sklearn",
    "tensorflow",
    "torch",
    "trainer",
    "xgboost",
)
_CALLBACK = "derive it from paceline.tune.Callback and pass it in RunConfig(callbacks=[...])"
_KEEPING = (
    "RunConfig(checkpoint_config=CheckpointConfig(num_to_keep=..., checkpoint_score_attribute=...)) is its successor"
)
_ELSEWHERE = {
    "CheckpointStrategy": _KEEPING,
    "Trainer": "paceline.train.torch.TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=n)).fit() "
    "replaces start(), run() and shutdown(); there are a TensorflowTrainer, a HorovodTrainer and a "
    "DataParallelTrainer too",
    "TrainingCallback": _CALLBACK,
    "checkpoint": "Checkpoint is paceline.train.Checkpoint, and CheckpointConfig replaces CheckpointStrategy",
    "TrainingIterator": "Trainer.fit() returns the Result; RunConfig(callbacks=[...]) sees each report",
    "mosaic": "call Composer's Trainer inside the train_loop_per_worker of a paceline.train.torch.TorchTrainer",
}

with lazy_imports(__name__, _SUBMODULES, _ELSEWHERE):
    from paceline.air.checkpoint import Checkpoint as Checkpoint
    from paceline.air.config import CheckpointConfig as CheckpointConfig
    from paceline.air.config import FailureConfig as FailureConfig
    from paceline.air.config import RunConfig as RunConfig
    from paceline.air.config import ScalingConfig as ScalingConfig
    from paceline.air.config import SyncConfig as SyncConfig
    from paceline.air.constants import TRAIN_DATASET_KEY as TRAIN_DATASET_KEY
    from paceline.air.context import TrainContext as TrainContext
    from paceline.air.context import get_context as get_context
    from paceline.air.data_config import DataConfig as DataConfig
    from paceline.air.errors import TrainingFailedError as TrainingFailedError
    from paceline.air.preemption import Preemption as Preemption
    from paceline.air.result import Result as Result
    from paceline.air.session import ReportedCheckpoint as ReportedCheckpoint
    from paceline.air.session import get_all_reported_checkpoints as get_all_reported_checkpoints
    from paceline.air.session import get_checkpoint as get_checkpoint
    from paceline.air.session import get_dataset_shard as get_dataset_shard
    from paceline.air.session import get_previous_world_size as get_previous_world_size
    from paceline.air.session import preempted as preempted
    from paceline.air.session import should_checkpoint as should_checkpoint
    from paceline.air.validation import ValidationConfig as ValidationConfig
    from paceline.air.validation import ValidationTask as ValidationTask
    from paceline.run.backend import Backend as Backend
    from paceline.run.backend import BackendConfig as BackendConfig
    from paceline.run.scaling_policy import ScalingSituation as ScalingSituation
    from paceline.run.user_callback import UserCallback as UserCallback
    from paceline.train.base_trainer import BaseTrainer as BaseTrainer
    from paceline.train.batch_predictor import BatchPredictor as BatchPredictor
    from paceline.train.data_parallel_trainer import DataParallelTrainer as DataParallelTrainer
    from paceline.train.functions import load_checkpoint as load_checkpoint
    from paceline.train.functions import local_rank as local_rank
    from paceline.train.functions import report as report
    from paceline.train.functions import save_checkpoint as save_checkpoint
    from paceline.train.functions import world_rank as world_rank
    from paceline.train.functions import world_size as world_size
    from paceline.train.predictor import Predictor as Predictor
