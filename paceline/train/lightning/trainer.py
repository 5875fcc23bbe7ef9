"""LightningTrainer: a LightningModule on all workers."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from paceline.air.checks import near_miss
from paceline.air.config import RunConfig, ScalingConfig
from paceline.air.constants import TRAIN_DATASET_KEY
from paceline.air.errors import ConfigError, MissingDatasetError, RestoreError
from paceline.air.settings import as_json
from paceline.train.arguments import DataParallelArguments
from paceline.train.data_parallel_trainer import DataParallelTrainer
from paceline.train.lightning.backend import backend_config
from paceline.train.lightning.loop import ARGUMENT_OF_DATASET, LightningLoop
from paceline.train.lightning.packages import lightning
from paceline.train.lightning.settings import LightningSettings, checked_settings

if TYPE_CHECKING:
    from paceline.run.spec import RunSpec
    from paceline.train.torch.backend import TorchConfig


class LightningTrainer(DataParallelTrainer):
    """Trains a LightningModule with Lightning's own Trainer on every worker, connected by DDP.

        trainer = LightningTrainer(
            LightningConfigBuilder().module(MyModule, lr=1e-3).trainer(max_epochs=5).build(),
            datasets={"train": train, "val": val},
            datasets_iter_config={"batch_size": 64},
            scaling_config=ScalingConfig(num_workers=2),
        )
        module = trainer.fit().checkpoint.get_model(MyModule)

    Each train epoch is one iteration, with what the module logs, "epoch" and "step". `datasets` "train" and "val"
    become the data of `fit`, in batches by `datasets_iter_config`, the arguments of `iter_torch_batches`; or
    `.fit_params()` has a datamodule or dataloaders, which Lightning deals over the workers.
    """

    _reports_by_itself: ClassVar[bool] = True

    def __init__(
        self,
        lightning_config: Mapping[str, Any] | None = None,
        *,
        torch_config: TorchConfig | None = None,
        datasets_iter_config: Mapping[str, Any] | None = None,
        **common: Unpack[DataParallelArguments],
    ) -> None:
        self.lightning_config = lightning_config
        self.datasets_iter_config = datasets_iter_config
        self._settings = checked_settings({} if lightning_config is None else lightning_config)
        if lightning_config is not None:  # otherwise a search gives it
            _check_module_is_given(self._settings)
        super().__init__(
            _no_function,
            backend_config=backend_config(torch_config, self._settings.package),
            **{**common, "run_config": _with_top_k(common.get("run_config"), self._settings)},
        )
        self.torch_config = torch_config

    def _check_arguments(self) -> None:
        super()._check_arguments()
        _check_data(self._settings, self.datasets, self.datasets_iter_config)
        _check_accelerator(self._settings, self.scaling_config)
        if self.resume_from_checkpoint is not None and self._settings.fit_args.get("ckpt_path") is not None:
            raise ConfigError(
                "resume_from_checkpoint= and .fit_params(ckpt_path=...) are both where training continues from: give "
                "one of them."
            )

    def to_run_spec(self) -> RunSpec:
        _check_module_is_given(self._settings)
        iter_options = self.datasets_iter_config or {}
        made_here = self._restore_path is None and not self._continues_search
        loop = LightningLoop(self._settings, tuple(self.datasets), iter_options, trusts_own_checkpoints=made_here)
        return dataclasses.replace(super().to_run_spec(), train=loop, config=self._shown_config())

    def _shown_config(self) -> dict[str, Any]:
        """What of the settings is plain data, for the files of the run and for people."""
        shown = {"lightning_config": _shown(self._settings)}
        if self.datasets_iter_config is None:
            return shown
        return {**shown, "datasets_iter_config": as_json(dict(self.datasets_iter_config))}

    @classmethod
    def _names_for_restore(cls) -> list[str]:
        return ["lightning_config"]

    def _again(self) -> list[str]:
        options = self.datasets_iter_config
        plain = options is None or as_json(dict(options)) is not None
        names = ["lightning_config", *([] if plain else ["datasets_iter_config"]), *super()._again()]
        return [name for name in names if name != self._function_argument]

    def _code(self) -> Any:
        return self._settings.module

    @classmethod
    def _restored_function(cls, settings: Mapping[str, Any], given: dict[str, Any]) -> None:
        if "lightning_config" not in given:
            raise RestoreError(
                f"{cls.__name__}.restore() needs the module and its settings again, because code is never read from "
                "disk: restore(path, lightning_config=LightningConfigBuilder().module(MyModule)....build())."
            )
        stored = settings["config"] or {}
        if "datasets_iter_config" in given or "datasets_iter_config" not in stored:
            return
        if stored["datasets_iter_config"] is None:
            raise RestoreError(
                "The run's datasets_iter_config holds values that cannot be stored as plain data: pass "
                "datasets_iter_config= to restore() again."
            )
        given["datasets_iter_config"] = stored["datasets_iter_config"]


def _no_function() -> None:
    """Stands where a train function would; the loop of Lightning runs instead."""


def _check_module_is_given(settings: LightningSettings) -> None:
    if settings.module is None:
        raise ConfigError(
            "Which module? Pass LightningTrainer(lightning_config=LightningConfigBuilder().module(MyModule)"
            ".trainer(max_epochs=3).build(), ...)."
        )


def _with_top_k(run_config: Any, settings: LightningSettings) -> Any:
    """The run keeps as many checkpoints as Lightning is told to, unless RunConfig itself says how many."""
    if run_config is not None and not isinstance(run_config, RunConfig):
        return run_config  # refused where all of them are
    config = RunConfig() if run_config is None else copy.copy(run_config)
    kept, arguments = config.checkpoint_config, settings.checkpoint_args
    if kept.num_to_keep is not None or kept.checkpoint_score_attribute is not None:
        return config
    top_k, monitor = arguments.get("save_top_k", 1), arguments.get("monitor")
    if isinstance(top_k, int) and top_k > 0 and ("save_top_k" in arguments or monitor is not None):
        config.checkpoint_config = dataclasses.replace(
            kept,
            num_to_keep=top_k,
            checkpoint_score_attribute=monitor,
            checkpoint_score_order=arguments.get("mode", "min"),
        )
    return config


def _check_data(settings: LightningSettings, datasets: Mapping[str, Any], iter_config: Any) -> None:
    from paceline.data.iterator import DataIterator

    for name, argument in ARGUMENT_OF_DATASET.items():
        for other in (argument, "datamodule"):
            if name in datasets and settings.fit_args.get(other) is not None:
                raise ConfigError(
                    f"datasets={{{name!r}: ...}} and .fit_params({other}=...) are both data for {name!r}: give one of "
                    "them."
                )
    _check_train_data(settings, datasets)
    if iter_config is None:
        return
    if not isinstance(iter_config, Mapping):
        raise ConfigError(
            f"datasets_iter_config is {iter_config!r}: give a dict of arguments of iter_torch_batches, such as "
            "{'batch_size': 64}."
        )
    if not ARGUMENT_OF_DATASET.keys() & datasets.keys():
        raise ConfigError(
            "datasets_iter_config is given, but datasets= has no 'train' or 'val' that it could be used for. For "
            "dataloaders of your own the batch size is theirs."
        )
    known = [name for name in inspect.signature(DataIterator.iter_torch_batches).parameters if name != "self"]
    for name in iter_config:
        if name not in known:
            raise ConfigError(
                f"datasets_iter_config has {name!r}, which iter_torch_batches lacks{near_miss(name, known)}"
            )


def _check_train_data(settings: LightningSettings, datasets: Mapping[str, Any]) -> None:
    """The module may have dataloaders of its own, and they may use datasets by any name."""
    own = settings.fit_args.get("train_dataloaders") is not None or settings.fit_args.get("datamodule") is not None
    if settings.module is None or own or TRAIN_DATASET_KEY in datasets:
        return
    if settings.module.train_dataloader is lightning(settings.package).LightningModule.train_dataloader:
        given = f"datasets= has {', '.join(map(repr, datasets))} only" if datasets else "datasets= is not given"
        raise MissingDatasetError(
            f"LightningTrainer has no data to train on: {given}. Pass datasets={{'train': ..., 'val': ...}} and "
            "datasets_iter_config={'batch_size': 64}, or .fit_params(datamodule=...) or "
            ".fit_params(train_dataloaders=...) of the builder."
        )


def _check_accelerator(settings: LightningSettings, scaling: ScalingConfig) -> None:
    accelerator = settings.trainer_args.get("accelerator", "auto")
    if accelerator in ("gpu", "cuda") and not scaling.use_gpu:
        raise ConfigError(f".trainer(accelerator={accelerator!r}): workers get GPUs by ScalingConfig(use_gpu=True).")
    if accelerator == "cpu" and scaling.use_gpu:
        raise ConfigError(".trainer(accelerator='cpu') and ScalingConfig(use_gpu=True): choose one of the two.")


def _shown(settings: LightningSettings) -> dict[str, Any]:
    shown: dict[str, Any] = {"module": settings.module.__name__ if settings.module is not None else None}
    for part in dataclasses.fields(settings):
        value = getattr(settings, part.name)
        if isinstance(value, Mapping):
            value = {name: each for name, each in value.items() if as_json(each) is not None}
        if value and part.name != "module":
            shown[part.name] = value
    return shown
