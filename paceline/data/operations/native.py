"""Operations that run no code of the user's: choosing, dropping and renaming columns, filter(expr=...), random_sample.

Which columns are needed is told to the source, so that it reads no more. A condition is written as text or as a pyarrow
expression, and evaluated by Arrow.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError, DataError
from paceline.data.plan import BlockPlace, Operation

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from paceline.data.block import Chunk


def no_such_column(name: str, known: Sequence[str]) -> str:
    """What a message says about a column that is not there."""
    near = difflib.get_close_matches(name, known, n=1)
    meant = f": did you mean {near[0]!r}?" if near else "."
    return f"there is no column {name!r}{meant} The columns are {list(known)}."


class ColumnOperation(Operation):
    """`checked`: the columns are known to be there. Then one that does not come along was not asked for.

    Otherwise (a user's function makes the columns) all of them come, and one that is missing is an error.
    """

    keeps_row_count = True
    row_local = True
    native = True

    def __init__(self, *, checked: bool) -> None:
        self.checked = checked

    def _check(self, named: Sequence[str], chunk: Chunk, place: BlockPlace) -> None:
        if not self.checked:
            names = chunk.schema.names
            missing = set(named).difference(names)
            for name in named:
                if name in missing:
                    raise DataError(f"{self.label} on {place.name}: {no_such_column(name, names)}")


class SelectColumns(ColumnOperation):
    def __init__(self, columns: Sequence[str], *, checked: bool) -> None:
        super().__init__(checked=checked)
        self.columns = tuple(columns)

    @property
    def label(self) -> str:
        return f"select_columns({', '.join(self.columns)})"

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if wanted is None or not self.checked:
            return self.columns
        chosen = set(wanted)
        return tuple(name for name in self.columns if name in chosen)

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        import pyarrow as pa

        return pa.schema([schema.field(name) for name in self.columns])

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        for chunk in chunks:
            self._check(self.columns, chunk, place)
            there = set(chunk.schema.names)
            yield chunk.select([name for name in self.columns if name in there])


class DropColumns(ColumnOperation):
    """For columns that a user's function makes; where all names are known, SelectColumns does it."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__(checked=False)
        self.columns = tuple(columns)

    @property
    def label(self) -> str:
        return f"drop_columns({', '.join(self.columns)})"

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        for chunk in chunks:
            self._check(self.columns, chunk, place)
            yield chunk.select([name for name in chunk.schema.names if name not in self.columns])


class RenameColumns(ColumnOperation):
    def __init__(self, names: Mapping[str, str], *, checked: bool) -> None:
        super().__init__(checked=checked)
        self.names = dict(names)

    @property
    def label(self) -> str:
        return f"rename_columns({', '.join(f'{old} -> {new}' for old, new in self.names.items())})"

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if wanted is None or not self.checked:
            return None
        old_names = {new: old for old, new in self.names.items()}
        return tuple(old_names.get(name, name) for name in wanted)

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        import pyarrow as pa

        return pa.schema([field.with_name(self.names.get(field.name, field.name)) for field in schema])

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        import pyarrow as pa

        for chunk in chunks:
            self._check(list(self.names), chunk, place)
            names = [self.names.get(name, name) for name in chunk.schema.names]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{self.label} on {place.name}: there would be two columns named {twice!r}.")
            fields = [field.with_name(name) for field, name in zip(chunk.schema, names, strict=True)]
            yield pa.RecordBatch.from_arrays(chunk.columns, schema=pa.schema(fields))


class FilterExpression(Operation):
    """`columns`: those that the condition uses; None if that cannot be told."""

    native = True

    def __init__(self, condition: pc.Expression, columns: tuple[str, ...] | None, text: str) -> None:
        self.condition = condition
        self.columns = columns
        self.text = text

    @property
    def label(self) -> str:
        return f"filter({self.text})"

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if wanted is None or self.columns is None:
            return None
        return (*wanted, *(name for name in self.columns if name not in wanted))

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return schema

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        import pyarrow as pa

        for chunk in chunks:
            try:
                yield chunk.filter(holds(self.condition, chunk))  # where it is null, the row is left out
            except (pa.ArrowException, TypeError) as error:
                raise DataError(f"{self.label} failed on {place.name}: {error}") from error

    def check(self, schema: pa.Schema) -> None:
        """Refuse a condition that cannot be evaluated on such columns."""
        import pyarrow as pa

        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        try:
            empty.filter(holds(self.condition, empty))
        except (pa.ArrowException, TypeError) as error:
            raise ConfigError(f"{self.label} cannot be evaluated: {error} The columns are {schema.names}.") from error


def holds(condition: pc.Expression, chunk: Chunk) -> pa.Array:
    """For each row, whether the condition holds."""
    import pyarrow as pa
    from pyarrow import acero

    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([chunk]))),
            acero.Declaration("project", acero.ProjectNodeOptions([condition], ["holds"])),
        ]
    )
    mask = plan.to_table(use_threads=False).column(0).combine_chunks()
    return mask if isinstance(mask, pa.Array) else pa.concat_arrays(mask.chunks or [pa.array([], pa.bool_())])


