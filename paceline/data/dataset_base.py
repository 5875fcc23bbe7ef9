"""What all of Dataset's methods stand on: a plan, ways to a new dataset, and names in tracebacks."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Self, TypeVar

from paceline.data.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Source
    from paceline.data.plan import Operation


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


C = TypeVar("C", bound=type)


def named_after_class(cls: C) -> C:
    """Decorates a class that is put together from parts that users do not know.

    A wrong argument is then told as ``Dataset.join() got ...`` and not as ``Combining.join() got ...``. Functions
    are copied, since a part may belong to several classes.
    """
    for part in reversed(cls.__mro__[1:-1]):
        for name, method in vars(part).items():
            if isinstance(method, types.FunctionType) and not name.startswith("_") and name not in vars(cls):
                setattr(cls, name, _renamed(getattr(cls, name), cls))
    return cls


def _renamed(method: types.FunctionType, cls: type) -> types.FunctionType:
    twin = types.FunctionType(
        method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__
    )
    twin.__kwdefaults__ = method.__kwdefaults__
    twin.__doc__, twin.__module__, twin.__annotations__ = method.__doc__, method.__module__, method.__annotations__
    twin.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
    return twin
