"""SkipTrained: tells a dataset of the run where in an epoch the trainer goes on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from paceline.train.huggingface.transformers.datasets import Resumable


class SkipTrained(TrainerCallback):
    """At the beginning of a training that is gone on with, counts the batches that it will pass over."""

    def __init__(self, dataset: Resumable) -> None:
        self._dataset = dataset

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0 or args.ignore_data_skip:
            return
        batches = len(kwargs["train_dataloader"])
        steps_per_epoch = max(1, math.ceil(batches / args.gradient_accumulation_steps))
        self._dataset.skip(state.global_step % steps_per_epoch * args.gradient_accumulation_steps)
