"""Transformers: TransformersTrainer, what train functions around a `transformers.Trainer` use, and prediction."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if missing := [package for package in ("transformers", "accelerate", "torch") if find_spec(package) is None]:
    raise ImportError(
        f"paceline.train.huggingface.transformers needs {missing[0]}: pip install 'paceline[huggingface]'",
        name=missing[0],
    )

from paceline.air.absent import no_such_name
from paceline.train.huggingface.transformers.checkpoint import TransformersCheckpoint
from paceline.train.huggingface.transformers.loop import prepare_trainer
from paceline.train.huggingface.transformers.predictor import TransformersPredictor
from paceline.train.huggingface.transformers.trainer import TransformersTrainer

if TYPE_CHECKING:
    from paceline.train.huggingface.transformers.callback import ReportCallback

    RayTrainReportCallback = ReportCallback

__all__ = [
    "RayTrainReportCallback",
    "ReportCallback",
    "TransformersCheckpoint",
    "TransformersPredictor",
    "TransformersTrainer",
    "prepare_trainer",
]


def __getattr__(name: str) -> Any:
    """The callback is a class of Transformers', which is not loaded before somebody asks for it."""
    if name not in ("ReportCallback", "RayTrainReportCallback"):
        raise no_such_name(__name__, name)
    from paceline.train.huggingface.transformers.callback import ReportCallback

    return ReportCallback


def __dir__() -> list[str]:
    return __all__
