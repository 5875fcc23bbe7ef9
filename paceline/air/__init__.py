"""The shared vocabulary: configs, Checkpoint, Result and the session functions."""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

_MODULES = (
    "base_trainer",
    "checkpoint",
    "config",
    "constants",
    "data_batch_type",
    "errors",
    "integrations",
    "result",
    "session",
    "util",
)
_ADVICE = {
    "AcquiredResources": "ScalingConfig and tune.with_resources() say what is needed; the run acquires and frees it",
}

with lazy_imports(__name__, _MODULES, _ADVICE):
    from paceline.air import session as session
    from paceline.air.checkpoint import Checkpoint as Checkpoint
    from paceline.air.config import CheckpointConfig as CheckpointConfig
    from paceline.air.config import DataConfig as DataConfig
    from paceline.air.config import DatasetConfig as DatasetConfig
    from paceline.air.config import FailureConfig as FailureConfig
    from paceline.air.config import RunConfig as RunConfig
    from paceline.air.config import ScalingConfig as ScalingConfig
    from paceline.air.config import SyncConfig as SyncConfig
    from paceline.air.data_batch_type import DataBatchType as DataBatchType
    from paceline.air.resources import ResourceRequest as ResourceRequest
    from paceline.air.result import Result as Result
