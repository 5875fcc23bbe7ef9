"""The shared vocabulary: configs, Checkpoint, Result and the session functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    import paceline.air.session as session
    from paceline.air.checkpoint import Checkpoint as Checkpoint
    from paceline.air.config import CheckpointConfig as CheckpointConfig
    from paceline.air.config import DataConfig as DataConfig
    from paceline.air.config import DatasetConfig as DatasetConfig
    from paceline.air.config import FailureConfig as FailureConfig
    from paceline.air.config import RunConfig as RunConfig
    from paceline.air.config import ScalingConfig as ScalingConfig
    from paceline.air.config import SyncConfig as SyncConfig
    from paceline.air.resources import ResourceRequest as ResourceRequest
    from paceline.air.result import Result as Result
    from paceline.air.util.data_batch_conversion import DataBatchType as DataBatchType

_HOMES = {
    "Checkpoint": "paceline.air.checkpoint",
    "CheckpointConfig": "paceline.air.config",
    "DataBatchType": "paceline.air.util.data_batch_conversion",
    "DataConfig": "paceline.air.config",
    "DatasetConfig": "paceline.air.config",
    "FailureConfig": "paceline.air.config",
    "ResourceRequest": "paceline.air.resources",
    "Result": "paceline.air.result",
    "RunConfig": "paceline.air.config",
    "ScalingConfig": "paceline.air.config",
    "SyncConfig": "paceline.air.config",
}
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

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "DataBatchType",
    "DataConfig",
    "DatasetConfig",
    "FailureConfig",
    "ResourceRequest",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "SyncConfig",
    "session",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"paceline.air.{name}")
    raise no_such_name(__name__, name, _ADVICE)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
