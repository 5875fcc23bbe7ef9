"""PreparedDataset, a dataset that is ready for workers, and what checkpoints say about positions in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.air.errors import DataError
from paceline.data.ingest.epoch_order import EpochOrder, Shuffle
from paceline.data.ingest.position import ReadPosition, Uneven, merged
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

    def misfit(self, position: ReadPosition) -> str | None:
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


RankState = Mapping[str, Mapping[str, Any]]
"""What one rank reports: dataset name -> position."""


def merge_states(ranks: Sequence[RankState | None], split: Mapping[str, bool]) -> dict[str, Any]:
    """What is stored with a checkpoint: one position per dataset, or one per rank where every rank reads everything."""
    stored: dict[str, Any] = {}
    for name, is_split in split.items():
        states = [None if rank is None else rank.get(name) for rank in ranks]
        if is_split:
            whole = merged(states)
            if whole is not None:
                stored[name] = whole
        elif any(state is not None for state in states):
            stored[name] = {"ranks": [None if state is None else dict(state) for state in states]}
    return stored


def state_for(stored: Mapping[str, Any], rank: int, workers: int) -> dict[str, Any] | None:
    """One dataset's stored position as a rank takes it up; None: from the start.

    A dataset that every rank reads whole is taken up where the rank itself was; ranks that are new take rank 0's place.
    """
    if "ranks" not in stored:
        return dict(stored)
    ranks = stored["ranks"]
    same = rank < len(ranks) and len(ranks) == workers and ranks[rank] is not None
    state = ranks[rank] if same else ranks[0]
    return None if state is None else dict(state)


def problem_with(stored: Any, dataset: PreparedDataset) -> str | None:
    """Why a stored position cannot be taken up with this dataset; None if it can."""
    try:
        states = [stored] if "ranks" not in stored else [each for each in stored["ranks"] if each is not None]
        positions = [ReadPosition.from_json(state) for state in states]
    except (DataError, TypeError, AttributeError, KeyError) as error:
        return f"the stored position cannot be read ({error})"
    if dataset.split == ("ranks" in stored):
        then, now = ("whole", "split") if dataset.split else ("split", "whole")
        return f"it was {then} among the workers then and is {now} now"
    problems = (dataset.misfit(position) for position in positions)
    return next((problem for problem in problems if problem is not None), None)
