"""Hugging Face: TransformersTrainer and AccelerateTrainer, and what their checkpoints and predictions use.

The two can be used without each other, so each name is loaded on first use.
"""

from paceline.air.lazy import lazy_imports

with lazy_imports(__name__, ("accelerate", "transformers")):
    from paceline.train.huggingface.accelerate import AccelerateTrainer as AccelerateTrainer
    from paceline.train.huggingface.transformers import TransformersCheckpoint as HuggingFaceCheckpoint
    from paceline.train.huggingface.transformers import TransformersCheckpoint as TransformersCheckpoint
    from paceline.train.huggingface.transformers import TransformersPredictor as HuggingFacePredictor
    from paceline.train.huggingface.transformers import TransformersPredictor as TransformersPredictor
    from paceline.train.huggingface.transformers import TransformersTrainer as HuggingFaceTrainer
    from paceline.train.huggingface.transformers import TransformersTrainer as TransformersTrainer

__all__ = [
    "AccelerateTrainer",
    "HuggingFaceCheckpoint",
    "HuggingFacePredictor",
    "HuggingFaceTrainer",
    "TransformersCheckpoint",
    "TransformersPredictor",
    "TransformersTrainer",
]
