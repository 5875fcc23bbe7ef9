"""What becomes of a run, as values. Whoever decides returns one of them; only the run acts on it.

Deciders are asked after each row of rank 0, and between rows. All of them see every row, because some keep a
history; of what they say the strongest counts: Stop, then Restart, then Wait, then Continue.
"""

from __future__ import annotations

import signal
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.result import Status
    from paceline.run.checkpoint_keeper import CheckpointKeeper
    from paceline.run.spec import RunSpec
    from paceline.run.stoppers import Stopper

PREEMPTION_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""What batch systems and clouds send before they take a machine away."""

INTERRUPT_WAIT_S = 30.0
"""How long a run that was asked to stop waits for its ranks to reach their next report."""
KILLED = "Workers did not end within their grace period and were killed."
"""The warning of a run whose ranks did not."""


@dataclass(frozen=True)
class Donor:
    """Another run, whose state is taken over."""

    name: str
    checkpoint: Checkpoint
    row: Mapping[str, Any]
    """The row that the checkpoint was reported with."""
    release: Callable[[], None]
    """To be called when the checkpoint has been copied: until then the donor keeps it."""


@dataclass(frozen=True)
class Change:
    """What differs between the last attempt of a run and its next one."""

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

    def drop(self) -> None:
        """It will not be made."""
        if self.donor is not None:
            self.donor.release()


@dataclass(frozen=True)
class Continue:
    """The workers get their answer and continue."""

    strength: ClassVar[int] = 0


@dataclass(frozen=True)
class Wait:
    """Nothing happens until it is decided how the run continues."""

    strength: ClassVar[int] = 1
    keeps_workers: bool = True
    """They wait inside report(). Otherwise they end, and others start after the newest checkpoint."""


@dataclass(frozen=True)
class Restart:
    """The workers end after this row, and others start."""

    strength: ClassVar[int] = 2
    change: Change = field(default_factory=Change)


@dataclass(frozen=True)
class Stop:
    """Every rank ends after the same report, and the run is over."""

    strength: ClassVar[int] = 3


Decision = Continue | Wait | Restart | Stop
CONTINUE = Continue()


def strongest(decisions: Iterable[Decision]) -> Decision:
    """The one that counts; the first of several that are equally strong."""
    chosen: Decision = CONTINUE
    for decision in decisions:  # for every row: no sorting
        if decision.strength > chosen.strength:
            chosen = decision
    return chosen


class Decider(ABC):  # noqa: B024 - each method has an answer that suits most
    """Says what becomes of a run. It must not call the run: that one acts on what is returned."""

    @property
    def may_decide(self) -> bool:
        """Whether a row can be the last, so that ranks must wait for the answer to each."""
        return False

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> Decision:
        """Rank 0's row of a report is complete, and so is its checkpoint, if it came with one."""
        return CONTINUE

    def between_rows(self) -> Decision:
        """Asked again and again, even though no row arrives."""
        return CONTINUE

    def remark(self, last_row: Mapping[str, Any]) -> str | None:
        """What the user should know about the decisions when the run is over."""
        return None


class AllDeciders(Decider):
    """Asks several, in order."""

    def __init__(self, *deciders: Decider) -> None:
        self._deciders = deciders
        # Rows are many: those who do not look at them need not be asked.
        self._of_rows = [each for each in deciders if type(each).after_row is not Decider.after_row]

    @property
    def may_decide(self) -> bool:
        return any(decider.may_decide for decider in self._deciders)

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> Decision:
        if not self._of_rows:
            return CONTINUE
        return strongest([decider.after_row(index, row, has_checkpoint) for decider in self._of_rows])

    def between_rows(self) -> Decision:
        return strongest([decider.between_rows() for decider in self._deciders])

    def remark(self, last_row: Mapping[str, Any]) -> str | None:
        return next(filter(None, [decider.remark(last_row) for decider in self._deciders]), None)


class StopperDecider(Decider):
    """What `RunConfig(stop=...)` says about a run that is alone."""

    def __init__(self, stopper: Stopper, trial_id: str) -> None:
        self._stopper = stopper
        self._trial_id = trial_id

    @property
    def may_decide(self) -> bool:
        return True

    def after_row(self, index: int, row: dict[str, Any], has_checkpoint: bool) -> Decision:
        return Stop() if self._stopper(self._trial_id, row) or self._stopper.stop_all() else CONTINUE

    def between_rows(self) -> Decision:
        return Stop() if self._stopper.stop_all() else CONTINUE

    def remark(self, last_row: Mapping[str, Any]) -> str | None:
        return self._stopper.never_reported(self._trial_id, last_row)


@dataclass
class StopRequest(Decider):
    """A stop that somebody has asked for: a signal, or the search that the run belongs to.

    It does not depend on a row, and ranks may have run ahead: all are held at their next report, and end at the first
    one that none has passed.
    """

    wanted: bool = False
    interrupted: bool = False
    """It is the driver that ends, not the training, which can be continued."""
    preempted: bool = False
    """The search that the run belongs to got a signal that means a preemption."""
    signal: int | None = None
    asked_by: str = ""
    """Who asked from outside for the same as a signal does."""
    asked_in_debugger: bool = False
    """The user asked for it in the debugger, so no message is needed."""
    within_s: float = INTERRUPT_WAIT_S
    """Ranks that do not report in this time are ended without."""

    @property
    def pending(self) -> bool:
        return self.wanted or self.signal is not None

    @property
    def preempts(self) -> bool:
        """Ranks that ask are to save before they stop."""
        return self.preempted or self.signal in PREEMPTION_SIGNALS

    @property
    def status(self) -> Status:
        """How a run ends that ends well."""
        return "interrupted" if self.interrupted or self.signal is not None else "finished"

    def between_rows(self) -> Decision:
        return Stop() if self.pending else CONTINUE
