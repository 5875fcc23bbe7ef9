"""A worker's part of a dataset as Lightning takes data, and the passes over it kept in step with Lightning's epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.data.epochs import DEFAULT_BATCH_ROWS, BatchIterable

if TYPE_CHECKING:
    from paceline.data.iterator import DataIterator


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
