"""TransformersLoop: what every worker of a TransformersTrainer runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import session
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import transformers

    from paceline.data.epochs import BatchIterable
    from paceline.train.huggingface.transformers.datasets import Evaluation, EvaluationRows, WorkerRows


EVALUATION_DATASET_KEY = "evaluation"
_TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class TransformersLoop:
    """Makes the trainer of this worker, and trains it from where the run is."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {
        "make_trainer": "trainer_init_per_worker",
        "config": "trainer_init_config",
    }

    make_trainer: Callable[..., Any]
    config: Mapping[str, Any]
    dataset_names: tuple[str, ...]

    def __call__(self) -> None:
        from paceline.train.huggingface.transformers.callback import Reporter
        from paceline.train.huggingface.transformers.training_arguments import check_strategies

        train, evaluation = self._datasets()
        trainer = _checked_trainer(self.make_trainer(train, evaluation, **self.config), self.make_trainer)
        if train is not None and trainer.train_dataset is not train:
            raise ConfigError(
                f"The trainer's train_dataset is a {type(trainer.train_dataset).__name__}, not the train_dataset that "
                "the function was given. It would be dealt out from rank 0, and the rows of the other workers never be "
                "read. Pass train_dataset as it is; change rows with map_batches() or filter() of the dataset, or in "
                "data_collator. To train on data of your own, leave out datasets=."
            )
        check_strategies(trainer.args)
        fit_into_run(trainer)
        evaluated = trainer.eval_dataset
        reporter = Reporter(train, len(evaluated) if isinstance(evaluated, dict) else 1)
        trainer.add_callback(reporter)
        with _quiet(trainer), _own_directory(trainer.args), ExitStack() as held:
            resumed = held.enter_context(_state_to_resume(trainer))
            reporter.after_first_step = held.close  # it has read all of that: a copy from elsewhere need not stay
            trainer.train(resume_from_checkpoint=resumed)
        if reporter.stopped is not None:
            raise reporter.stopped

    def _datasets(self) -> tuple[WorkerRows | None, EvaluationRows | None]:
        from paceline.train.huggingface.transformers.datasets import EvaluationRows, WorkerRows

        shards = {name: session.get_dataset_shard(name) for name in self.dataset_names}
        train, evaluation = shards.get(TRAIN_DATASET_KEY), shards.get(EVALUATION_DATASET_KEY)
        return (
            None if train is None else WorkerRows(train),
            None if evaluation is None else EvaluationRows(evaluation),
        )


def _checked_trainer(made: Any, function: Callable[..., Any]) -> transformers.Trainer:
    from transformers import Trainer

    if not isinstance(made, Trainer):
        name = getattr(function, "__name__", "trainer_init_per_worker")
        raise ConfigError(f"{name}() returned {type(made).__name__}: it must return the transformers.Trainer.")
    return made


@contextmanager
def _quiet(trainer: transformers.Trainer) -> Iterator[None]:
    """The run shows what is reported, and has loggers: bars and loggers of the trainer would tell it once more."""
    from transformers import PrinterCallback, ProgressCallback
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.trainer import DEFAULT_PROGRESS_CALLBACK  # another one in notebooks
    from transformers.utils import logging

    for kind in (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK, *INTEGRATION_TO_CALLBACK.values()):
        trainer.remove_callback(kind)
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # partly without types
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # the same


@contextmanager
def _own_directory(args: transformers.TrainingArguments) -> Iterator[None]:
    """The trainer saves to the worker's own directory, from where the run takes its checkpoints."""
    active = session.current()
    assert active is not None
    folder = Path(active.trial_dir, f"rank_{active.world_rank}", "transformers")
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed
    folder.mkdir(parents=True)
    args.output_dir = str(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _state_to_resume(trainer: transformers.Trainer) -> Iterator[str | None]:
    """The directory that the trainer shall go on from; None: from the start."""
    from paceline.train.huggingface.transformers.checkpoint import TransformersCheckpoint, files_in

    checkpoint = session.get_checkpoint()
    if checkpoint is None:
        yield None
        return
    with checkpoint.as_directory() as folder:
        files = files_in(folder)
        if (files / _TRAINER_STATE).exists():
            yield str(files)
            return
        if getattr(trainer, "model_init", None) is not None:
            raise CheckpointError(
                f"{checkpoint!r} holds a model, but not how far its training was, and a trainer with model_init= makes "
                "a new model. Use model= in the function that makes the trainer."
            )
        assert trainer.model is not None
        TransformersCheckpoint.from_checkpoint(checkpoint).get_model(trainer.model)
        yield None


# -- a trainer of the user's own, inside of a train function ---------------------------------------


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
