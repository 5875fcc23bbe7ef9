"""prepare_trainer: a `transformers.Trainer` of the user's own, inside of a train function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.air import session
from paceline.air.errors import ConfigError

if TYPE_CHECKING:
    import transformers

    from paceline.data.epochs import BatchIterable
    from paceline.train.huggingface.transformers.datasets import Evaluation


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
    other kinds are dealt out by Transformers as always.
    """
    from transformers import Trainer

    from paceline.data.epochs import BatchIterable
    from paceline.train.huggingface.transformers.datasets import ReadyBatches

    if not isinstance(trainer, Trainer):
        raise ConfigError(f"prepare_trainer() takes a transformers.Trainer, not {type(trainer).__name__}.")
    if isinstance(trainer.train_dataset, BatchIterable):
        batch_size = _batch_size(trainer.train_dataset, "training")
        trainer.train_dataset = ReadyBatches(trainer.train_dataset, batch_size)
        # The trainer counts rows by these two.
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = batch_size
    if isinstance(trainer.eval_dataset, BatchIterable):
        trainer.eval_dataset = _evaluation_of(trainer.eval_dataset, trainer.args)
    fit_into_run(trainer)
    return trainer


def _batch_size(batches: BatchIterable[Any], use: str) -> int:
    if batches.options.batch_size is None:
        raise ConfigError(
            f"prepare_trainer(): the batches of the {use} set have no size, so the trainer cannot count them. Use "
            "iter_torch_batches(batch_size=8), or another number of rows."
        )
    return batches.options.batch_size


def _evaluation_of(batches: BatchIterable[Any], args: transformers.TrainingArguments) -> Evaluation:
    from paceline.train.huggingface.transformers.datasets import ReadyEvaluation, shard_behind

    shard, batch_size = shard_behind(batches), _batch_size(batches, "evaluation")
    if shard is None:
        raise ConfigError(
            "prepare_trainer(): the batches of the evaluation set come from a dataset of which every worker would "
            "evaluate all rows. Give it to TorchTrainer(datasets=...), and use "
            "get_dataset_shard(name).iter_torch_batches(): then the workers share it."
        )
    if shard.is_split and shard.workers > 1:
        raise ConfigError(
            "prepare_trainer(): the evaluation set is split over the workers. They may have unequally many batches, "
            "and would wait for each other for ever. Leave it out of what is split "
            "(DataConfig(datasets_to_split=...)): its batches are shared among the workers."
        )
    args.per_device_eval_batch_size = batch_size  # the trainer weighs the losses of batches by it
    return ReadyEvaluation(batches, batch_size)


def fit_into_run(trainer: transformers.Trainer) -> None:
    """Check that the trainer trains together with the other workers, on the rows that it is meant to train on."""
    from paceline.train.huggingface.transformers.datasets import Evaluation, Resumable
    from paceline.train.huggingface.transformers.loaders import SkipTrained, take_as_meant
    from paceline.train.huggingface.transformers.training_arguments import check_loading

    _check_that_all_train_together(trainer.args)
    _check_that_no_shard_is_inside(trainer.train_dataset)
    if isinstance(trainer.train_dataset, Resumable):
        trainer.args.ignore_data_skip = False  # a dataset of the run stands behind those rows: nothing is read for it
        trainer.add_callback(SkipTrained(trainer.train_dataset))
    evaluated = trainer.eval_dataset
    evaluation_sets = list(evaluated.values()) if isinstance(evaluated, dict) else [evaluated]
    if any(isinstance(each, Resumable | Evaluation) for each in (trainer.train_dataset, *evaluation_sets)):
        check_loading(trainer.args)
        take_as_meant(trainer)


def _check_that_all_train_together(args: transformers.TrainingArguments) -> None:
    """Workers that do not know of each other would each train a model of their own, and one of them be kept."""
    active = session.current()
    if active is not None and active.world_size != args.world_size:
        raise ConfigError(
            f"The run has {active.world_size} worker(s), but TrainingArguments found {args.world_size} process(es): "
            "each worker would train on its own. Make the arguments in the function that runs on the workers, and "
            "do not change RANK, WORLD_SIZE, ACCELERATE_USE_CPU or Accelerate's state there."
        )


def _check_that_no_shard_is_inside(dataset: Any) -> None:
    """Accelerate lets rank 0 read an iterable dataset for all ranks: the parts of the others would never be read."""
    from torch.utils.data import IterableDataset

    from paceline.train.huggingface.transformers.datasets import Resumable

    if not isinstance(dataset, IterableDataset) or isinstance(dataset, Resumable):
        return
    shards = getattr(session.current(), "shards", {})
    split = [name for name, shard in shards.items() if shard.is_split and shard.workers > 1]
    if split:
        raise ConfigError(
            f"train_dataset is a {type(dataset).__name__}, which rank 0 would read for all workers, and the dataset "
            f"{split[0]!r} of the run is split: the rows of the other workers would never be read. Use "
            f"get_dataset_shard({split[0]!r}).iter_torch_batches(batch_size=..., collate_fn=...) itself as "
            "train_dataset, and change rows with map_batches() of the dataset. To train on data of your own, leave out "
            f"{split[0]!r} in datasets=."
        )
