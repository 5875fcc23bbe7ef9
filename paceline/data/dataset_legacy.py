"""Methods of Dataset that programs for older releases of the API call, and advice for those that cannot be here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Self

import numpy as np
import pyarrow as pa

from paceline.air.errors import ConfigError, DataError
from paceline.air.words import counted
from paceline.data.dataset_base import DatasetBase
from paceline.data.formats import to_rows
from paceline.data.operations.native import no_such_column
from paceline.data.sources.computed import TableSource
from paceline.data.store import StoredSource, stored

_REFERENCES = "there are no object references: use iter_batches(), to_pandas() or to_arrow()"
_LINEAGE = "a dataset can be pickled as it is: cloudpickle.dumps(dataset)"
_ADVICE = {
    "context": "use paceline.data.DataContext.get_current()",
    "copy": "datasets never change, so there is nothing to copy: use the dataset itself",
    "deserialize_lineage": _LINEAGE,
    "get_internal_block_refs": _REFERENCES,
    "iter_internal_ref_bundles": _REFERENCES,
    "serialize_lineage": _LINEAGE,
    "to_arrow_refs": _REFERENCES,
    "to_mars": "use to_pandas(limit=None), or write_parquet() and read that",
    "to_modin": "use to_pandas(limit=None), or write_parquet() and read that",
    "to_numpy_refs": _REFERENCES,
    "to_pandas_refs": _REFERENCES,
    "to_spark": "write_parquet() and read that with Spark",
    "with_column": "use add_column(name, function)",
    "write_images": "save each row of iter_rows() with Pillow, or write_webdataset() with a column named png",
    "write_mongo": "insert the rows of iter_batches() with pymongo, or the tables of "
    'iter_batches(batch_format="pyarrow") with pymongoarrow',
}


class Legacy(DatasetBase):
    """What other methods do, by other names."""

    def materialize(self) -> Self:
        """Run everything once, now, and keep the rows: beyond 64 MB in a temporary file."""
        return self._of(stored(self.plan))

    def fully_executed(self) -> Self:
        """The old name of `materialize`."""
        return self.materialize()

    def is_fully_executed(self) -> bool:
        """True if the rows are there and need no more work, as after `materialize()`."""
        return not self.plan.operations and isinstance(self.plan.source, StoredSource | TableSource)

    def lazy(self) -> Self:
        """Itself: datasets are always lazy."""
        return self

    def dataset_format(self) -> str:
        """Rows are always held as Arrow tables."""
        return "arrow"

    def has_serializable_lineage(self) -> bool:
        """False: a dataset is pickled as a whole."""
        return False

    def to_random_access_dataset(self, key: str, num_workers: int | None = None) -> RandomAccessDataset:
        """Rows that are looked up by the values of one column; `num_workers` has no meaning here."""
        return RandomAccessDataset(self, key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by copy, pickle and the like
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _ADVICE:
            text = f"A dataset has no {name}(): {_ADVICE[name]}."
        else:
            near = difflib.get_close_matches(name, dir(type(self)), n=1)
            text = f"A dataset has no attribute {name!r}{f': did you mean {near[0]}?' if near else '.'}"
        raise AttributeError(text, name=name)  # without obj=, or Python would append a guess of its own


class _WithRows(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Legacy) and value.is_fully_executed()


class MaterializedDataset(Legacy, metaclass=_WithRows):
    """For isinstance(): a dataset whose rows are there, as after `materialize()`. It has no methods of its own."""

    def __init__(self) -> None:
        raise TypeError("MaterializedDataset is for isinstance() only: use dataset.materialize().")


class RandomAccessDataset:
    """What `Dataset.to_random_access_dataset(key)` gives. The rows are kept, and found by a table of their keys.

    Where a key occurs several times, its first row is found.
    """

    def __init__(self, dataset: DatasetBase, key: str) -> None:
        names = dataset.plan.schema().names
        if key not in names:
            raise ConfigError(f"to_random_access_dataset: {no_such_column(key, names)}")
        self._rows = stored(dataset.plan)
        keys = self._rows.table().column(key)
        if pa.types.is_nested(keys.type) or isinstance(keys.type, pa.BaseExtensionType):
            raise DataError(f"to_random_access_dataset: column {key!r} holds {keys.type}, which cannot be a key.")
        self._key = key
        self._places: dict[Any, int] = {}
        for place, value in enumerate(keys.to_pylist()):
            self._places.setdefault(value, place)

    def get(self, key: Any) -> dict[str, Any] | None:
        """The row with that key; None if there is none."""
        return self.multiget([key])[0]

    def get_async(self, key: Any) -> Future[dict[str, Any] | None]:
        """The same as a Future, which has its result already."""
        found: Future[dict[str, Any] | None] = Future()
        found.set_result(self.get(key))
        return found

    def multiget(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """The rows with these keys, in their order, and None for those that do not occur."""
        places = [self._places.get(key) for key in keys]
        present = np.array([place for place in places if place is not None], dtype=np.int64)
        rows = iter(to_rows(self._rows.take(present)) if len(present) else ())
        return [None if place is None else next(rows) for place in places]

    def stats(self) -> str:
        """How many rows there are, and how many keys."""
        return f"{counted(self._rows.rows, 'row')} by {self._key!r}, {counted(len(self._places), 'different key')}"

    def __repr__(self) -> str:
        return f"RandomAccessDataset({self.stats()})"
