"""Chunks to dicts of torch tensors: the last step before a training loop, so it avoids every copy that it can.

Numbers and tensor columns keep Arrow's memory. Lists of one length become a matrix. Integers with nulls become
floats with NaN, unless an integer type was asked for: that is refused, since integers have no NaN. Decimals
become float64. Unsigned types that torch can hardly compute with are widened (uint16 to int32, uint32 to int64).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from paceline.air import session
from paceline.air.errors import ConfigError, DataError
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
        return {name: _checked_dtype(dtype, f"dtypes[{name!r}]") for name, dtype in dtypes.items()}
    return None if dtypes is None else _checked_dtype(dtypes, "dtypes")


def _checked_dtype(dtype: Any, what: str) -> torch.dtype:
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


# -- features and label -----------------------------------------------------------------------


def features_and_label(
    batches: Iterable[dict[str, torch.Tensor]],
    *,
    label_column: str | None = None,
    feature_columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    label_column_dtype: torch.dtype | None = None,
    feature_column_dtypes: Dtypes = None,
    unsqueeze_label: bool = True,
    unsqueeze_features: bool = True,
) -> torch.utils.data.IterableDataset[tuple[Any, torch.Tensor | None]]:
    """(features, label) batches for torch's tools. Every iteration over the result iterates over `batches` anew.

    Features are the columns side by side, as one matrix; a dict of lists of columns makes a dict of matrices.
    Without `feature_columns`: all but the label. `feature_column_dtypes` by name goes by the names of that dict
    or of columns. Unsqueezing gives columns of plain numbers a second dimension of length one.
    """
    import torch

    label_column_dtype = (
        None if label_column_dtype is None else _checked_dtype(label_column_dtype, "label_column_dtype")
    )
    feature_column_dtypes = checked_dtypes(feature_column_dtypes)

    def matrix(batch: dict[str, torch.Tensor], names: Sequence[str], group: str | None) -> torch.Tensor:
        parts = []
        for name in names:
            dtype = feature_column_dtypes
            if isinstance(dtype, Mapping):
                dtype = dtype.get(name, None if group is None else dtype.get(group))
            parts.append(_picked(batch, name, dtype, unsqueeze_features))
        if len(parts) == 1:
            return parts[0]
        if any(part.dim() != 2 for part in parts):
            shapes = ", ".join(f"{name!r}: {tuple(part.shape)}" for name, part in zip(names, parts, strict=True))
            raise DataError(f"Columns of these shapes do not stand side by side in one matrix: {shapes}.")
        return torch.cat(parts, dim=1)

    def pair(batch: dict[str, torch.Tensor]) -> tuple[Any, torch.Tensor | None]:
        label = None
        if label_column is not None:
            label = _picked(batch, label_column, label_column_dtype, unsqueeze_label)
        if isinstance(feature_columns, Mapping):
            return {group: matrix(batch, names, group) for group, names in feature_columns.items()}, label
        return matrix(batch, feature_columns or [name for name in batch if name != label_column], None), label

    class FeaturesAndLabel(torch.utils.data.IterableDataset[tuple[Any, torch.Tensor | None]]):
        def __iter__(self) -> Iterator[tuple[Any, torch.Tensor | None]]:
            if torch.utils.data.get_worker_info() is not None:
                raise DataError(
                    "A dataset of to_torch() cannot be read by the processes of a DataLoader: each of them would give "
                    "every row. Use DataLoader(..., num_workers=0); rows are read ahead by threads (prefetch_batches)."
                )
            return map(pair, iter(batches))

    return FeaturesAndLabel()


def _picked(batch: dict[str, torch.Tensor], name: str, dtype: torch.dtype | None, unsqueeze: bool) -> torch.Tensor:
    if name not in batch:
        raise ConfigError(f"There is no column {name!r}; the columns are {list(batch)}.")
    tensor = batch[name] if dtype is None else batch[name].to(dtype)
    return tensor.unsqueeze(1) if unsqueeze and tensor.dim() == 1 else tensor
