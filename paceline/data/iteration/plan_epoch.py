"""One pass over pieces of a plan: reading ahead, then shuffling within windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.data.block import ReadRequest
from paceline.data.execution import chunk_rows_for, usable_cores
from paceline.data.iteration.batch_iterable import Epoch
from paceline.data.iteration.batching import shuffled_windows
from paceline.data.iteration.options import BatchOptions
from paceline.data.iteration.read_ahead import Piece, ReadAhead
from paceline.data.iteration.stats import IterationStats

if TYPE_CHECKING:
    import numpy as np

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


class PlanEpoch(Epoch):
    """Reads the pieces in order."""

    def __init__(
        self,
        plan: Plan,
        pieces: Sequence[Piece],
        options: BatchOptions,
        stats: IterationStats,
        *,
        columns: tuple[str, ...] | None = None,
        window_order: Callable[[int, int], np.ndarray] | None = None,
        window_skip: int = 0,
        threads: int | None = None,
    ) -> None:
        self.fresh = plan.fresh or window_order is not None  # a shuffled window is a copy
        self.stats = stats
        self._options = options
        self._window_order = window_order
        self._window_skip = window_skip
        rows = chunk_rows_for(plan, options.batch_size)
        if options.most_rows is not None:
            rows = max(1, min(rows, options.most_rows))
        if not plan.native:
            threads = 1  # users' functions are not called by several threads at once
        elif threads is None:
            threads = usable_cores()
        ahead = options.prefetch_batches * (options.batch_size or rows)
        self._reader = ReadAhead(
            plan,
            pieces,
            ReadRequest(columns=columns, chunk_rows=rows, times=stats.stages),
            threads=threads if options.prefetch_batches else 0,
            depth=max(1, min(64, ahead // rows)),
        )

    def chunks(self) -> Iterator[Chunk]:
        chunks: Iterator[Chunk] = iter(self._reader)
        if self._window_order is not None:
            chunks = shuffled_windows(chunks, self._options.window, self._window_order, self._window_skip)
        return chunks

    def end(self) -> None:
        self._reader.close()
        self.stats.read_wait_s = self._reader.wait_s
