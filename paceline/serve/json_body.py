"""JSON bodies: the forms in which rows are taken, and answers.

Rows come as a list of objects, or as {"rows": [...]}, {"columns": {name: [values]}}, {"columns": [names], "data":
[[values]]}, or as bare lists of values in the order of the training data, where that is known. A null is a missing
value; NaN and Infinity are not JSON.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
import numpy as np

from paceline.air.words import counted
from paceline.serve.columns import ColumnKind, InputColumns, listed
from paceline.serve.rows import Column, Numbers, RequestRows
from paceline.web.problem import Problem

FORMS = (
    'Send {"rows": [{"column": value, ...}, ...]}, a bare list of such rows, {"columns": {"column": [values]}}, or '
    '{"columns": [names], "data": [[values], ...]}.'
)
_FORM_KEYS = ({"rows"}, {"columns"}, {"columns", "data"}, {"columns", "data", "index"}, {"data"})
_LARGEST = 2**63 - 1

_decoder = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode(body: bytes, columns: InputColumns, max_rows: int, *, nameless: bool) -> RequestRows:
    """The rows of a request's body; raises the Problem that the client gets.

    `nameless`: the model takes a matrix without names, if it knows none.
    """
    if not body:
        raise Problem(400, f"The body is empty. {FORMS}")
    try:
        document = _decoder.decode(body)
    except RecursionError:
        raise Problem(400, "The body is nested too deeply.") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise Problem(400, f"The body cannot be read as JSON: {error}.") from None
    if isinstance(document, list):
        return _from_list(document, columns, max_rows, nameless)
    if not isinstance(document, dict) or document.keys() not in _FORM_KEYS:
        raise Problem(422, f"The body does not say what the rows are. {FORMS}")
    named = document.get("columns")
    if isinstance(named, dict) and len(document) == 1:
        return _from_columns(named, columns, max_rows)
    rows = document.get("rows", document.get("data"))
    if not isinstance(rows, list):
        raise Problem(422, f"The rows must be a list. {FORMS}")
    if named is not None:
        return _from_columns(_by_name(rows, _names(named)), columns, max_rows)
    return _from_list(rows, columns, max_rows, nameless)


def encode(columns: dict[str, list[Any]]) -> bytes:
    """The answer's body. NaN and infinities, which JSON does not have, become null."""
    return _encoder.encode(columns)


def _from_list(rows: list[Any], columns: InputColumns, max_rows: int, nameless: bool) -> RequestRows:
    _check_count(len(rows), max_rows)
    if isinstance(rows[0], dict):
        return _from_rows(rows, columns, max_rows)
    if columns.complete and columns.ordered:
        return _from_columns(_by_name(rows, list(columns.kinds)), columns, max_rows)
    if columns.complete:
        raise Problem(
            422,
            "Values need the names of their columns: in which order the model was trained with them is not known, as "
            f"its preprocessor makes columns of others. {FORMS}",
        )
    if not nameless or not isinstance(rows[0], list):
        raise Problem(422, f"Rows must be objects with the names of columns. {FORMS}")
    matrix = _tensor(rows, "The rows")
    if not matrix.shape[1]:
        raise Problem(422, f"There are no columns. {FORMS}")
    return RequestRows(len(rows), matrix, ("matrix", matrix.dtype, matrix.shape[1:]))


def _from_rows(rows: list[dict[str, Any]], columns: InputColumns, max_rows: int) -> RequestRows:
    if columns.only_numbers and (numbers := _numbers(rows, columns)) is not None:
        return numbers
    names = list(columns.kinds) if columns.complete else list(rows[0])
    width = len(names)
    try:
        same = all(len(row) == width for row in rows)
        given = {name: [row[name] for row in rows] for name in names} if same else None
    except (KeyError, TypeError):
        given = None
    if given is None:
        raise _uneven(rows, columns, names)
    return _from_columns(given, columns, max_rows)


def _numbers(rows: list[dict[str, Any]], columns: InputColumns) -> RequestRows | None:
    """The short way for rows of nothing but numbers; None if they are not, which is for the long way to explain."""
    width = len(columns.kinds)
    try:
        values = [columns.values_of(row) for row in rows if len(row) == width]
        types = set(map(type, chain.from_iterable(values)))
        if len(values) < len(rows) or not types <= _NUMBERS_TRUTH_AND_NULL:
            return None
        matrix = np.array(values, np.float64)
        return RequestRows(len(rows), Numbers(columns.names, matrix), ("numbers", columns.names))
    except (KeyError, TypeError, OverflowError):
        return None


