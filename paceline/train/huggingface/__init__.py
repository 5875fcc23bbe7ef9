"""Hugging Face: TransformersTrainer and AccelerateTrainer, and what their checkpoints and predictions use.

The two can be used without each other, so each name is loaded on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from paceline.train.huggingface.accelerate import AccelerateTrainer as AccelerateTrainer
    from paceline.train.huggingface.transformers import TransformersCheckpoint as TransformersCheckpoint
    from paceline.train.huggingface.transformers import TransformersPredictor as TransformersPredictor
    from paceline.train.huggingface.transformers import TransformersTrainer as TransformersTrainer

    HuggingFaceCheckpoint = TransformersCheckpoint
    HuggingFacePredictor = TransformersPredictor
    HuggingFaceTrainer = TransformersTrainer

_PLACES = {
    "AccelerateTrainer": ("accelerate", "AccelerateTrainer"),
    "HuggingFaceCheckpoint": ("transformers", "TransformersCheckpoint"),
    "HuggingFacePredictor": ("transformers", "TransformersPredictor"),
    "HuggingFaceTrainer": ("transformers", "TransformersTrainer"),
    "TransformersCheckpoint": ("transformers", "TransformersCheckpoint"),
    "TransformersPredictor": ("transformers", "TransformersPredictor"),
    "TransformersTrainer": ("transformers", "TransformersTrainer"),
}
"""Public name: the package of this folder that has it, and its name there (HuggingFace... is the older name)."""
_PACKAGES = ("accelerate", "transformers")

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise no_such_name(__name__, name)
    package, attribute = _PLACES[name]
    value = getattr(importlib.import_module(f"{__name__}.{package}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_PLACES, *_PACKAGES])
