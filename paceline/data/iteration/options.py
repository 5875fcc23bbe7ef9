"""The settings of iter_batches and its relatives, checked where they were written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.air.checks import whole_number
from paceline.air.errors import ConfigError

DEFAULT_BATCH_ROWS = 256


@dataclass(frozen=True)
class BatchOptions:
    """How rows are cut into batches."""

    batch_size: int | None = DEFAULT_BATCH_ROWS
    """Rows of a batch; None: as they come."""
    prefetch_batches: int = 1
    """How many batches are read ahead; 0: nothing is read before it is asked for."""
    drop_last: bool = False
    window: int = 0
    """Rows of the local shuffle window; 0: no local shuffle."""
    window_seed: int | None = None
    most_rows: int | None = None
    """No more than these will be asked for: reading more at a time would be wasted."""
    read_ahead: bool = False
    """Whoever takes the batches takes them before they are used, nobody knows how many."""

    @classmethod
    def checked(
        cls,
        batch_size: Any,
        prefetch_batches: Any,
        drop_last: Any,
        local_shuffle_buffer_size: Any,
        local_shuffle_seed: Any,
    ) -> BatchOptions:
        """Options from the user's arguments, as plain numbers: some of them become part of stored positions."""
        if batch_size is not None:
            batch_size = whole_number(batch_size, "batch_size", least=1)
        prefetch_batches = whole_number(prefetch_batches, "prefetch_batches", least=0)
        window = 0
        if local_shuffle_buffer_size is not None:
            window = whole_number(local_shuffle_buffer_size, "local_shuffle_buffer_size", least=1)
            if batch_size is not None and window < batch_size:
                raise ConfigError(
                    f"local_shuffle_buffer_size is {window}, less than batch_size={batch_size}: "
                    "rows are shuffled within that buffer, so make it several times the batch."
                )
        if local_shuffle_seed is not None:
            local_shuffle_seed = whole_number(local_shuffle_seed, "local_shuffle_seed", least=0, most=2**63 - 1)
        return cls(batch_size, prefetch_batches, bool(drop_last), window, local_shuffle_seed)
