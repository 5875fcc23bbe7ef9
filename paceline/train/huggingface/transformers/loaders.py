"""The loaders of a `transformers.Trainer` whose datasets come from the run.

Accelerate would let rank 0 read an iterable dataset and send batches to the others, or let every rank read
all of it and drop the rows of the others. Here each worker has its own rows already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from torch.utils.data import DataLoader
from transformers import (  # the first three for the workers, which are forked from a process that has loaded them
    GenerationMixin,  # noqa: F401  (every model that generates text)
    PreTrainedTokenizerFast,  # noqa: F401
    Trainer,  # noqa: F401
    TrainerCallback,
)

from paceline.air.errors import CheckpointError
from paceline.train.huggingface.transformers.datasets import SKIPPED, Evaluation, ReadyBatches, Resumable, WorkerRows

if TYPE_CHECKING:
    import transformers
    from transformers import TrainerControl, TrainerState, TrainingArguments


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


def take_as_meant(trainer: transformers.Trainer) -> None:
    """Let the trainer and its Accelerator take datasets of the run as they are meant; others as always."""
    _keep_loaders(trainer)
    _gather_as_said(trainer)
    _count_rows_of_all(trainer)


def _keep_loaders(trainer: transformers.Trainer) -> None:
    accelerator = trainer.accelerator
    usual: Callable[..., Any] = accelerator.prepare_data_loader

    def prepare_data_loader(loader: Any, *args: Any, **kwargs: Any) -> Any:
        rows = getattr(loader, "dataset", None)
        if isinstance(rows, WorkerRows):
            return training_loader(loader, rows, trainer.args.dataloader_drop_last)
        if isinstance(rows, ReadyBatches):
            return DataLoader(rows, batch_size=None)
        # Metrics that are computed batch by batch are told of one end: that takes Accelerate's own way to fill it up.
        one_end = trainer.args.batch_eval_metrics and accelerator.num_processes > 1
        if isinstance(rows, Evaluation) and not one_end:
            return EvaluationLoader(rows, loader.batch_size, loader.collate_fn, trainer.args)
        return usual(loader, *args, **kwargs)

    accelerator.prepare_data_loader = prepare_data_loader


def _gather_as_said(trainer: transformers.Trainer) -> None:
    """Seq2SeqTrainer gathers all that there is, and would count the rows that fill up the last round several times."""
    usual: Callable[..., Any] = trainer.evaluation_loop

    def evaluation_loop(loader: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(loader, EvaluationLoader) and trainer.gather_function == trainer.accelerator.gather:
            trainer.gather_function = trainer.accelerator.gather_for_metrics
        return usual(loader, *args, **kwargs)

    trainer.evaluation_loop = evaluation_loop  # type: ignore[assignment,method-assign]  # of this trainer only


def _count_rows_of_all(trainer: transformers.Trainer) -> None:
    """len() of such a dataset is that of one worker, or counts batches: speeds would be too low."""
    usual: Callable[..., int] = trainer.num_examples

    def num_examples(loader: Any) -> int:
        rows = getattr(loader, "dataset", None)
        return rows.rows * trainer.args.world_size if isinstance(rows, Resumable) else usual(loader)

    trainer.num_examples = num_examples  # type: ignore[assignment,method-assign]  # the same


def training_loader(loader: DataLoader[Any], rows: WorkerRows, drop_last: bool) -> DataLoader[Any]:
    """A plain loader: it reads no batch ahead, so that the position in the dataset is that of the training."""
    assert loader.batch_size is not None
    rows.batch_size = loader.batch_size
    return DataLoader(
        rows,
        batch_size=loader.batch_size,
        collate_fn=_Collate(loader.collate_fn),
        drop_last=drop_last,
        pin_memory=loader.pin_memory and torch.cuda.is_available(),
    )


class _Collate:
    """Calls the trainer's collator for rows; nothing needs to be made of those that will be passed over."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, rows: list[Any]) -> Any:
        return {} if rows[0] is SKIPPED else self.collate(rows)


class EvaluationLoader(DataLoaderStateMixin):  # type: ignore[misc]  # Accelerate has no types
    """Deals the batches of an evaluation set over the workers, such that metrics are those of a single process.

    Each worker takes every n-th batch; what is gathered from all of them is then in the order of the rows. Full batches
    that are left over go to the first workers, and the last, shorter one to all of them, because what is
    gathered must have one shape. `remainder` tells Accelerate how much of such a round to keep. The loss of a batch is
    the mean over its own tokens meanwhile, not over those of the batches that other workers have at the same time.
    """

    def __init__(
        self,
        dataset: Evaluation,
        batch_size: int,
        collate: Callable[[list[Any]], Any],
        args: transformers.TrainingArguments,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.gradient_state = GradientState()
        self._collate = collate
        self._args = args
        self._rank = args.process_index
        self._workers = args.world_size
        self._rounds, rest = divmod(len(dataset), batch_size * self._workers)
        self._left_over, self._shorter = divmod(rest, batch_size)

    def __len__(self) -> int:
        return int(self._rounds + (self._left_over > 0) + (self._shorter > 0))

    def __iter__(self) -> Iterator[Any]:
        self.reset()
        self.gradient_state._add_dataloader(self)
        over_all = self._args.average_tokens_across_devices
        self._args.average_tokens_across_devices = False
        try:
            for make_batch, kept in self._own_batches():
                self.end_of_dataloader = kept is not None
                self.remainder = -1 if kept is None else kept
                yield make_batch()
        finally:
            self._args.average_tokens_across_devices = over_all
            self.gradient_state._remove_dataloader(self)

    def _own_batches(self) -> Iterator[tuple[Callable[[], Any], int | None]]:
        """The batches of this worker, and how many rows of all workers' batches of that round count; None: all."""
        whole = self._rounds * self._workers
        in_last_round = range(whole - self._workers, whole) if not (self._left_over or self._shorter) else ()
        for number, make_batch in enumerate(self.dataset.batches(self.batch_size, self._collate)):
            if number < whole:
                if number % self._workers == self._rank:
                    yield make_batch, 0 if number in in_last_round else None
            elif number < whole + self._left_over:
                if number - whole == min(self._rank, self._left_over - 1):
                    yield make_batch, self._left_over * self.batch_size
            else:
                yield make_batch, self._shorter
