"""LightningLoop: what each worker of a LightningTrainer runs."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError
from paceline.air.session import get_checkpoint
from paceline.train.lightning.checkpoint import LightningCheckpoint, check_is_plain
from paceline.train.lightning.data import ShardLoader
from paceline.train.lightning.environment import worker_session
from paceline.train.lightning.packages import derived_classes, lightning
from paceline.train.lightning.prepare import prepare_trainer
from paceline.train.lightning.settings import STRATEGIES
from paceline.train.torch.devices import main_device

if TYPE_CHECKING:
    from paceline.air.session import SessionProtocol
    from paceline.train.lightning.settings import LightningSettings

_ARGUMENT_OF_DATASET = {"train": "train_dataloaders", "val": "val_dataloaders"}


class LightningLoop:
    """Makes the module and the Lightning Trainer, and fits; a checkpoint of the run is gone on from."""

    def __init__(
        self,
        settings: LightningSettings,
        datasets: tuple[str, ...],
        iter_options: Mapping[str, Any],
        trusts_own_checkpoints: bool,
    ) -> None:
        self._settings = settings
        self._datasets = datasets
        self._iter_options = iter_options
        self._trusts_own_checkpoints = trusts_own_checkpoints

    def __call__(self) -> None:
        session = worker_session("LightningTrainer")
        _say_rank(session.world_rank)
        settings = self._settings
        assert settings.module is not None
        module = settings.module(**settings.module_args)
        saver = self._saver()
        trainer = self._trainer(saver)
        try:
            with ExitStack() as stack:
                trainer.fit(module, **self._fit_arguments(trainer, session, stack))
        finally:
            if saver.dirpath is not None and "dirpath" not in settings.checkpoint_args and trainer.is_global_zero:
                shutil.rmtree(saver.dirpath, ignore_errors=True)  # the run has what was in it

    def _saver(self) -> Any:
        """Saves where the next attempt will save too: Lightning then remembers which were the best."""
        arguments = self._settings.checkpoint_args if self._settings.saves else {"save_top_k": 0}
        arguments = {"dirpath": os.path.join(os.getcwd(), "checkpoints"), **arguments}
        return derived_classes(self._settings.package).ReportingModelCheckpoint(**arguments)

    def _trainer(self, saver: Any) -> Any:
        classes, settings = derived_classes(self._settings.package), self._settings
        strategy = getattr(classes, STRATEGIES[settings.strategy])
        arguments = {
            "default_root_dir": os.getcwd(),
            "accelerator": "cpu" if main_device().type == "cpu" else "gpu",
            **settings.trainer_args,
            "callbacks": [*_as_list(settings.trainer_args.get("callbacks")), saver],
            "plugins": [*_as_list(settings.trainer_args.get("plugins")), classes.LightningEnvironment()],
            "strategy": strategy(**settings.strategy_args),
            "devices": "auto",
            "enable_checkpointing": True,
        }
        return prepare_trainer(lightning(settings.package).Trainer(**arguments))

    def _fit_arguments(self, trainer: Any, session: SessionProtocol, stack: ExitStack) -> dict[str, Any]:
        arguments = dict(self._settings.fit_args)
        for name, argument in _ARGUMENT_OF_DATASET.items():
            if name in self._datasets:
                arguments[argument] = ShardLoader(session.get_dataset_shard(name), self._iter_options)
                _check_equal_lengths(name, len(arguments[argument]))
        checkpoint = get_checkpoint()
        if checkpoint is not None:
            path = stack.enter_context(LightningCheckpoint.from_checkpoint(checkpoint).as_lightning_file())
            own = self._trusts_own_checkpoints and Path(path).is_relative_to(session.trial_dir)
            if not own and arguments.get("weights_only") is not False:
                check_is_plain(path, "LightningConfigBuilder().fit_params(weights_only=False)")
            arguments["ckpt_path"] = path
            if "weights_only" in inspect.signature(trainer.fit).parameters:  # Lightning 2.6 and later ask
                arguments["weights_only"] = False
        return arguments


def _check_equal_lengths(dataset: str, batches: int) -> None:
    """A rank with one batch more would wait for the others for ever."""
    import torch.distributed as dist

    counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(counts, batches)
    if len(set(counts)) > 1:
        raise DataError(
            f"The ranks have {', '.join(map(str, counts))} batches of {dataset!r}, and Lightning needs equal numbers: "
            f'LightningTrainer(dataset_config={{{dataset!r}: DatasetConfig(uneven="equal")}}, ...).'
        )


def _say_rank(rank: int) -> None:
    """Lightning asked for it when it was loaded, in a process that had none yet; messages are rank 0's to print."""
    from lightning_utilities.core.rank_zero import rank_zero_only

    rank_zero_only.rank = rank  # type: ignore[attr-defined]  # where Lightning keeps it


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple) else [given]
