"""LightningLoop: what each worker of a LightningTrainer runs."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from paceline.air.errors import DataError
from paceline.air.session import active, get_checkpoint
from paceline.data.epochs import DEFAULT_BATCH_ROWS, BatchIterable
from paceline.train.lightning.checkpoint import LightningCheckpoint, check_is_plain
from paceline.train.lightning.packages import derived_classes, lightning
from paceline.train.lightning.settings import STRATEGIES, as_list
from paceline.train.lightning.strategies import prepare_trainer, worker_session
from paceline.train.torch.devices import main_device

if TYPE_CHECKING:
    from paceline.air.session import SessionProtocol
    from paceline.data.iterator import DataIterator
    from paceline.train.lightning.settings import LightningSettings

ARGUMENT_OF_DATASET = {"train": "train_dataloaders", "val": "val_dataloaders"}


class LightningLoop:
    """Makes the module and the Lightning Trainer, and fits; goes on from the run's checkpoint if there is one."""

    def __init__(
        self,
        settings: LightningSettings,
        datasets: tuple[str, ...],
        iter_options: Mapping[str, Any],
        trusts_own_checkpoints: bool,
    ) -> None:
        self._settings = settings
        self.fit_args = {**settings.fit_args}
        path = settings.fit_args.get("ckpt_path")
        if path is not None and os.path.exists(path):  # workers have directories of their own
            self.fit_args["ckpt_path"] = os.path.abspath(path)
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
        with ExitStack() as stack:
            stack.enter_context(quiet_lightning())
            trainer = self._trainer(saver)
            if saver.clears_files and trainer.is_global_zero:
                stack.callback(shutil.rmtree, saver.dirpath, ignore_errors=True)  # the run has what was in it
            trainer.fit(module, **self._fit_arguments(trainer, session, stack))
        if saver.stopped is not None:
            raise saver.stopped

    def _saver(self) -> Any:
        """Saves where the next attempt will save too: Lightning then remembers which were the best."""
        arguments = self._settings.checkpoint_args if self._settings.saves else {"save_top_k": 0}
        own = {"dirpath": os.path.join(os.getcwd(), ".lightning-checkpoints")}  # a name that no module writes to
        saver = derived_classes(self._settings.package).ReportingModelCheckpoint(**{**own, **arguments})
        saver.clears_files = arguments.get("dirpath") is None
        return saver

    def _trainer(self, saver: Any) -> Any:
        classes, settings = derived_classes(self._settings.package), self._settings
        strategy = getattr(classes, STRATEGIES[settings.strategy])
        arguments = {
            "default_root_dir": os.getcwd(),
            "accelerator": "cpu" if main_device().type == "cpu" else "gpu",
            **settings.trainer_args,
            "callbacks": [*as_list(settings.trainer_args.get("callbacks")), saver],
            "plugins": [*as_list(settings.trainer_args.get("plugins")), classes.LightningEnvironment()],
            "strategy": strategy(**settings.strategy_args),
            "devices": "auto",
            "enable_checkpointing": True,
        }
        return prepare_trainer(lightning(settings.package).Trainer(**arguments))

    def _fit_arguments(self, trainer: Any, session: SessionProtocol, stack: ExitStack) -> dict[str, Any]:
        arguments = dict(self.fit_args)
        for name, argument in ARGUMENT_OF_DATASET.items():
            if name in self._datasets:
                arguments[argument] = ShardLoader(session.get_dataset_shard(name), self._iter_options)
                _check_equal_lengths(name, len(arguments[argument]))
        checkpoint = get_checkpoint()
        if checkpoint is not None:
            path = stack.enter_context(LightningCheckpoint.from_checkpoint(checkpoint).as_lightning_file())
            plain = arguments.get("weights_only") is not False and not self._is_own_checkpoint(session)
            if plain:
                check_is_plain(path, "LightningConfigBuilder().fit_params(weights_only=False)")
            arguments["ckpt_path"] = path
            if "weights_only" in inspect.signature(trainer.fit).parameters:  # Lightning 2.6 and later ask
                arguments["weights_only"] = plain
        return arguments

    def _is_own_checkpoint(self, session: SessionProtocol) -> bool:
        """This run has made it. Otherwise it was given, or is of a run that was restored from files."""
        return self._trusts_own_checkpoints and session.rows_before > 0


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


