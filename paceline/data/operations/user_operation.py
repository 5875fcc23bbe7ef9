"""An operation that runs a user's function, in this process or in a pool of others, and how many these are."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.air.checks import warn_at_users_line, whole_number
from paceline.air.errors import ConfigError
from paceline.air.resources import usable_cores
from paceline.data.operations.user_function import Spot
from paceline.data.plan import BlockPlace, Operation

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.operations.process_pool import ProcessPool
    from paceline.data.operations.work import Work


Processes = tuple[int, int]
"""At least and at most this many."""


_RESOURCES = (
    *("accelerator_type", "compute", "memory", "num_cpus", "num_gpus", "object_store_memory", "resources"),
    *("max_restarts", "max_retries", "max_task_retries", "runtime_env", "scheduling_strategy"),
)
"""Settings of a cluster's scheduler, which there is none of: accepted, without effect, with a warning."""


class ActorPoolStrategy:
    """The old spelling of `concurrency`: ``compute=ActorPoolStrategy(size=2)`` is ``concurrency=2``.

    ``ActorPoolStrategy(1, 4)`` is the oldest form, of min_size and max_size. `max_tasks_in_flight_per_actor` has no
    meaning: a process has one portion of rows at work and one waiting.
    """

    def __init__(
        self,
        legacy_min_size: int | None = None,
        legacy_max_size: int | None = None,
        *,
        size: int | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        max_tasks_in_flight_per_actor: int | None = None,
    ) -> None:
        min_size = legacy_min_size if min_size is None else min_size
        max_size = legacy_max_size if max_size is None else max_size
        if size is not None and (min_size is not None or max_size is not None):
            raise ConfigError("ActorPoolStrategy: give size, or min_size and max_size, not both.")
        if size is not None:
            self.processes = _checked(size, size, "ActorPoolStrategy(size)")
        else:
            least = 1 if min_size is None else min_size
            most = max(least, usable_cores()) if max_size is None else max_size
            self.processes = _checked(least, most, "ActorPoolStrategy(min_size, max_size)")

    def __repr__(self) -> str:
        return f"ActorPoolStrategy(min_size={self.processes[0]}, max_size={self.processes[1]})"


def processes_wanted(concurrency: Any, compute: Any) -> Processes | None:
    """How many processes the user asked for; None: the function runs in the process that reads."""
    if concurrency is not None and compute is not None:
        raise ConfigError("Give concurrency or compute, not both: compute is the old spelling.")
    if concurrency is not None:
        if isinstance(concurrency, tuple) and len(concurrency) == 2:
            return _checked(*concurrency, "concurrency")
        return _checked(concurrency, concurrency, "concurrency")
    if compute is None or compute == "tasks":
        return None
    if isinstance(compute, ActorPoolStrategy):
        return compute.processes
    if compute == "actors":
        return ActorPoolStrategy().processes
    raise ConfigError(f'compute is {compute!r}: use concurrency=n for n processes ("actors" and "tasks" work too).')


def check_resources(method: str, settings: Mapping[str, Any]) -> None:
    """Accept the settings of a cluster's scheduler, with a warning that they have no effect; reject all others."""
    for name, value in settings.items():
        if name not in _RESOURCES:
            raise TypeError(f"{method}() has no setting {name!r}. Arguments for the function go to fn_kwargs.")
        if value is not None:
            warn_at_users_line(
                f"{method}: {name} has no effect: functions run in the process that reads, on its cores and devices. "
                f"concurrency=n gives them n processes."
            )


def _checked(least: Any, most: Any, name: str) -> Processes:
    advice = "It is a number of processes, or (least, most)."
    fewest = whole_number(least, name, least=1, advice=advice)
    return fewest, whole_number(most, name, least=fewest, advice=advice)


ROWS_AT_A_TIME = 4096
"""Of functions of rows: enough that a trip to another process costs little per row."""


class UserOperation(Operation):
    """Cuts a block into portions, lets `work` have them, and sees to it that all results have one schema."""

    def __init__(
        self,
        work: Work,
        *,
        processes: Processes | None = None,
        keeps_row_count: bool = False,
        row_local: bool = False,
        keeps_schema: bool = False,
        batch_size: int | None = ROWS_AT_A_TIME,
        exact_batches: bool = False,
    ) -> None:
        """`batch_size` None: whole blocks. `exact_batches`: rows are copied so that only the last batch is short."""
        self.work = work
        self.processes = processes
        self.keeps_row_count = keeps_row_count
        self.row_local = row_local
        self._keeps_schema = keeps_schema
        self._batch_size = batch_size
        self._exact_batches = exact_batches
        self._schema: pa.Schema | None = None
        self._pool: ProcessPool | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_pool", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._pool = None
        self._lock = threading.Lock()

    @property
    def label(self) -> str:
        return self.work.function.label

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return schema if self._keeps_schema else self._schema

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        pieces = _with_spots(self._pieces(chunks), place)
        if self.processes is None:
            return self._in_one_schema(self._results_here(pieces), place)
        from paceline.data.operations.work import portions

        size = self._batch_size
        tasks = (task for chunk, spot in pieces for task in portions(chunk, size or chunk.num_rows, spot))
        return self._in_one_schema(self._running_pool().run(tasks), place)

    def _results_here(self, pieces: Iterator[tuple[Chunk, Spot]]) -> Iterator[Chunk]:
        for chunk, spot in pieces:
            yield from self.work.results_of_all(chunk, self._batch_size or chunk.num_rows, spot)

    def _pieces(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Chunks that can be cut into portions of the batch size; none is empty."""
        from paceline.data.epochs import runs
        from paceline.data.formats import concat

        filled = (chunk for chunk in chunks if chunk.num_rows)
        if self._batch_size is None:
            block = list(filled)
            return iter([concat(block)] if block else [])
        return runs(filled, self._batch_size, drop_last=False) if self._exact_batches else filled

    def _in_one_schema(self, results: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        """The first result that has rows settles the schema, for this and all later blocks.

        Results without rows say little about types: one is passed on only if a block has no other.
        """
        from paceline.data.operations.work import like_before

        empty: Chunk | None = None
        some = False
        for chunk in results:
            if not chunk.num_rows:
                empty = empty or chunk
                continue
            if self._schema is None:
                self._schema = chunk.schema
            elif chunk.schema != self._schema:
                chunk = like_before(chunk, self._schema, f"What {self.work.function} returned on {place.name}")
            some = True
            yield chunk
        if empty is not None and not some and (self._schema is None or empty.schema == self._schema):
            yield empty

    def _running_pool(self) -> ProcessPool:
        from paceline.data.operations.process_pool import ProcessPool

        assert self.processes is not None
        with self._lock:
            if self._pool is None or not self._pool.usable:
                self._pool = ProcessPool(self.work, self.processes)
            return self._pool

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _with_spots(pieces: Iterator[Chunk], place: BlockPlace) -> Iterator[tuple[Chunk, Spot]]:
    first = place.start
    for chunk in pieces:
        yield chunk, Spot(place.name, first, chunk.num_rows, place.fresh)
        first += chunk.num_rows
