"""SkipTrained: brings a dataset of the run to the batch at which the trainer goes on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from paceline.air.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from paceline.train.huggingface.transformers.datasets import Resumable


class SkipTrained(TrainerCallback):
    """At the beginning of a training, sees to it that trainer and dataset go on at the same batch.

    The trainer knows the number of its steps only, and divides it by the steps that an epoch has now. Where an
    epoch had another number of them when the checkpoint was made, it would count wrong: rows would be passed over, or
    the training end early. The dataset knows better, so that is found out here.
    """

    def __init__(self, dataset: Resumable) -> None:
        self._dataset = dataset

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:
            self._dataset.begin_pass()
            return
        per_step, per_epoch = args.gradient_accumulation_steps, len(kwargs["train_dataloader"])
        epoch, steps = divmod(state.global_step, max(1, math.ceil(per_epoch / per_step)))
        if not self._dataset.go_to(epoch, steps * per_step, per_epoch):
            raise CheckpointError(
                f"The checkpoint cannot be resumed with {args.world_size} worker(s), batches of "
                f"{self._dataset.batch_size} rows and gradient_accumulation_steps={per_step}: its step "
                f"{state.global_step} would be another place in the data than it was. It was made with other settings, "
                "and the trainer counts epochs in steps. Use the same ones (after a whole epoch it is enough that an "
                "epoch has as many steps as before), or begin a new training with its weights: "
                "resume_from_checkpoint=TransformersCheckpoint.from_model(checkpoint.get_model(...))."
            )