def warn_if_nothing_was_left(trainer: Any) -> None:
    """For a fit that trained on no batch: Lightning ends it in silence if what it goes on from has come to the limit.

    After a failure that may be so, and the run has its rows.
    """
    session = active()
    if session.rows_before:
        return
    for argument, unit, done in (
        ("max_epochs", "epochs", trainer.current_epoch),
        ("max_steps", "steps", trainer.global_step),
    ):
        limit = getattr(trainer, argument)
        if limit is not None and 0 < limit <= done:
            session.warn(
                f"Nothing was left to train: the checkpoint that training continues from has {done} {unit}, and "
                f"Trainer({argument}={limit}) counts them too. To train further, give a larger {argument}."
            )
            return


_ONLY_OUR_SAVER_IS_MISSING = r".*Please add the following callbacks: \[[\"']ReportingModelCheckpoint\{[^{}]*\}[\"']\]"


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without the tip for a logging service, and PyTorch's word that Lightning uses an old function.

    Also without its wish for the ModelCheckpoint that saved what a run goes on from: other rules for saving may be
    given, and which checkpoints were the best in another run is not asked for.
    """
    from lightning_utilities.core import rank_zero

    rank_zero.log.addFilter(_is_no_tip)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", _ONLY_OUR_SAVER_IS_MISSING)
            yield
    finally:
        rank_zero.log.removeFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "litlogger" not in str(record.msg)


# -- data ------------------------------------------------------------------------------------------
# A worker's part of a dataset as Lightning takes data, and the passes over it kept in step with Lightning's epochs.


class ShardLoader:
    """Each pass over it is the next epoch. It has a length, and every rank the same one where rows are dealt equally.

    The run stores the position in a shard with each checkpoint, and puts the shard there again. Whether training goes
    on within that pass or begins an epoch is Lightning's decision: it calls `load_state_dict` in the first case only.
    """

    def __init__(self, shard: DataIterator, options: Mapping[str, Any]) -> None:
        self._shard = shard
        self._batches = shard.iter_torch_batches(**options)
        self._batch_size = options.get("batch_size", DEFAULT_BATCH_ROWS)
        self._drops_last = bool(options.get("drop_last", False))
        self._goes_on = False
        self.counts_anew = False
        """Lightning's number of batches that are done is not one of these batches: others were in them."""

    def __iter__(self) -> Iterator[Any]:
        """A generator: Lightning calls iter() early, to see whether it can, and knows only later where it goes on."""
        if not self._goes_on and self._is_begun():
            for _ in self._batches:  # the rest of a pass that Lightning does not go on with: it is left
                break
        self._goes_on = True
        yield from self._batches

    def __len__(self) -> int:
        return len(self._batches)

    def batches_left(self) -> int:
        """Of the pass that is gone on with."""
        rows = self._shard.rows_left()
        return int(rows // self._batch_size if self._drops_last else -(-rows // self._batch_size))

    def end_pass(self) -> None:
        self._batches.end_pass()

    def state_dict(self) -> dict[str, Any]:
        return {"batches": len(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._goes_on = True
        self.counts_anew = state.get("batches") != len(self) or not self._is_begun()

    def _is_begun(self) -> bool:
        return bool(self._shard.state_dict()["legs"])


def end_train_pass(trainer: Any) -> None:
    """When an epoch ends: it may leave rows (`limit_train_batches`), which are not the next one's.

    With `max_steps` Lightning goes on within an epoch that it has stopped in, and so does the pass.
    """
    if trainer.is_last_batch or trainer.max_steps == -1:
        _end_passes(trainer.train_dataloader)


def end_validation_pass(trainer: Any) -> None:
    """When a validation or the check before training ends: the next one begins with the first row again."""
    _end_passes(trainer.val_dataloaders)


def count_anew(trainer: Any) -> None:
    """With other workers or another batch size, an epoch that is gone on with has as many batches as rows are left.

    Lightning counts batches, and has no public name for where it is in an epoch.
    """
    loader, progress = trainer.train_dataloader, trainer.fit_loop.epoch_loop.batch_progress
    if not isinstance(loader, ShardLoader) or not loader.counts_anew:
        return
    batches = int(trainer.num_training_batches)
    done = batches if progress.is_last_batch else max(0, batches - loader.batches_left())
    now = progress.current
    under_way = now.ready - now.completed  # 1 where the checkpoint was made at the end of a batch
    now.ready = now.started = now.processed = done
    now.completed = done - under_way


def _end_passes(loaders: Any) -> None:
    """Of all that are shards; `loaders` is what the user gave, maybe several in a dict or list."""
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    if isinstance(loaders, list | tuple):
        for each in loaders:
            _end_passes(each)
    elif isinstance(loaders, ShardLoader | BatchIterable):
        loaders.end_pass()
