"""Sources whose rows are computed as a whole, at first need, and kept: sorted rows, groups, joins."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.data.block import Block, ReadRequest, Source
from paceline.data.row_blocks import default_block_rows, row_blocks
from paceline.data.store import StoredSource, stored

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.plan import Plan


class ComputedSource(Source):
    """Base: `children` is what it is computed from, let go of once that has been done.

    Several datasets (epochs, slices) may refer to one such source: it is computed once for all of them.
    """

    def __init__(self, children: tuple[Plan, ...]) -> None:
        self._children = children
        self._seeds = tuple(seed for child in children for seed in child.seeds())
        self._files = list(dict.fromkeys(file for child in children for file in child.input_files()))
        self.worker_share = any(child.worker_share for child in children)
        self._result: StoredSource | None = None
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    @abstractmethod
    def _compute(self) -> StoredSource:
        """All rows of the result."""

    @abstractmethod
    def _schema_before(self) -> pa.Schema | None:
        """The schema if it can be told without computing."""

    @abstractmethod
    def _rows_before(self) -> int | None:
        """How many rows there will be, if that can be told without computing."""

    def resolved(self) -> StoredSource:
        with self._lock:
            if self._result is None:
                result = self._compute()
                result.left_out, result.made_with = self.skipped(), self.seeds()
                self._result, self._children = result, ()
            return self._result

    def schema(self) -> pa.Schema:
        with self._lock:
            schema = self._schema_before() if self._result is None else None
            return schema if schema is not None else self.resolved().schema()

    def blocks(self) -> Sequence[Block]:
        with self._lock:
            rows = self._rows_before() if self._result is None else None
            if rows is None:
                return self.resolved().blocks()
            return row_blocks(self.describe(), rows, default_block_rows(rows))

    def skipped(self) -> list[str]:
        if self._result is not None:
            return self._result.skipped()
        return [line for child in self._children for line in child.skipped()]

    def input_files(self) -> list[str]:
        return self._files

    def seeds(self) -> tuple[int, ...]:
        return self._seeds

    def read(self, block: int, request: ReadRequest) -> Iterator[Chunk]:
        yield from self.resolved().read(block, request)


class KeptSource(ComputedSource):
    """The rows of a plan as they are, within reach."""

    def __init__(self, child: Plan) -> None:
        super().__init__((child,))

    def describe(self) -> str:
        return "materialize"

    def _compute(self) -> StoredSource:
        return stored(self._children[0])

    def _schema_before(self) -> pa.Schema:
        return self._children[0].schema()

    def _rows_before(self) -> int | None:
        return sum(self._children[0].row_counts()) if self._children[0].knows_counts else None
