"""XGBoost: XGBoostTrainer, and what its train functions, checkpoints and predictions use."""

from importlib.util import find_spec

if find_spec("xgboost") is None:
    raise ImportError("paceline.train.xgboost needs XGBoost: pip install 'paceline[xgboost]'", name="xgboost")

from paceline.air.lazy import lazy_imports
from paceline.train.xgboost.backend import XGBoostConfig
from paceline.train.xgboost.checkpoint import XGBoostCheckpoint
from paceline.train.xgboost.predictor import XGBoostPredictor
from paceline.train.xgboost.trainer import XGBoostTrainer

with lazy_imports(__name__):  # a class of XGBoost's, which is not loaded before somebody asks for it
    from paceline.train.xgboost.callback import ReportCallback
    from paceline.train.xgboost.callback import ReportCallback as RayTrainReportCallback

__all__ = [
    "RayTrainReportCallback",
    "ReportCallback",
    "XGBoostCheckpoint",
    "XGBoostConfig",
    "XGBoostPredictor",
    "XGBoostTrainer",
]
