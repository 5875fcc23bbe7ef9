"""What a search wants of a run between two of its attempts: to wait, to go on with other settings, or both.

The workers end after the row at which it was decided; the run itself lives on, with its
directory, its rows and its iteration count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.run.checkpoint_keeper import CheckpointKeeper
    from paceline.run.spec import RunSpec


@dataclass(frozen=True)
class Donor:
    """Another trial, whose state is taken over."""

    name: str
    checkpoint: Checkpoint
    row: Mapping[str, Any]
    """The row that the checkpoint was reported with."""
    release: Callable[[], None]
    """To be called when the checkpoint has been copied: until then the donor keeps it."""


@dataclass
class Interlude:
    """The next attempt's settings; changed at will until it starts."""

    waits: bool = False
    """Do not start the next attempt before `Run.resume()`."""
    spec: RunSpec | None = None
    """None: as before."""
    donor: Donor | None = None
    """None: from the run's own newest checkpoint."""

    def take_over(self, keeper: CheckpointKeeper, iteration: int) -> None:
        """Make the donor's checkpoint the newest one of this run, at the iteration that the run has reached."""
        if self.donor is None:
            return
        try:
            keeper.adopt(self.donor.checkpoint, iteration, self.donor.row, self.donor.name)
        finally:
            self.donor.release()
