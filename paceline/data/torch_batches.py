"""Chunks to dicts of torch tensors: the last step before a training loop, so it avoids every copy that it can.

Numbers and tensor columns keep Arrow's memory. Lists of one length become a matrix. Integers with nulls become
floats with NaN, unless an integer type was asked for: that is refused, since integers have no NaN. Decimals
become float64. Unsigned types that torch can hardly compute with are widened (uint16 to int32, uint32 to int64).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    Columns: TypeAlias = Sequence[str] | Sequence[Sequence[str]] | Mapping[str, Sequence[str]]

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


@dataclass(frozen=True)
class _Matrix:
    """Columns that stand side by side, and the type of each; None: as it is."""

    columns: tuple[str, ...]
    dtypes: tuple[torch.dtype | None, ...]

    def of(self, batch: dict[str, torch.Tensor], unsqueeze: bool) -> torch.Tensor:
        import torch

        pairs = zip(self.columns, self.dtypes, strict=True)
        parts = [_picked(batch, name, dtype, unsqueeze) for name, dtype in pairs]
        if len(parts) == 1:
            return parts[0]
        if any(part.dim() != 2 for part in parts):
            shapes = ", ".join(f"{name!r}: {tuple(part.shape)}" for name, part in zip(self.columns, parts, strict=True))
            raise DataError(f"Columns of these shapes do not stand side by side in one matrix: {shapes}.")
        return torch.cat(parts, dim=1)


def features_and_label(
    batches: Iterable[dict[str, torch.Tensor]],
    *,
    label_column: str | None = None,
    feature_columns: Columns | None = None,
    label_column_dtype: Any = None,
    feature_column_dtypes: Any = None,
    unsqueeze_label: bool = True,
    unsqueeze_features: bool = True,
) -> torch.utils.data.IterableDataset[tuple[Any, torch.Tensor | None]]:
    """(features, label) batches for torch's tools. Every iteration over the result iterates over `batches` anew.

    Features are the columns side by side, as one matrix; a list or dict of lists of columns makes a list or dict
    of matrices. Without `feature_columns`: all but the label. `feature_column_dtypes` is one type for all, or goes
    along with `feature_columns`: one per column, or one per matrix; or it is a dict by names of columns or matrices.
    Unsqueezing gives columns of plain numbers a second dimension of length one.
    """
    import torch

    label_dtype = None if label_column_dtype is None else checked_dtype(label_column_dtype, "label_column_dtype")
    dtypes = _checked(feature_column_dtypes)
    chosen = _matrices(feature_columns, dtypes) if feature_columns else None

    def pair(batch: dict[str, torch.Tensor]) -> tuple[Any, torch.Tensor | None]:
        label = None if label_column is None else _picked(batch, label_column, label_dtype, unsqueeze_label)
        wanted = chosen or _matrices([name for name in batch if name != label_column], dtypes)
        if isinstance(wanted, _Matrix):
            return wanted.of(batch, unsqueeze_features), label
        if isinstance(wanted, list):
            return [matrix.of(batch, unsqueeze_features) for matrix in wanted], label
        return {name: matrix.of(batch, unsqueeze_features) for name, matrix in wanted.items()}, label

    class FeaturesAndLabel(torch.utils.data.IterableDataset[tuple[Any, torch.Tensor | None]]):
        def __iter__(self) -> Iterator[tuple[Any, torch.Tensor | None]]:
            if torch.utils.data.get_worker_info() is not None:
                raise DataError(
                    "A dataset of to_torch() cannot be read by the processes of a DataLoader: each of them would give "
                    "every row. Use DataLoader(..., num_workers=0); rows are read ahead by threads (prefetch_batches)."
                )
            return map(pair, iter(batches))

    return FeaturesAndLabel()


def only_columns(feature_columns: Columns | None, label_column: str | None) -> Callable[[Chunk], Chunk]:
    """Leaves out of a chunk what is neither feature nor label, so that it may hold what no tensor can."""
    if not feature_columns:
        return lambda chunk: chunk
    groups = feature_columns.values() if isinstance(feature_columns, Mapping) else feature_columns
    names = [name for group in groups for name in ([group] if isinstance(group, str) else group)]
    wanted = list(dict.fromkeys(names if label_column is None else [*names, label_column]))

    def picked(chunk: Chunk) -> Chunk:
        for name in wanted:
            if name not in chunk.schema.names:
                raise ConfigError(f"There is no column {name!r}; the columns are {chunk.schema.names}.")
        return chunk.select(wanted)

    return picked


def _checked(dtypes: Any) -> Any:
    """Types in the form in which they were given, each as torch's own."""
    if isinstance(dtypes, Mapping):
        return {name: _checked(dtype) for name, dtype in dtypes.items()}
    if isinstance(dtypes, list | tuple):
        return [_checked(dtype) for dtype in dtypes]
    return None if dtypes is None else checked_dtype(dtypes, "feature_column_dtypes")


def _matrices(columns: Columns, dtypes: Any) -> _Matrix | list[_Matrix] | dict[str, _Matrix]:
    """What the features consist of: one matrix, or several in the form in which the columns were given."""
    if isinstance(columns, Mapping):
        return {group: _matrix(names, dtypes, group) for group, names in columns.items()}
    if not any(isinstance(entry, list | tuple) for entry in columns):
        return _matrix(columns, dtypes)
    each = dtypes if isinstance(dtypes, list) else [dtypes] * len(columns)
    _check_length(each, columns)
    return [_matrix(names, its) for names, its in zip(columns, each, strict=True)]


def _matrix(columns: Any, dtypes: Any, group: str | None = None) -> _Matrix:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if isinstance(dtypes, Mapping):
        of_group = dtypes.get(group)
        dtypes = of_group if isinstance(of_group, list) else [dtypes.get(name, of_group) for name in names]
    each = dtypes if isinstance(dtypes, list) else [dtypes] * len(names)
    _check_length(each, names)
    return _Matrix(names, tuple(each))


def _check_length(dtypes: Sequence[Any], columns: Sequence[Any]) -> None:
    if len(dtypes) != len(columns):
        raise ConfigError(
            f"feature_column_dtypes has {len(dtypes)} entries for {len(columns)} of feature_columns, {list(columns)}: "
            "give one for each, or a single type for all."
        )


def _picked(batch: dict[str, torch.Tensor], name: str, dtype: torch.dtype | None, unsqueeze: bool) -> torch.Tensor:
    if name not in batch:
        raise ConfigError(f"There is no column {name!r}; the columns are {list(batch)}.")
    tensor = batch[name] if dtype is None else batch[name].to(dtype)
    return tensor.unsqueeze(1) if unsqueeze and tensor.dim() == 1 else tensor
