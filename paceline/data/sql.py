"""Databases with a DB-API module: sqlite3, psycopg, mysql.connector, snowflake.connector, ..."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError, DataError
from paceline.data.read_arguments import blocks_wanted
from paceline.data.sources.computed import ComputedSource

if TYPE_CHECKING:
    import pyarrow as pa

    from paceline.data.block import Chunk
    from paceline.data.dataset import Dataset
    from paceline.data.plan import Plan
    from paceline.data.store import StoredSource

_INFERENCE_ROWS = 65_536
_ROWS_AT_ONCE = 8192


def read_sql(
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    parallelism: int = -1,
    ray_remote_args: Mapping[str, Any] | None = None,
    **later: Any,
) -> Dataset:
    """The result of a query. `connection_factory` takes no arguments and returns a DB-API connection.

    The query runs once, at first need, and its rows are kept: every epoch and every worker sees the same ones. A
    restored run asks again: give the query an ORDER BY if it is to continue where it was. Types are inferred from the
    first 65,536 rows.
    """
    from paceline.data.dataset import Dataset

    _check(sql, connection_factory, "read_sql")
    blocks = blocks_wanted(parallelism, ray_remote_args, later, "this process runs the query")
    for name in later:
        raise ConfigError(f"read_sql takes no {name}: one connection reads all rows, once.")
    dataset = Dataset(SqlSource(sql, connection_factory))
    return dataset if blocks == -1 else dataset.repartition(blocks)


class SqlSource(ComputedSource):
    """The rows of a query, stored when they are first needed."""

    def __init__(self, sql: str, connection_factory: Callable[[], Any]) -> None:
        super().__init__(())
        self._sql = sql
        self._connect = connection_factory

    def describe(self) -> str:
        return "read_sql"

    def _compute(self) -> StoredSource:
        from paceline.data.store import store

        with closing(self._connect()) as connection, closing(connection.cursor()) as cursor:
            try:
                cursor.execute(self._sql)
            except Exception as error:
                raise DataError(f"read_sql: {type(error).__name__}: {error}. The query is: {self._sql}") from error
            if cursor.description is None:
                raise DataError(f"read_sql: the query gives no rows: {self._sql}. Use SELECT.")
            names = [column[0] for column in cursor.description]
            first = _chunk(list(itertools.islice(_rows(cursor), _INFERENCE_ROWS)), names)
            rest = (_chunk(part, names, first.schema) for part in _parts(cursor))
            return store(itertools.chain([first], rest), first.schema)


def write_rows(plan: Plan, sql: str, connection_factory: Callable[[], Any]) -> None:
    """All rows by one connection and in one transaction."""
    from paceline.data.execution import chunks_of
    from paceline.data.formats import to_rows

    _check(sql, connection_factory, "write_sql")
    with closing(connection_factory()) as connection, closing(connection.cursor()) as cursor:
        try:
            for chunk in chunks_of(plan, chunk_rows=_ROWS_AT_ONCE):
                rows = [tuple(row.values()) for row in to_rows(chunk)]
                if rows:
                    cursor.executemany(sql, rows)
            connection.commit()
        except DataError:
            connection.rollback()
            raise
        except Exception as error:
            connection.rollback()
            raise DataError(
                f"write_sql: {type(error).__name__}: {error}. No row was written. The statement is: {sql}; the columns "
                f"are {plan.schema().names}."
            ) from error


def _check(sql: str, connection_factory: Callable[[], Any], function: str) -> None:
    if not isinstance(sql, str) or not sql.strip():
        raise ConfigError(f"{function}: sql is {sql!r}; give a statement as text.")
    if not callable(connection_factory) or hasattr(connection_factory, "cursor"):  # some connections are callable
        raise ConfigError(
            f"{function}: connection_factory is a {type(connection_factory).__name__}; give a function that opens a "
            "connection: lambda: sqlite3.connect(path)."
        )


def _rows(cursor: Any) -> Iterator[Sequence[Any]]:
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        yield from rows


def _parts(cursor: Any) -> Iterator[list[Sequence[Any]]]:
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        yield list(rows)


def _chunk(rows: list[Sequence[Any]], names: list[str], schema: pa.Schema | None = None) -> Chunk:
    import pyarrow as pa

    from paceline.data.column_arrays import column_array
    from paceline.data.formats import check_unique, conform

    check_unique(names, "read_sql")
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = [column_array(list(column), name, "read_sql") for name, column in zip(names, columns, strict=True)]
    chunk = pa.RecordBatch.from_arrays(arrays, names=names)
    return chunk if schema is None else conform(chunk, schema, "read_sql")
