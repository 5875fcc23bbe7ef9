"""XGBoost: XGBoostTrainer, and what its train functions, checkpoints and predictions use."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("xgboost") is None:
    raise ImportError("paceline.train.xgboost needs XGBoost: pip install 'paceline[xgboost]'", name="xgboost")

from paceline.air.absent import no_such_name
from paceline.train.xgboost.backend import XGBoostConfig
from paceline.train.xgboost.checkpoint import XGBoostCheckpoint
from paceline.train.xgboost.predictor import XGBoostPredictor
from paceline.train.xgboost.trainer import XGBoostTrainer

if TYPE_CHECKING:
    from paceline.train.xgboost.callback import ReportCallback

    RayTrainReportCallback = ReportCallback

__all__ = [
    "RayTrainReportCallback",
    "ReportCallback",
    "XGBoostCheckpoint",
    "XGBoostConfig",
    "XGBoostPredictor",
    "XGBoostTrainer",
]


def __getattr__(name: str) -> Any:
    """The callback is a class of XGBoost's, which is not loaded before somebody asks for it."""
    if name not in ("ReportCallback", "RayTrainReportCallback"):
        raise no_such_name(__name__, name)
    from paceline.train.xgboost.callback import ReportCallback

    return ReportCallback


def __dir__() -> list[str]:
    return __all__
