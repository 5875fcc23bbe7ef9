"""Which pass over each prepared DataLoader comes next: it is saved with checkpoints, as positions in datasets are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_LOADERS = 100
"""A loop that prepares more makes new ones all the time; those have no epoch to continue with."""


class LoaderEpochs:
    """The prepared loaders of one rank, known by the order in which the loop prepares them."""

    def __init__(self, stored: Callable[[], Sequence[int]]) -> None:
        """`stored` gives what was saved with the checkpoint that the rank continues from."""
        self._stored = stored
        self._loaders: list[Callable[[], int]] = []

    def first_epoch(self) -> int:
        """The epoch that the loader prepared next begins with."""
        stored, number = self._stored(), len(self._loaders)
        return stored[number] if number < len(stored) else 0

    def add(self, next_epoch: Callable[[], int]) -> None:
        """`next_epoch` says which epoch a run that continued from here would begin with."""
        if len(self._loaders) < MOST_LOADERS:
            self._loaders.append(next_epoch)

    def now(self) -> list[int]:
        """What to save, in the order of the loaders."""
        return [next_epoch() for next_epoch in self._loaders]
