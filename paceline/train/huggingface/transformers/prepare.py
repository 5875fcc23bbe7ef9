"""prepare_trainer: a `transformers.Trainer` of the user's own, inside of a train function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    import transformers

    from paceline.data.iteration.batches import BatchIterable
    from paceline.train.huggingface.transformers.datasets import Evaluation, ReadyBatches


def prepare_trainer(trainer: transformers.Trainer) -> transformers.Trainer:
    """Make the trainer fit into a train function of TorchTrainer; returns it.

        def train_func():
            train = paceline.train.get_dataset_shard("train")
            trainer = transformers.Trainer(
                model, args, train_dataset=train.iter_torch_batches(batch_size=8), callbacks=[ReportCallback()]
            )
            prepare_trainer(trainer).train()

    Its datasets may be what `iter_torch_batches()` of a shard gives: complete batches, of the size
    given there. Those of an evaluation set are shared among the workers, so it must not be split. Datasets of
    other kinds are dealt out by Transformers as always. Arguments with which logs, evaluations and checkpoints would
    not come together are refused.
    """
    from transformers import Trainer

    from paceline.data.iteration.batches import BatchIterable
    from paceline.train.huggingface.transformers.datasets import ReadyBatches

    if not isinstance(trainer, Trainer):
        raise ConfigError(f"prepare_trainer() takes a transformers.Trainer, not {type(trainer).__name__}.")
    if isinstance(trainer.train_dataset, BatchIterable):
        trainer.train_dataset = ReadyBatches(trainer.train_dataset)
    if isinstance(trainer.eval_dataset, BatchIterable):
        trainer.eval_dataset = _evaluation_of(trainer.eval_dataset, trainer.args)
    fit_into_run(trainer)
    return trainer


def _evaluation_of(batches: BatchIterable[Any], args: transformers.TrainingArguments) -> Evaluation | ReadyBatches:
    from paceline.train.huggingface.transformers.datasets import ReadyBatches, ReadyEvaluation, shard_behind

    shard, batch_size = shard_behind(batches), batches._options.batch_size
    if shard is None or batch_size is None:
        return ReadyBatches(batches)
    if shard.is_split and shard.workers > 1:
        raise ConfigError(
            "prepare_trainer(): the evaluation set is split over the workers. They may have unequally many batches, "
            "and would wait for each other for ever. Leave it out of what is split "
            "(DataConfig(datasets_to_split=...)): its batches are shared among the workers."
        )
    args.per_device_eval_batch_size = batch_size  # the trainer weighs the losses of batches by it
    return ReadyEvaluation(batches, batch_size)


def fit_into_run(trainer: transformers.Trainer) -> None:
    """Check the trainer's arguments, and let it use datasets of the run as they are meant."""
    from paceline.train.huggingface.transformers.datasets import Evaluation, Resumable
    from paceline.train.huggingface.transformers.loaders import let_accelerate_keep
    from paceline.train.huggingface.transformers.skipping import SkipTrained
    from paceline.train.huggingface.transformers.strategies import check_loading, check_strategies

    check_strategies(trainer.args)
    if any(isinstance(each, Resumable | Evaluation) for each in (trainer.train_dataset, trainer.eval_dataset)):
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