def _uneven(rows: list[Any], columns: InputColumns, names: list[str]) -> Problem:
    """What is wrong with rows that do not all have these columns."""
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            return Problem(422, f"Row {number} is not an object with the names of columns. {FORMS}")
        columns.check_names(row, f" in row {number}")
        if row.keys() != set(names):
            differing = listed(sorted(row.keys() ^ set(names)))
            return Problem(422, f"Row {number} and row 0 differ in their columns: {differing}. Use null for no value.")
    raise AssertionError("the rows are even")


def _from_columns(given: dict[str, list[Any]], columns: InputColumns, max_rows: int) -> RequestRows:
    if not columns.complete or given.keys() != columns.kinds.keys():
        columns.check_names(given)
    if not given:
        raise Problem(422, f"There are no columns. {FORMS}")
    content: dict[str, Column] = {}
    key = []
    count = -1
    for name in columns.kinds if columns.complete else given:
        values = given[name]
        if not isinstance(values, list):
            raise Problem(422, f"Column {name!r} must be a list of values, one for each row.")
        if len(values) != count:
            if count >= 0:
                raise Problem(
                    422,
                    f"Columns must be of one length, but {name!r} has {counted(len(values), 'row')} and not {count}.",
                )
            count = len(values)
            _check_count(count, max_rows)
        kind, column, sort = _checked(name, values, columns.kinds.get(name))
        content[name] = (kind, column)
        key.append((name, sort))
    return RequestRows(count, content, tuple(key))


def _checked(name: str, values: list[Any], wanted: ColumnKind | None) -> tuple[str, Any, Any]:
    """(kind, values, what must be equal for joining) of a column whose values go together."""
    numbers_only = wanted == "number"
    types = set(map(type, values))
    nulls = type(None) in types
    types.discard(type(None))
    if not types and wanted == "any":
        return "nothing", values, "nothing"
    if int in types and not all(-_LARGEST <= value <= _LARGEST for value in values if type(value) is int):
        raise Problem(422, f"Column {name!r} has an integer of more than 64 bits.")
    if types <= _NUMBERS or (numbers_only and types <= _NUMBERS_AND_TRUTH):
        kind = "int" if types == _INTEGERS and not nulls and not numbers_only else "number"
        return kind, values, kind
    if not numbers_only:
        if types == _TRUTH:
            return "bool", values, ("bool", nulls)
        if types == _TEXT:
            return "text", values, "text"
        if types == _LISTS and not nulls:
            tensor = _tensor(values, f"Column {name!r}")
            return "tensor", tensor, ("tensor", tensor.dtype, tensor.shape[1:])
    raise _mistyped(name, values, numbers_only)


_INTEGERS = {int}
_NUMBERS = {int, float}
_NUMBERS_AND_TRUTH = {int, float, bool}
_NUMBERS_TRUTH_AND_NULL = {int, float, bool, type(None)}
_TRUTH = {bool}
_TEXT = {str}
_LISTS = {list}
_TYPE_NAMES = {
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "an object",
    int: "a number",
    float: "a number",
}


def _mistyped(name: str, values: list[Any], numbers_only: bool) -> Problem:
    if numbers_only:
        row = next(row for row, value in enumerate(values) if type(value) not in (int, float, bool, type(None)))
        return Problem(422, f"Column {name!r} takes numbers, but row {row} has {_TYPE_NAMES[type(values[row])]}.")
    found = sorted({_TYPE_NAMES[type(value)] for value in values if value is not None})
    if found == ["an object"]:
        return Problem(
            422, f"Column {name!r} has objects as values; give numbers, text, true/false, or lists of numbers."
        )
    return Problem(422, f"Column {name!r} mixes {' and '.join(found)}; give values of one kind, or null.")


def _tensor(values: list[Any], what: str) -> Any:
    try:
        tensor = np.array(values)
    except (ValueError, OverflowError):
        tensor = None
    if tensor is None or tensor.dtype.kind not in "biuf":
        raise Problem(422, f"{what} must be lists of numbers, equally long at each level.")
    return tensor


def _names(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Problem(422, f'"columns" beside "data" must be a list of names. {FORMS}')
    if len(set(names)) < len(names):
        raise Problem(422, "A column name appears twice.")
    return names


def _by_name(rows: list[Any], names: list[str]) -> dict[str, list[Any]]:
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            had = f"has {counted(len(row), 'value')}" if isinstance(row, list) else "is not a list"
            raise Problem(422, f"Row {number} {had}; the columns need {counted(len(names), 'value')}.")
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def _check_count(count: int, max_rows: int) -> None:
    if count == 0:
        raise Problem(422, "There are no rows to predict.")
    if count > max_rows:
        raise Problem(413, f"The request has {count} rows; this server takes {max_rows} at a time.")
