"""The state of preprocessors as JSON values.

What JSON has no form for becomes an object with one key that begins with "$": arrays are Arrow IPC in
base64, functions and classes of the user's are pickles. Only a pickle can run code when it is decoded.
"""

from __future__ import annotations

import base64
import math
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.air.errors import DataError, SerializationError

LONG = 1000
"""Longer lists of plain values are stored as Arrow."""


def encode(value: Any) -> Any:
    """JSON values from which `decode` makes an equal value."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, list):
        return _encode_list(value)
    if isinstance(value, tuple):
        return {"$tuple": _encode_list(list(value))}
    if isinstance(value, Mapping):
        return _encode_mapping(value)
    if isinstance(value, pa.Array):
        return {"$arrow": _to_ipc(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufMm":
        return {"$array": _to_ipc(pa.array(value.reshape(-1))), "shape": list(value.shape), "dtype": value.dtype.str}
    return _encode_object(value)


def decode(stored: Any) -> Any:
    """The value that was encoded."""
    if isinstance(stored, list):
        return [decode(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    mark = next((key for key in stored if key.startswith("$")), None)
    if mark is None:
        return {key: decode(value) for key, value in stored.items()}
    if mark not in _DECODERS:
        raise DataError(f"A stored preprocessor has a value of the kind {mark!r}: it was written by a newer version.")
    return _DECODERS[mark](stored)


def pickled(value: Any) -> dict[str, Any]:
    """A value that only its own code can make again."""
    import cloudpickle

    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        content = cloudpickle.dumps(value)
    except Exception as error:
        raise SerializationError(f"A {kind} cannot be stored with its preprocessor: {error}") from error
    return {"$pickle": base64.b64encode(content).decode(), "of": kind}


def is_pickled(stored: Any) -> bool:
    return isinstance(stored, dict) and "$pickle" in stored


def _encode_list(values: list[Any]) -> Any:
    if len(values) > LONG and len({type(value) for value in values}) == 1 and type(values[0]) in (str, int):
        try:
            return {"$list": _to_ipc(pa.array(values))}
        except (OverflowError, UnicodeError):  # an integer of more than 64 bits, text that is no UTF-8
            pass
    return [encode(value) for value in values]


def _encode_mapping(value: Mapping[Any, Any]) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: encode(item) for key, item in value.items()}
    return {"$dict": _encode_list(list(value)), "values": _encode_list(list(value.values()))}


def _encode_object(value: Any) -> Any:
    import pandas as pd

    from paceline.data.preprocessor import Preprocessor

    if isinstance(value, Preprocessor):
        return {"$preprocessor": value.stored_name, "state": value.to_state()}
    if isinstance(value, pd.CategoricalDtype):
        categories = None if value.categories is None else _encode_list(list(value.categories))
        return {"$categorical": categories, "ordered": value.ordered}
    if isinstance(value, np.dtype):
        return {"$dtype": value.str}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"$scalar_type": np.dtype(value).str}
    if not callable(value):
        try:
            single = pa.array([value])
            if single[0].as_py() == value:
                return {"$value": _to_ipc(single)}
        except (pa.ArrowException, TypeError, ValueError):
            pass
    return pickled(value)


def _to_ipc(array: pa.Array) -> str:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], ["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def _from_ipc(text: str) -> pa.Array:
    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        return reader.read_next_batch().column(0)


def _decode_array(stored: dict[str, Any]) -> np.ndarray:
    values = _from_ipc(stored["$array"]).to_numpy(zero_copy_only=False)
    return np.array(values, np.dtype(stored["dtype"])).reshape(stored["shape"])


def _decode_dict(stored: dict[str, Any]) -> dict[Any, Any]:
    return dict(zip(decode(stored["$dict"]), decode(stored["values"]), strict=True))


def _decode_categorical(stored: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.CategoricalDtype(decode(stored["$categorical"]), stored["ordered"])


def _decode_preprocessor(stored: dict[str, Any]) -> Any:
    from paceline.data.preprocessors import loader

    return loader(stored["$preprocessor"])(stored["state"])


def _unpickle(stored: dict[str, Any]) -> Any:
    try:
        return pickle.loads(base64.b64decode(stored["$pickle"]))
    except Exception as error:
        raise SerializationError(
            f"A stored preprocessor holds a {stored['of']} that cannot be loaded here: {error}. Install or put on "
            "sys.path what defines it."
        ) from error


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "$float": lambda stored: float(stored["$float"]),
    "$tuple": lambda stored: tuple(decode(stored["$tuple"])),
    "$list": lambda stored: _from_ipc(stored["$list"]).to_pylist(),
    "$dict": _decode_dict,
    "$arrow": lambda stored: _from_ipc(stored["$arrow"]),
    "$array": _decode_array,
    "$value": lambda stored: _from_ipc(stored["$value"])[0].as_py(),
    "$dtype": lambda stored: np.dtype(stored["$dtype"]),
    "$scalar_type": lambda stored: np.dtype(stored["$scalar_type"]).type,
    "$categorical": _decode_categorical,
    "$preprocessor": _decode_preprocessor,
    "$pickle": _unpickle,
}
