"""Rows that all look alike, read by Arrow's parser for CSV: several times as fast as JSON, and without Python's lock.

Most runs report the same few numbers again and again. Between the numbers of such rows stands the same text, and the
colons divide each row into fields that begin with a number and end in the same way as in every other row. All of this
is checked. Rows that differ in anything but their numbers are left to the decoder for JSON.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from paceline.view.column_table import Floats, Part, reported

WORTH_IT = 200
"""Rows. Fewer are decoded before the parser is ready."""
_MOST_METRICS = 500
_BEFORE = 8
"""Fields before the value of the first metric. Each but the first begins with a value and ends with the next name."""
_ENDS = ('{"kind"', '"row","attempt"', ',"index"', ',"rank"', '0,"stamp"', ',"elapsed"', ',"metrics"')
"""How the first of them end."""
_CONSTANT, _INDEX, _STAMP, _ELAPSED = (0, 1, 2, 4, 7), 3, 5, 6
_NUMBER = re.compile(r"-?[0-9][0-9.eE+-]*")


class _Beginning(msgspec.Struct):
    metrics: dict[str, Any]


def uniform_columns(bodies: list[bytes]) -> tuple[Floats, list[Part]] | None:
    """(index, stamp and elapsed; the metrics) of rows of rank 0, given as JSON. None if they are few, or not alike."""
    if len(bodies) < WORTH_IT:
        return None
    try:
        names = list(msgspec.json.decode(bodies[0], type=_Beginning).metrics)
        if not 0 < len(names) <= _MOST_METRICS:
            return None
        fields = _split(bodies, _BEFORE + len(names))
        is_row = all(field[0].as_py().endswith(end) for field, end in zip(fields, _ENDS, strict=False))
        if not is_row or not all(_is_constant(fields[place]) for place in _CONSTANT):
            return None
        axes = np.stack([_numbers(fields[place]) for place in (_INDEX, _STAMP, _ELAPSED)])
        metrics = zip(names, fields[_BEFORE:], strict=True)
        return axes, [(name, reported(_numbers(field)), None) for name, field in metrics]
    except (msgspec.DecodeError, pa.ArrowInvalid, ValueError):
        return None


def _split(bodies: list[bytes], count: int) -> list[Any]:
    """The fields of the rows, each as an array of text; an ArrowInvalid if a row has not so many."""
    names = [str(number) for number in range(count)]
    content = b"\n".join(bodies)
    table = pyarrow.csv.read_csv(
        pa.BufferReader(content),
        read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=len(content) + 1),
        parse_options=pyarrow.csv.ParseOptions(delimiter=":", quote_char=False, double_quote=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), check_utf8=False, strings_can_be_null=False
        ),
    )
    if table.num_rows != len(bodies):
        raise ValueError("an empty row")
    return list(table.columns)


def _is_constant(field: Any) -> bool:
    return bool(pc.all(pc.equal(field, field[0])).as_py())


def _numbers(field: Any) -> Floats:
    """What each value of the field begins with; a ValueError if one does not, or ends in another way."""
    first = field[0].as_py()
    found = _NUMBER.match(first)
    if found is None:
        raise ValueError(first)
    end = first[found.end() :]
    if not pc.all(pc.ends_with(field, end)).as_py():
        raise ValueError(end)
    numbers: Floats = pc.cast(pc.utf8_slice_codeunits(field, 0, -len(end)), pa.float64()).to_numpy()
    return numbers
