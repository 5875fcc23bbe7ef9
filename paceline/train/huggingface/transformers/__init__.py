"""Transformers: TransformersTrainer, what train functions around a `transformers.Trainer` use, and prediction."""

from importlib.util import find_spec

if missing := [package for package in ("transformers", "accelerate", "torch") if find_spec(package) is None]:
    raise ImportError(
        f"paceline.train.huggingface.transformers needs {missing[0]}: pip install 'paceline[huggingface]'",
        name=missing[0],
    )

from paceline.air.lazy import lazy_imports
from paceline.train.huggingface.transformers.checkpoint import TransformersCheckpoint
from paceline.train.huggingface.transformers.loop import prepare_trainer
from paceline.train.huggingface.transformers.predictor import TransformersPredictor
from paceline.train.huggingface.transformers.trainer import TransformersTrainer

with lazy_imports(__name__):  # a class of Transformers', which is not loaded before somebody asks for it
    from paceline.train.huggingface.transformers.callback import ReportCallback
    from paceline.train.huggingface.transformers.callback import ReportCallback as RayTrainReportCallback

__all__ = [
    "RayTrainReportCallback",
    "ReportCallback",
    "TransformersCheckpoint",
    "TransformersPredictor",
    "TransformersTrainer",
    "prepare_trainer",
]
