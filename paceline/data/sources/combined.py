"""What sources that are made of other plans have in common."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

from paceline.data.block import Source

if TYPE_CHECKING:
    from paceline.data.plan import Plan


class CombinedSource(Source):
    """Base: what it passes on from `children`, it passes on as it is."""

    def __init__(self, children: tuple[Plan, ...]) -> None:
        self.children = children

    @property
    def child(self) -> Plan:
        """The only one, or the first."""
        return self.children[0]

    @property
    def fresh(self) -> bool:  # type: ignore[override]
        return all(child.fresh for child in self.children)

    @property
    def native(self) -> bool:  # type: ignore[override]
        return all(child.native for child in self.children)

    @property
    def worker_share(self) -> bool:  # type: ignore[override]
        return any(child.worker_share for child in self.children)

    def skipped(self) -> list[str]:
        return [line for child in self.children for line in child.skipped()]

    def input_files(self) -> list[str]:
        return list(dict.fromkeys(file for child in self.children for file in child.input_files()))

    def seeds(self) -> tuple[int, ...]:
        return tuple(seed for child in self.children for seed in child.seeds())

    def resolved(self) -> Self:
        return self._over(tuple(child.resolved() for child in self.children))

    def for_epoch(self, epoch: int) -> Self:
        return self._over(tuple(child.for_epoch(epoch) for child in self.children))

    def _over(self, children: tuple[Plan, ...]) -> Self:
        """The same with other children; what has been found out is kept."""
        if all(new is old for new, old in zip(children, self.children, strict=True)):
            return self
        twin = copy.copy(self)
        twin.children = children
        return twin
