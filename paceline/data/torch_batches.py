"""Chunks to dicts of torch tensors: the last step before a training loop, so it avoids every copy that it can.

Numbers and tensor columns keep Arrow's memory. Lists of one length become a matrix. Integers with nulls become
floats with NaN, unless an integer type was asked for: that is refused, since integers have no NaN. Decimals
become float64. Unsigned types that torch can hardly compute with are widened (uint16 to int32, uint32 to int64).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from paceline.air import session
from paceline.air.errors import ConfigError
from paceline.data.formats import writable
from paceline.data.numeric_columns import check_no_nan, dtypes_by_column, numeric_array

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from paceline.data.block import Chunk

    Dtypes: TypeAlias = torch.dtype | Mapping[str, torch.dtype] | None

_WIDER = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


def torch_columns(chunk: Chunk, dtypes: Dtypes = None, copy: bool = False) -> dict[str, torch.Tensor]:
    """All columns as tensors. With `copy`, nobody else refers to their memory.

    `dtypes`: a type for all columns, or for some of them by name; None: as they are.
    """
    wanted = dtypes_by_column(chunk.schema.names, dtypes)
    columns = zip(chunk.schema.names, chunk.columns, strict=True)
    return {name: _tensor(column, name, wanted.get(name), copy) for name, column in columns}


def checked_dtypes(dtypes: Any) -> Dtypes:
    """The types that the user means, as torch's own; numpy's and names ("float32") are taken as well."""
    if isinstance(dtypes, Mapping):
        return {name: checked_dtype(dtype, f"dtypes[{name!r}]") for name, dtype in dtypes.items()}
    return None if dtypes is None else checked_dtype(dtypes, "dtypes")


def checked_dtype(dtype: Any, what: str) -> torch.dtype:
    """One type, as torch's own."""
    import torch

    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.removeprefix("torch."), dtype)
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        raise ConfigError(f"{what} is {dtype!r}: give a type of torch, such as torch.float32.") from None


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


def _tensor(column: pa.Array, name: str, dtype: torch.dtype | None, copy: bool) -> torch.Tensor:
    import torch

    array = numeric_array(column, name)
    if array.dtype in _WIDER:
        array = array.astype(_WIDER[array.dtype])
    shared = not array.flags.writeable  # what is converted already is memory of its own
    tensor = torch.from_numpy(writable(array) if shared else array)
    if dtype is not None and dtype != tensor.dtype:
        if not dtype.is_floating_point:
            check_no_nan(array, name, dtype)
        return tensor.to(dtype)
    return tensor.clone() if copy and shared else tensor


# -- devices ----------------------------------------------------------------------------------


def to_device(batch: Any, device: Any = "auto") -> Any:
    """A batch, whatever it is made of, with all its tensors on that device."""
    if device == "auto":
        device = _own_device()
    if device is None or str(device) == "cpu":
        return batch
    return _moved(batch, device)


def _own_device() -> str:
    """The device of this worker; outside of one, the first GPU if there is one."""
    assigned = os.environ.get("ACCELERATE_TORCH_DEVICE")  # set for every worker that trains with torch
    if assigned is not None:
        return assigned
    if session.current() is not None:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _moved(batch: Any, device: Any) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(value, device) for value in batch)
    return batch
