"""TransformersTrainer: a `transformers.Trainer` on every worker, trained together."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, MissingDatasetError
from paceline.train.arguments import DataParallelArguments, chosen_config, config_as
from paceline.train.huggingface.backend import TransformersConfig
from paceline.train.huggingface.transformers.loop import EVALUATION_DATASET_KEY, TransformersLoop
from paceline.train.torch.backend import TorchConfig
from paceline.train.torch.trainer import TorchTrainer

if TYPE_CHECKING:
    from paceline.air.config import DatasetConfig
    from paceline.run.spec import RunSpec

_DATASETS = (TRAIN_DATASET_KEY, EVALUATION_DATASET_KEY)


class TransformersTrainer(TorchTrainer):
    """Trains the `transformers.Trainer` that a function makes, on every worker, with DistributedDataParallel.

        def trainer_init_per_worker(train_dataset, eval_dataset, **config):
            return transformers.Trainer(
                model=AutoModelForCausalLM.from_config(...),
                args=transformers.TrainingArguments("out", num_train_epochs=3, logging_strategy="epoch", ...),
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
            )

        trainer = TransformersTrainer(
            trainer_init_per_worker, datasets={"train": train, "evaluation": evaluation},
            scaling_config=ScalingConfig(num_workers=2),
        )
        model = trainer.fit().checkpoint.get_model(AutoModelForCausalLM)

    The function gets the datasets "train" and "evaluation" as iterable datasets of torch, and the items of
    `trainer_init_config` as keywords. "train" is split over the workers; its len() is the number of rows of one
    worker. The batches of "evaluation" are shared among the workers, and its metrics are those of one process. Without
    `datasets` the function gets None twice and makes its own, which Transformers deals out as always.

    What the trainer logs is reported, its checkpoints go with it, and the last state is always saved. Logging,
    evaluation and saving must therefore happen at the same steps, or at multiples. Progress bars, printed logs and
    other reporting (`report_to`) of Transformers are off: the run shows its rows, and has loggers of its own.
    """

    _function_argument: ClassVar[str] = "trainer_init_per_worker"
    _config_argument: ClassVar[str] = "trainer_init_config"
    _reports_by_itself: ClassVar[bool] = True
    _not_elastic: ClassVar[str] = "the Hugging Face Trainer counts steps, and their number depends on that of workers"

    def __init__(
        self,
        trainer_init_per_worker: Callable[..., Any],
        *,
        trainer_init_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        torch_config = chosen_config("TransformersTrainer", TorchConfig, torch_config=torch_config)
        if type(torch_config) is TorchConfig:  # one of the user's own says more
            torch_config = config_as(TransformersConfig, torch_config)
        _check_config(trainer_init_config)
        _check_function(trainer_init_per_worker, trainer_init_config or {})
        datasets = common.get("datasets")
        self.trainer_init_per_worker = trainer_init_per_worker
        self.trainer_init_config = trainer_init_config
        super().__init__(
            TransformersLoop(
                trainer_init_per_worker,
                dict(trainer_init_config or {}),
                tuple(datasets) if isinstance(datasets, Mapping) else (),
            ),
            torch_config=torch_config,
            **common,
        )

    def _check_arguments(self) -> None:
        super()._check_arguments()
        unknown = [name for name in self.datasets if name not in _DATASETS]
        if unknown:
            raise ConfigError(
                f"TransformersTrainer(datasets=...) has {unknown[0]!r}: it takes the datasets 'train' and 'evaluation'."
            )
        if self.datasets and TRAIN_DATASET_KEY not in self.datasets:
            raise MissingDatasetError(
                "TransformersTrainer(datasets=...) needs the dataset 'train': pass datasets={'train': ..., "
                "'evaluation': ...}, or no datasets at all if the function makes its own."
            )

    def get_dataset_config(self) -> dict[str, DatasetConfig]:
        configs = super().get_dataset_config()
        train, evaluation = configs.get(TRAIN_DATASET_KEY), configs.get(EVALUATION_DATASET_KEY)
        if train is not None and train.split and train.uneven in ("all", "join", "pad_mask"):
            raise ConfigError(
                f"The dataset 'train' has uneven={train.uneven!r}: a worker with one row more may have one step more "
                "than the others, and wait for them for ever, and the batches are made by Transformers. Use "
                "uneven='equal'."
            )
        if evaluation is not None and evaluation.split:
            raise ConfigError(
                "The dataset 'evaluation' must not be split: every worker reads it and evaluates its share of the "
                "batches, so that metrics are those of the whole. Leave 'evaluation' out of what is split."
            )
        return configs

    def to_run_spec(self) -> RunSpec:
        config = {} if self.trainer_init_config is None else {"trainer_init_config": dict(self.trainer_init_config)}
        return dataclasses.replace(super().to_run_spec(), config=config)


def _check_config(config: object) -> None:
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"trainer_init_config must be a dict, not {type(config).__name__}.")
    for name in config or {}:
        if not isinstance(name, str):
            raise ConfigError(f"trainer_init_config: its items are passed as keywords, so {name!r} must be a string.")


def _check_function(function: object, config: Mapping[str, Any]) -> None:
    """Refuse a function that no worker could call as it will be called."""
    if not callable(function):
        raise ConfigError(
            f"trainer_init_per_worker must be a function, not {type(function).__name__}. It is called in every worker "
            "and returns a transformers.Trainer."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(None, None, **config)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"trainer_init_per_worker is called as {name}(train_dataset, eval_dataset, **trainer_init_config), which "
            f"{name}{signature} does not take: {error}. Write it as def {name}(train_dataset, eval_dataset, **config)."
        ) from None
