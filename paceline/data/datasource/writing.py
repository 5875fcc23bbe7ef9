"""write_datasource and write_datasink: the blocks of a dataset, one after the other, to an object of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline.air.errors import ConfigError
from paceline.data.block import ReadRequest
from paceline.data.datasource.datasource import Datasink, TaskContext

if TYPE_CHECKING:
    from paceline.data.plan import Plan


def write_to(plan: Plan, place: Any, write_args: dict[str, Any]) -> None:
    """Every block as tables; `on_write_failed` is called for what fails, which is raised after that."""
    if not callable(getattr(place, "write", None)):
        raise ConfigError(
            f"{type(place).__name__} has no method write(blocks, ctx): derive it from "
            "paceline.data.datasource.Datasink or Datasource."
        )
    results: list[Any] = []
    place.on_write_start(**write_args)
    try:
        # One block at a time: the object need not be safe for threads.
        for block in range(len(plan.blocks())):
            results.append(place.write(_tables(plan, block), TaskContext(block), **write_args))
        place.on_write_complete(results)
    except Exception as error:
        if isinstance(place, Datasink):
            place.on_write_failed(error)
        else:
            place.on_write_failed(results, error)
        raise


def _tables(plan: Plan, block: int) -> Iterator[pa.Table]:
    for chunk in plan.read(block, ReadRequest()):
        yield pa.Table.from_batches([chunk])
