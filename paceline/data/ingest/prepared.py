"""PreparedDataset: a dataset that is ready for workers. Everything that takes a look at all rows has been done."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.data.ingest.epoch_order import EpochOrder, Shuffle
from paceline.data.ingest.position import Progress, Uneven
from paceline.data.plan import Plan
from paceline.data.sources.shuffled import RowShuffled


@dataclass(frozen=True)
class PreparedDataset:
    """What a worker needs to read its share."""

    name: str
    plan: Plan
    """Its blocks' rows are known; it is not shuffled itself."""
    split: bool
    """Each worker has its share; otherwise each one has everything."""
    uneven: Uneven = "all"
    shuffle: Shuffle = "none"
    seed: int = 0
    mark: int = 0
    """Stands for all seeds inside the plan."""

    @property
    def rows(self) -> int:
        return sum(self.plan.row_counts())

    @property
    def blocks(self) -> int:
        return len(self.plan.blocks())

    def misfit(self, position: Progress) -> str | None:
        """Why a position was not taken in this dataset; None if it may have been."""
        return position.misfit(self.rows, self.blocks, self.shuffle, self.mark)

    def plan_of(self, seed: int, epoch: int) -> Plan:
        """The plan whose blocks `order_of` counts."""
        if self.shuffle == "rows":
            return Plan(RowShuffled(self.plan.source, seed).for_epoch(epoch), self.plan.operations)
        return self.plan.for_epoch(epoch)

    def order_of(self, seed: int, epoch: int) -> EpochOrder:
        """The order of the rows in one epoch."""
        return EpochOrder(tuple(self.plan_of(seed, epoch).row_counts()), self.shuffle, seed, epoch)
