"""A local shuffle: rows of a worker's share, shuffled within consecutive windows.

The order of a window is a function of (seed, epoch, first position of the share, window), so that any
place in it can be found again without having read what came before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.data.ingest import ranges as rs
from paceline.data.ingest.ranges import Ranges


@dataclass(frozen=True)
class LocalShuffle:
    """How rows are shuffled within a share; window=0: not at all."""

    window: int = 0
    seed: int = 0

    def order(self, share: Ranges, epoch: int, first_window: int = 0) -> Callable[[int, int], np.ndarray]:
        """A function (window, rows) -> order of the window's rows, counting windows from `first_window`."""
        start = share[0][0] if share else 0

        def of(window: int, rows: int) -> np.ndarray:
            keys = np.random.SeedSequence([self.seed % 2**64, epoch, start, first_window + window])  # none is negative
            return np.random.Generator(np.random.PCG64(keys)).permutation(rows)

        return of

    def first(self, share: Ranges, rows: int, epoch: int) -> Ranges:
        """The positions of a share that come out first."""
        total = rs.length(share)
        rows = min(rows, total)
        if not self.window or rows == total:
            return rs.part(share, 0, rows)
        whole, begun = divmod(rows, self.window)
        done = rs.part(share, 0, whole * self.window)
        if not begun:
            return done
        start = whole * self.window
        order = self.order(share, epoch, whole)(0, min(self.window, total - start))
        return rs.joined((*done, *rs.at(share, (start + order[:begun]).tolist())))
