"""What a training of the backend contract tells about itself, and what goes wrong in it.

The training belongs to the framework under test and is written the way its users write theirs. It calls
`begin` once, `before_epoch` at the start of every epoch and `end` when it is through, on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline.air import session
from paceline.testing.processes import Marks
from paceline.testing.scripts import ACTIONS, Action


@dataclass(frozen=True)
class Lesson:
    """One training of so many epochs, counted from 1."""

    marks: str
    epochs: int
    sum_over_ranks: Callable[[float], float]
    """A collective of the framework."""
    mishaps: tuple[Action | None, ...] = ()
    """What goes wrong in each attempt: on its rank, at the start of its epoch, with all others in a collective."""
    others_train: bool = False
    """True: the others meet the mishap in the epoch's own collectives; False: in `sum_over_ranks`."""

    def begin(self, done: int) -> None:
        """The workers are connected; `done` is the number of epochs that the checkpoint has behind it."""
        rank = session.get_world_rank()
        total = self.sum_over_ranks(rank + 1.0)
        Marks(self.marks).say("begun", rank=rank, done=done, total=float(total), pid=os.getpid())

    def before_epoch(self, epoch: int) -> None:
        marks, rank = Marks(self.marks), session.get_world_rank()
        attempt = len(marks.read("begun", rank=rank)) - 1
        marks.say("epoch", rank=rank, epoch=epoch, attempt=attempt)
        mishap = self.mishaps[attempt] if attempt < len(self.mishaps) else None
        if mishap is None or mishap.iteration != epoch:
            return
        if rank == mishap.rank:
            marks.wait("in a collective", session.get_world_size() - 1, attempt=attempt)
            marks.say("mishap", attempt=attempt)
            ACTIONS[mishap.do](mishap.argument)
        else:
            marks.say("in a collective", rank=rank, attempt=attempt)
            if not self.others_train:
                self.sum_over_ranks(1.0)

    def end(self, weights: Iterable[float]) -> None:
        """The last epoch is over; `weights` are all of the model's."""
        Marks(self.marks).say("end", rank=session.get_world_rank(), weights=[float(weight) for weight in weights])
