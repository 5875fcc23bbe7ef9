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

    from paceline.train.huggingface.transformers.datasets import EvaluationRows, WorkerRows

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
        from paceline.train.huggingface.transformers.prepare import fit_into_run
        from paceline.train.huggingface.transformers.reporting import Reporter
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
