"""LightGBM: LightGBMTrainer, and what its train functions use."""

from importlib.util import find_spec

if find_spec("lightgbm") is None:
    raise ImportError("paceline.train.lightgbm needs LightGBM: pip install 'paceline[lightgbm]'", name="lightgbm")

from paceline.train.lightgbm.backend import LightGBMConfig, get_network_params
from paceline.train.lightgbm.callback import RayTrainReportCallback, ReportCallback
from paceline.train.lightgbm.checkpoint import LightGBMCheckpoint
from paceline.train.lightgbm.predictor import LightGBMPredictor
from paceline.train.lightgbm.trainer import LightGBMTrainer

__all__ = [
    "LightGBMCheckpoint",
    "LightGBMConfig",
    "LightGBMPredictor",
    "LightGBMTrainer",
    "RayTrainReportCallback",
    "ReportCallback",
    "get_network_params",
]
