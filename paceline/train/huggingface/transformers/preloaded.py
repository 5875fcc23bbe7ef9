"""What the worker of a TransformersTrainer needs sooner or later; imported once, before the workers are forked."""

import accelerate
import torch.distributed.algorithms.ddp_comm_hooks
from transformers import (
    GenerationMixin,  # every model that generates text
    PreTrainedTokenizerFast,
    Trainer,
)

from paceline.train.huggingface.transformers import callback, loaders, loop, training_arguments

__all__ = [
    "GenerationMixin",
    "PreTrainedTokenizerFast",
    "Trainer",
    "accelerate",
    "callback",
    "loaders",
    "loop",
    "torch",
    "training_arguments",
]
