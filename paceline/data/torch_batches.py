"""Chunks to dicts of torch tensors: the last step before a training loop, so it avoids every copy that it can.

Numbers and tensor columns keep Arrow's memory. Lists of one length become a matrix. Integers with nulls become
floats with NaN, unless an integer type was asked for: that is refused, since integers have no NaN. Decimals
become float64. Unsigned types that torch can hardly compute with are widened (uint16 to int32, uint32 to int64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.data.formats import numbers_inside, to_numpy

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from paceline.data.block import Chunk

    Dtypes: TypeAlias = torch.dtype | Mapping[str, torch.dtype] | None

_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def torch_columns(chunk: Chunk, dtypes: Dtypes = None, copy: bool = False) -> dict[str, torch.Tensor]:
    """All columns as tensors. With `copy`, nobody else refers to their memory.

    `dtypes`: a type for all columns, or for some of them by name; None: as they are.
    """
    wanted = _dtype_by_column(chunk, dtypes)
    columns = zip(chunk.schema.names, chunk.columns, strict=True)
    return {name: _tensor(column, name, wanted.get(name), copy) for name, column in columns}


def split(
    chunk: Chunk, batch_rows: int, dtypes: Dtypes = None, copy: bool = False
) -> Iterator[dict[str, torch.Tensor]]:
    """The chunk in batches of `batch_rows` rows, the last one maybe shorter; each column is converted only once.

    Batches are tensors of their own, not views of a common one: what autograd does to one does not reach others.
    """
    cutters = [(name, _cutter(tensor)) for name, tensor in torch_columns(chunk, dtypes, copy).items()]
    for start in range(0, chunk.num_rows, batch_rows):
        rows = slice(start, start + batch_rows)
        yield {name: cut(rows) for name, cut in cutters}


def _cutter(tensor: torch.Tensor) -> Callable[[slice], torch.Tensor]:
    import torch

    if tensor.dtype is torch.bfloat16:  # unknown to numpy
        return lambda rows: tensor[rows].detach()
    array = tensor.numpy()
    from_numpy = torch.from_numpy
    return lambda rows: from_numpy(array[rows])  # a third of the time of slicing the tensor


def _dtype_by_column(chunk: Chunk, dtypes: Dtypes) -> Mapping[str, torch.dtype]:
    if dtypes is None:
        return {}
    names = chunk.schema.names
    if not isinstance(dtypes, Mapping):
        return dict.fromkeys(names, dtypes)
    unknown = [name for name in dtypes if name not in names]
    if unknown:
        raise ConfigError(f"dtypes names a column {unknown[0]!r} that is not there; the columns are {names}.")
    return dtypes


def _tensor(column: pa.Array, name: str, dtype: torch.dtype | None, copy: bool) -> torch.Tensor:
    import torch

    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    array = to_numpy(column, copy=False)
    if array.dtype.kind not in "biuf":
        raise DataError(_refusal(column, name, array))
    if array.dtype in _WIDER:
        array = array.astype(_WIDER[array.dtype])
    shared = not array.flags.writeable  # what is converted already is memory of its own
    tensor = torch.from_numpy(_writable(array) if shared else array)
    if dtype is not None and dtype != tensor.dtype:
        if array.dtype.kind == "f" and not dtype.is_floating_point and np.isnan(array).any():
            raise DataError(
                f"Column {name!r} has nulls or NaN, which {dtype} cannot hold."
                " Fill them first (SimpleImputer, or map_batches), or ask for a floating type."
            )
        return tensor.to(dtype)
    return tensor.clone() if copy and shared else tensor


def _refusal(column: pa.Array, name: str, array: NDArray[Any]) -> str:
    here = f"Column {name!r} ({column.type})"
    if numbers_inside(column.type):
        if pa.types.is_boolean(column.type):
            problem, remedy = "has nulls, and booleans have no NaN", "Fill them (map_batches)"
        else:
            problem, remedy = "has rows of different shapes, or nulls", "Pad or cut them to one shape (map_batches)"
    elif array.dtype.kind in "mM":
        problem, remedy = "holds times, which torch does not know", "Turn them into numbers (map_batches)"
    else:
        problem = "holds values that are no numbers"
        remedy = "Encode them (OrdinalEncoder, OneHotEncoder, Tokenizer, or map_batches)"
    return (
        f"{here} does not fit into a tensor: it {problem}. {remedy}, leave the column out (drop_columns),"
        " or make tensors yourself in collate_fn=."
    )


class _Memory:
    """Memory that is described as writable, and that lives as long as a numpy array refers to it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: NDArray[Any]) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory without the read-only mark, which torch would warn about.

    Whoever asks for tensors without a copy knows that the memory is theirs to write to, or does not write.
    """
    interface = array.__array_interface__
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Memory(interface, array))
