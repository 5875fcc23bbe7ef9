"""Operations that keep some of the rows: filter(expr=...) and random_sample.

A condition is written as text or as a pyarrow expression, and evaluated by Arrow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.air.errors import ConfigError, DataError
from paceline.data.plan import BlockPlace, Operation

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from paceline.data.block import Chunk


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
