"""What every part of Dataset's methods stands on: a plan, and ways to a new dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from paceline.data.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Source
    from paceline.data.operation import Operation


class DatasetBase:
    """Holds the plan. Datasets are immutable: every method that changes something gives a new one."""

    def __init__(self, plan: Source) -> None:
        self._plan = plan if isinstance(plan, Plan) else Plan(plan)

    @property
    def plan(self) -> Plan:
        """The source of the rows and the operations on them, read-only."""
        return self._plan

    def _then(self, operation: Operation) -> Self:
        """This dataset with one more operation."""
        return type(self)(self.plan.then(operation))

    def _of(self, source: Source) -> Self:
        """A dataset of another source."""
        return type(self)(source)

    def _known_schema(self) -> pa.Schema | None:
        """The columns, if they can be told without running a function of the user's."""
        schema: pa.Schema | None = self.plan.source.schema()
        for operation in self.plan.operations:
            schema = operation.output_schema(schema)
            if schema is None:
                return None
        return schema if schema is not None and len(schema) else None
