"""Lightning: LightningTrainer, and what a Lightning Trainer needs inside of a TorchTrainer's function."""

from importlib.util import find_spec
from typing import Any

if find_spec("lightning") is None and find_spec("pytorch_lightning") is None:
    raise ImportError("paceline.train.lightning needs Lightning: pip install 'paceline[lightning]'", name="lightning")
if find_spec("torch") is None:
    raise ImportError("paceline.train.lightning needs PyTorch: pip install 'paceline[lightning]'", name="torch")

from paceline.train.lightning.checkpoint import LightningCheckpoint
from paceline.train.lightning.packages import DeferredClass
from paceline.train.lightning.predictor import LightningPredictor
from paceline.train.lightning.settings import LightningConfigBuilder
from paceline.train.lightning.strategies import prepare_trainer
from paceline.train.lightning.trainer import LightningTrainer

DDPStrategy: Any = DeferredClass("DDPStrategy")
DeepSpeedStrategy: Any = DeferredClass("DeepSpeedStrategy")
FSDPStrategy: Any = DeferredClass("FSDPStrategy")
LightningEnvironment: Any = DeferredClass("LightningEnvironment")
ModelParallelStrategy: Any = DeferredClass("ModelParallelStrategy")
ReportCallback: Any = DeferredClass("ReportCallback")

RayDDPStrategy = DDPStrategy
RayDeepSpeedStrategy = DeepSpeedStrategy
RayFSDPStrategy = FSDPStrategy
RayLightningEnvironment = LightningEnvironment
RayTrainReportCallback = ReportCallback

__all__ = [
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
]
