"""Chunks to dicts of jax.Arrays: each worker gives its rows, and all of them get one array of all workers' rows.

JAX has 32-bit numbers unless told otherwise (`jax_enable_x64`): 64-bit columns become 32-bit ones, and integers that do
not fit are rejected. As for torch, integers with nulls become floats with NaN, and lists of one length a matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.air.errors import ConfigError, DataError
from paceline.data.numeric_columns import check_no_nan, dtypes_by_column, numeric_array
from paceline.data.uneven import VALID_COLUMN

if TYPE_CHECKING:
    from jax import Array
    from jax.sharding import Sharding
    from numpy.typing import NDArray

    from paceline.data.block import Chunk

_WHOLE = "biu"


def jax_values(chunk: Chunk, dtypes: Any = None) -> dict[str, NDArray[Any]]:
    """All columns as arrays of the types that JAX will give them.

    `dtypes`: a type for all columns, or for some of them by name.
    """
    wanted = dtypes_by_column(chunk.schema.names, dtypes)
    columns = zip(chunk.schema.names, chunk.columns, strict=True)
    return {name: _values(numeric_array(column, name), name, wanted.get(name)) for name, column in columns}


def _values(array: NDArray[Any], name: str, dtype: Any) -> NDArray[Any]:
    import jax

    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype if dtype is None else dtype))
    if array.dtype == dtype:
        return array
    if dtype.kind in _WHOLE:
        check_no_nan(array, name, dtype)
    values = array.astype(dtype)
    if dtype.kind in "iu" and array.dtype.kind in "iu" and (values != array).any():
        raise DataError(
            f"Column {name!r} ({array.dtype}) has numbers that {dtype} cannot hold. Set "
            'jax.config.update("jax_enable_x64", True) first, or leave the column out (drop_columns).'
        )
    return values


class GlobalArrays:
    """Makes arrays of all workers' rows from this worker's own."""

    def __init__(self, sharding: Any, workers: int, dtypes: Any = None) -> None:
        """`workers` is how many share the rows; 1: every worker has all of them."""
        self._sharding = sharding
        self._workers = workers
        self._dtypes = dtypes
        self._checked: set[tuple[Sharding, tuple[int, ...]]] = set()

    def split(self, chunk: Chunk, batch_rows: int) -> Iterator[dict[str, Array]]:
        """The chunk in batches of so many rows of this worker, the last one maybe shorter."""
        columns = jax_values(chunk, self._dtypes)
        for start in range(0, chunk.num_rows, max(1, batch_rows)):
            yield {name: self._array(name, values[start : start + batch_rows]) for name, values in columns.items()}

    def _array(self, name: str, values: NDArray[Any]) -> Array:
        import jax

        shape = (values.shape[0] * self._workers, *values.shape[1:])
        sharding = self._sharding_of(name)
        if (sharding, shape) not in self._checked:
            self._check(sharding, shape, name)
            self._checked.add((sharding, shape))
        return jax.make_array_from_process_local_data(sharding, values, shape)

    def _sharding_of(self, name: str) -> Sharding:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        chosen = self._sharding
        if isinstance(chosen, Mapping):
            default = {key: value for key, value in chosen.items() if key == "default"}
            if name not in chosen and name != VALID_COLUMN and not default:
                raise ConfigError(
                    f"iter_jax_batches(sharding=...) has no entry for column {name!r}. Add one, or one for 'default'."
                )
            chosen = chosen.get(name, default.get("default"))
        if chosen is None:
            is_shared = self._workers > 1 or jax.process_count() == 1
            mesh = Mesh(np.array(jax.devices()), ("data",))
            chosen = NamedSharding(mesh, PartitionSpec("data") if is_shared else PartitionSpec())
            if not isinstance(self._sharding, Mapping):
                self._sharding = chosen
        elif isinstance(chosen, Mesh):
            chosen = NamedSharding(chosen, PartitionSpec(chosen.axis_names[0]))
        if not isinstance(chosen, jax.sharding.Sharding):
            raise ConfigError(
                f"iter_jax_batches(sharding={chosen!r}): give a jax.sharding.Sharding, a Mesh (rows are dealt over its "
                "first axis), or a dict of them by column."
            )
        return chosen

    def _check(self, sharding: Sharding, shape: tuple[int, ...], name: str) -> None:
        try:
            places = sharding.devices_indices_map(shape)
            sharding.shard_shape(shape)
        except (ValueError, IndexError) as error:
            raise DataError(
                f"iter_jax_batches: a batch of {shape[0]} rows cannot be dealt over the devices of {sharding}: {error} "
                "Choose another batch size; drop_last=True leaves out a last batch that is smaller, and "
                'DatasetConfig(uneven="pad_mask") fills it up.'
            ) from error
        if self._workers == 1:
            return
        owners: dict[tuple[int, int], int] = {}
        for device, index in places.items():
            start, stop, _ = (index[0] if index else slice(None)).indices(shape[0])
            owner = owners.setdefault((start, stop), device.process_index)
            if owner != device.process_index:
                raise ConfigError(
                    f"iter_jax_batches: {sharding} puts the same rows of column {name!r} on workers {owner} and "
                    f"{device.process_index}, but each worker reads rows of its own. Give every worker all rows, of "
                    "which JAX takes what each needs: dataset_config={..., DatasetConfig(split=False)}. Or deal the "
                    "rows over all devices."
                )
