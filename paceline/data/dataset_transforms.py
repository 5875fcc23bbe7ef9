"""Dataset's methods that change each block on its own: map, filter, columns, samples. All are lazy."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from paceline.air.checks import check_bool, is_number, whole_number
from paceline.air.errors import ConfigError
from paceline.data.dataset_base import DatasetBase
from paceline.data.operations.native import (
    DropColumns,
    FilterExpression,
    RandomSample,
    RenameColumns,
    SelectColumns,
    no_such_column,
    parse,
)
from paceline.data.operations.user_function import UserFunction
from paceline.data.operations.user_operation import UserOperation, check_resources, processes_wanted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from paceline.data.operations.user_operation import ActorPoolStrategy

    Compute = ActorPoolStrategy | Literal["tasks", "actors"]
    Concurrency = int | tuple[int, int]

DEFAULT_BATCH_SIZE = 4096


class Transforms(DatasetBase):
    """Functions are named in errors with file and line, and with the block and rows they were working on.

    What goes for all functions of the user's here:

    - A class is made an instance of once per process, with `fn_constructor_args` and
      `fn_constructor_kwargs`, and the instance is called.
    - Without `concurrency` they run in the process that reads. ``concurrency=n`` gives them n processes beside
      it, ``(least, most)`` a number that grows as needed; the order of rows stays. In training,
      every worker has its own.
    - What a function returns must not be written to afterwards: it may be used without a copy.
    """

    # -- functions of the user's ----------------------------------------------------------

    def map(
        self,
        fn: Callable[..., Mapping[str, Any]] | type,
        *,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **resources: Any,
    ) -> Self:
        """Every row (a dict) replaced by what `fn(row)` returns (a dict). map_batches is many times quicker."""
        from paceline.data.operations.work import RowWork

        check_resources("map", resources)
        function = UserFunction("map", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        processes = processes_wanted(concurrency, compute)
        return self._then(UserOperation(RowWork(function), processes=processes, keeps_row_count=True, row_local=True))

    def map_batches(
        self,
        fn: Callable[..., Any] | type,
        *,
        batch_size: int | Literal["default"] | None = "default",
        batch_format: str | None = "default",
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        zero_copy_batch: bool = False,
        keeps_row_count: bool = False,
        **resources: Any,
    ) -> Self:
        """Batches replaced by what `fn(batch)` returns, or by all that it yields.

        A batch is a dict of numpy arrays, a pandas DataFrame or an Arrow table (`batch_format`), and so is what
        comes back, in any of these forms and with any number of rows. Batches have `batch_size` rows
        (4096; None: a whole block) and do not cross blocks: the last one of a block may be shorter.

        `zero_copy_batch=True` saves a copy where `fn` does not write to its batch (which is then read-only).
        `keeps_row_count=True` promises as many rows as came in, which is checked; it saves the pass over the
        data that counts rows before training.
        """
        from paceline.data.formats import check_batch_format
        from paceline.data.operations.work import BatchWork

        check_resources("map_batches", resources)
        check_bool(zero_copy_batch, "zero_copy_batch")
        check_bool(keeps_row_count, "keeps_row_count")
        if batch_size == "default":
            batch_size = DEFAULT_BATCH_SIZE
        if batch_size is not None:
            batch_size = whole_number(batch_size, "batch_size", least=1, advice="None means whole blocks.")
        function = UserFunction("map_batches", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        work = BatchWork(
            function, check_batch_format(batch_format), zero_copy=zero_copy_batch, keeps_row_count=keeps_row_count
        )
        return self._then(
            UserOperation(
                work,
                processes=processes_wanted(concurrency, compute),
                keeps_row_count=keeps_row_count,
                batch_size=batch_size,
                exact_batches=True,
            )
        )

    def flat_map(
        self,
        fn: Callable[..., Iterable[Mapping[str, Any]]] | type,
        *,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **resources: Any,
    ) -> Self:
        """Every row replaced by the rows that `fn(row)` returns or yields: any number of them."""
        from paceline.data.operations.work import FlatMapWork

        check_resources("flat_map", resources)
        function = UserFunction("flat_map", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        return self._then(UserOperation(FlatMapWork(function), processes=processes_wanted(concurrency, compute)))

    def filter(
        self,
        fn: Callable[..., Any] | type | None = None,
        *,
        expr: str | pc.Expression | None = None,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **resources: Any,
    ) -> Self:
        """The rows for which `fn(row)` is true, or for which `expr` holds.

        `expr` is text such as ``price > 3 and kind in ["a", "b"]`` or a pyarrow expression. Arrow
        evaluates it, which is many times quicker than a function.
        """
        from paceline.data.operations.work import FilterWork

        check_resources("filter", resources)
        if (fn is None) == (expr is None):
            raise ConfigError("filter: give a function, or expr, and not both.")
        if expr is not None:
            extras = (compute, concurrency, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
            if any(extra is not None for extra in extras):
                raise ConfigError("filter: concurrency and fn_... are for functions; expr needs none of them.")
            return self._filter_by_expression(expr)
        if isinstance(fn, str):
            raise ConfigError(f"filter: text goes to expr: filter(expr={fn!r}).")
        assert fn is not None
        function = UserFunction("filter", fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        processes = processes_wanted(concurrency, compute)
        return self._then(UserOperation(FilterWork(function), processes=processes, keeps_schema=True))

    def _filter_by_expression(self, expr: str | pc.Expression) -> Self:
        import pyarrow.compute as pc

        if isinstance(expr, str):
            operation = parse(expr)
        elif isinstance(expr, pc.Expression):
            operation = FilterExpression(expr, None, str(expr))
        else:
            raise ConfigError(f"filter: expr is {expr!r}: give text or a pyarrow expression.")
        schema = self._known_schema()
        if schema is not None:
            self._check_columns("filter", operation.columns or (), schema)
            operation.check(schema)
        return self._then(operation)

    # -- columns --------------------------------------------------------------------------

    def add_column(
        self,
        col: str,
        fn: Callable[..., Any],
        *,
        compute: Compute | None = None,
        concurrency: Concurrency | None = None,
        **resources: Any,
    ) -> Self:
        """One more column: `fn(batch)` gets a pandas DataFrame and returns the values. An existing one is replaced."""
        from paceline.data.operations.work import ColumnWork

        check_resources("add_column", resources)
        if not isinstance(col, str):
            raise ConfigError(f"add_column: the name of the column is {col!r}: give text.")
        work = ColumnWork(UserFunction("add_column", fn), col)
        return self._then(
            UserOperation(
                work,
                processes=processes_wanted(concurrency, compute),
                keeps_row_count=True,
                batch_size=DEFAULT_BATCH_SIZE,
                exact_batches=True,
            )
        )

    def select_columns(self, cols: str | Sequence[str], *, compute: Compute | None = None, **resources: Any) -> Self:
        """Only these columns, in this order. Files are read only as far as these need it."""
        check_resources("select_columns", {"compute": compute, **resources})
        columns = _column_names("select_columns", cols)
        if not columns:
            raise ConfigError("select_columns: give at least one column.")
        schema = self._known_schema()
        self._check_columns("select_columns", columns, schema)
        return self._then(SelectColumns(columns, checked=schema is not None))

    def drop_columns(self, cols: str | Sequence[str], *, compute: Compute | None = None, **resources: Any) -> Self:
        """All columns but these."""
        check_resources("drop_columns", {"compute": compute, **resources})
        columns = _column_names("drop_columns", cols)
        schema = self._known_schema()
        self._check_columns("drop_columns", columns, schema)
        if schema is None:
            return self._then(DropColumns(columns))
        dropped = set(columns)
        rest = [name for name in schema.names if name not in dropped]
        if not rest:
            raise ConfigError("drop_columns: no column would be left.")
        return self._then(SelectColumns(rest, checked=True))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Self:
        """New names: a dict from old to new ones, or a list with a name for every column."""
        if not isinstance(names, Mapping):
            new_names = _column_names("rename_columns", names)
            old_names = self.plan.schema().names
            if len(new_names) != len(old_names):
                raise ConfigError(
                    f"rename_columns: there are {len(old_names)} columns but {len(new_names)} names. The columns are "
                    f"{old_names}. A dict renames some of them."
                )
            names = dict(zip(old_names, new_names, strict=True))
        _column_names("rename_columns", list(names.values()))
        schema = self._known_schema()
        self._check_columns("rename_columns", list(names), schema)
        if schema is not None:
            _column_names("rename_columns", [names.get(name, name) for name in schema.names])
        return self._then(RenameColumns(names, checked=schema is not None))

    @staticmethod
    def _check_columns(method: str, columns: Sequence[str], schema: pa.Schema | None) -> None:
        if schema is None:
            return
        known = set(schema.names)
        for name in columns:
            if name not in known:
                raise ConfigError(f"{method}: {no_such_column(name, schema.names)}")

    # -- rows -----------------------------------------------------------------------------

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Self:
        """About this share of the rows, each chosen by itself; with a seed always the same ones.

        Without a seed they differ from call to call, but a dataset that was made once always has the same.
        """
        if not is_number(fraction) or not 0 <= fraction <= 1:
            raise ConfigError(f"random_sample: fraction is {fraction!r}: give a number from 0 to 1.")
        seed = secrets.randbits(32) if seed is None else whole_number(seed, "seed", least=0)
        return self._then(RandomSample(float(fraction), seed))


def _column_names(method: str, columns: Any) -> list[str]:
    """One name or several, all of them text and none twice."""
    names = [columns] if isinstance(columns, str) else list(columns)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{method}: {name!r} is no name of a column: give text.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{method}: {twice!r} is there twice; names of columns are unique.")
    return names