def parse(text: str) -> FilterExpression:
    """A condition such as ``price > 3 and kind in ["a", "b"]``: Python's operators over the names of columns."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ConfigError(f"filter: {text!r} is not an expression: {error.msg}.") from None
    names = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return FilterExpression(_translated(tree, text), tuple(names), text.strip())


def _translated(node: ast.expr, text: str) -> Any:
    """A node as a pyarrow expression; constants stay plain values until they meet a column."""
    import pyarrow.compute as pc

    match node:
        case ast.Name(name):
            return pc.field(name)
        case ast.Constant(value):
            return pc.scalar(value)
        case ast.BoolOp(operator, values):
            parts = [_translated(value, text) for value in values]
            result = parts[0]
            for part in parts[1:]:
                result = result & part if isinstance(operator, ast.And) else result | part
            return result
        case ast.UnaryOp(ast.Not() | ast.Invert(), operand):
            return ~_translated(operand, text)
        case ast.UnaryOp(ast.USub(), operand):
            return pc.negate_checked(_translated(operand, text))
        case ast.BinOp(left, operator, right) if type(operator) in _BINARY:
            return _BINARY[type(operator)](_translated(left, text), _translated(right, text))
        case ast.Compare(left, operators, others):
            return _comparisons(left, operators, others, text)
    raise ConfigError(
        f"filter: {ast.unparse(node)!r} in {text!r} cannot be evaluated by Arrow. Use names of columns, constants, "
        f"comparisons, in, is None, and, or, not, + - * /; for anything else give a function."
    )


def _comparisons(left: ast.expr, operators: list[ast.cmpop], others: list[ast.expr], text: str) -> Any:
    """``a < b < c`` is ``a < b and b < c``."""
    result = None
    for operator, other in zip(operators, others, strict=True):
        each = _comparison(_translated(left, text), operator, other, text)
        result = each if result is None else result & each
        left = other
    return result


def _comparison(left: Any, operator: ast.cmpop, right: ast.expr, text: str) -> Any:
    if isinstance(operator, (ast.In, ast.NotIn)):
        try:
            values = list(ast.literal_eval(right))
        except (ValueError, TypeError):
            raise ConfigError(f"filter: what follows `in` must be a list of constants in {text!r}.") from None
        return left.isin(values) if isinstance(operator, ast.In) else ~left.isin(values)
    is_none = isinstance(right, ast.Constant) and right.value is None
    if is_none and isinstance(operator, (ast.Is, ast.Eq)):
        return left.is_null()
    if is_none and isinstance(operator, (ast.IsNot, ast.NotEq)):
        return left.is_valid()
    if type(operator) not in _COMPARE:
        raise ConfigError(f"filter: `is` in {text!r} can only be followed by None.")
    return _COMPARE[type(operator)](left, _translated(right, text))


_BINARY: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a.cast("float64") / b,  # as in Python: of whole numbers, too
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
}
_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


class RandomSample(Operation):
    """Which rows stay follows from the seed, the block and the row alone: the same in every process and epoch."""

    native = True

    def __init__(self, fraction: float, seed: int) -> None:
        self.fraction = fraction
        self.seed = seed
        self.seeds = (seed,)

    @property
    def label(self) -> str:
        return f"random_sample({self.fraction:g})"

    def input_columns(self, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return wanted

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        return schema

    def run(self, chunks: Iterator[Chunk], place: BlockPlace) -> Iterator[Chunk]:
        import numpy as np
        import pyarrow as pa

        generator = np.random.default_rng([self.seed, place.block])
        for chunk in chunks:
            # One number per row, whatever the chunks are.
            yield chunk.filter(pa.array(generator.random(chunk.num_rows) < self.fraction))
