"""ShardLoader: a worker's part of a dataset, as Lightning takes data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.data.iterator import DataIterator


class ShardLoader:
    """Each pass over it is the next epoch. It has a length, and every rank the same one where rows are dealt equally.

    To Lightning it is a loader that can go on within an epoch: the position is stored with each checkpoint of the run,
    and the pass that was under way goes on from there.
    """

    def __init__(self, shard: DataIterator, options: Mapping[str, Any]) -> None:
        self._batches = shard.iter_torch_batches(**options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The run has put the shard where it was."""
