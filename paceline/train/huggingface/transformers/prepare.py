"""prepare_trainer: a `transformers.Trainer` of the user's own, inside of a train function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    import transformers


def prepare_trainer(trainer: transformers.Trainer) -> transformers.Trainer:
    """Make the trainer fit into a train function of TorchTrainer; returns it.

        def train_func():
            train = paceline.train.get_dataset_shard("train")
            trainer = transformers.Trainer(
                model, args, train_dataset=train.iter_torch_batches(batch_size=8), callbacks=[ReportCallback()]
            )
            prepare_trainer(trainer).train()

    Its datasets may be what `iter_torch_batches()` of a shard gives: complete batches, of the size
    given there. Each worker evaluates all batches of its own. Datasets of other kinds are dealt out by Transformers as
    always. Arguments with which logs, evaluations and checkpoints would not come together are refused.
    """
    from transformers import Trainer

    from paceline.data.iteration.batches import BatchIterable
    from paceline.train.huggingface.transformers.datasets import ReadyBatches

    if not isinstance(trainer, Trainer):
        raise ConfigError(f"prepare_trainer() takes a transformers.Trainer, not {type(trainer).__name__}.")
    if isinstance(trainer.train_dataset, BatchIterable):
        trainer.train_dataset = ReadyBatches(trainer.train_dataset)
    if isinstance(trainer.eval_dataset, BatchIterable):
        trainer.eval_dataset = ReadyBatches(trainer.eval_dataset)
    fit_into_run(trainer)
    return trainer


def fit_into_run(trainer: transformers.Trainer) -> None:
    """Check the trainer's arguments, and let it use datasets of the run as they are meant."""
    from paceline.train.huggingface.transformers.datasets import EvaluationRows, Resumable
    from paceline.train.huggingface.transformers.loaders import let_accelerate_keep
    from paceline.train.huggingface.transformers.skipping import SkipTrained
    from paceline.train.huggingface.transformers.strategies import check_loading, check_strategies

    check_strategies(trainer.args)
    if any(isinstance(each, Resumable | EvaluationRows) for each in (trainer.train_dataset, trainer.eval_dataset)):
        check_loading(trainer.args)
        let_accelerate_keep(trainer)
    if isinstance(trainer.train_dataset, Resumable):
        trainer.add_callback(SkipTrained(trainer.train_dataset))
    _leave_reporting_to_the_run(trainer)


def _leave_reporting_to_the_run(trainer: transformers.Trainer) -> None:
    """Callbacks of other loggers would report from every worker's copy of the trainer, beside the run's own."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for kind in INTEGRATION_TO_CALLBACK.values():
        trainer.remove_callback(kind)
