"""Datasets: read, transform, split and feed rows (``from paceline import data``).

Everything is loaded on first use, so that importing this package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paceline.air.absent import no_such_name

if TYPE_CHECKING:
    from pyarrow import Schema as Schema

    from paceline.data.context import DataContext as DataContext
    from paceline.data.context import DatasetContext as DatasetContext
    from paceline.data.context import ExecutionOptions as ExecutionOptions
    from paceline.data.context import ExecutionResources as ExecutionResources
    from paceline.data.context import NodeIdStr as NodeIdStr
    from paceline.data.context import set_progress_bars as set_progress_bars
    from paceline.data.dataset import Dataset as Dataset
    from paceline.data.dataset_legacy import MaterializedDataset as MaterializedDataset
    from paceline.data.dataset_pipeline import DatasetPipeline as DatasetPipeline
    from paceline.data.datasource.datasource import Datasource as Datasource
    from paceline.data.datasource.datasource import ReadTask as ReadTask
    from paceline.data.datasource.reading import read_datasource as read_datasource
    from paceline.data.from_frameworks import from_dask as from_dask
    from paceline.data.from_frameworks import from_polars as from_polars
    from paceline.data.from_frameworks import from_spark as from_spark
    from paceline.data.from_frameworks import from_tf as from_tf
    from paceline.data.from_objects import from_arrow as from_arrow
    from paceline.data.from_objects import from_huggingface as from_huggingface
    from paceline.data.from_objects import from_items as from_items
    from paceline.data.from_objects import from_numpy as from_numpy
    from paceline.data.from_objects import from_pandas as from_pandas
    from paceline.data.from_objects import from_torch as from_torch
    from paceline.data.from_objects import range as range
    from paceline.data.from_objects import range_table as range_table
    from paceline.data.from_objects import range_tensor as range_tensor
    from paceline.data.grouped import GroupedData as GroupedData
    from paceline.data.iterator import DataIterator as DataIterator
    from paceline.data.iterator import DatasetIterator as DatasetIterator
    from paceline.data.operations.concurrency import ActorPoolStrategy as ActorPoolStrategy
    from paceline.data.preprocessor import Preprocessor as Preprocessor
    from paceline.data.read import read_binary_files as read_binary_files
    from paceline.data.read import read_csv as read_csv
    from paceline.data.read import read_images as read_images
    from paceline.data.read import read_json as read_json
    from paceline.data.read import read_numpy as read_numpy
    from paceline.data.read import read_parquet as read_parquet
    from paceline.data.read import read_parquet_bulk as read_parquet_bulk
    from paceline.data.read import read_text as read_text
    from paceline.data.read import read_tfrecords as read_tfrecords
    from paceline.data.read import read_webdataset as read_webdataset
    from paceline.data.sql import read_sql as read_sql

_PLACES = {
    "ActorPoolStrategy": "paceline.data.operations.concurrency",
    "DataContext": "paceline.data.context",
    "DataIterator": "paceline.data.iterator",
    "Dataset": "paceline.data.dataset",
    "Datasource": "paceline.data.datasource.datasource",
    "DatasetContext": "paceline.data.context",
    "DatasetIterator": "paceline.data.iterator",
    "DatasetPipeline": "paceline.data.dataset_pipeline",
    "ExecutionOptions": "paceline.data.context",
    "ExecutionResources": "paceline.data.context",
    "GroupedData": "paceline.data.grouped",
    "MaterializedDataset": "paceline.data.dataset_legacy",
    "NodeIdStr": "paceline.data.context",
    "Preprocessor": "paceline.data.preprocessor",
    "ReadTask": "paceline.data.datasource.datasource",
    "Schema": "pyarrow",
    "from_arrow": "paceline.data.from_objects",
    "from_dask": "paceline.data.from_frameworks",
    "from_huggingface": "paceline.data.from_objects",
    "from_items": "paceline.data.from_objects",
    "from_numpy": "paceline.data.from_objects",
    "from_pandas": "paceline.data.from_objects",
    "from_polars": "paceline.data.from_frameworks",
    "from_spark": "paceline.data.from_frameworks",
    "from_tf": "paceline.data.from_frameworks",
    "from_torch": "paceline.data.from_objects",
    "range": "paceline.data.from_objects",
    "range_table": "paceline.data.from_objects",
    "range_tensor": "paceline.data.from_objects",
    "read_binary_files": "paceline.data.read",
    "read_csv": "paceline.data.read",
    "read_datasource": "paceline.data.datasource.reading",
    "read_images": "paceline.data.read",
    "read_json": "paceline.data.read",
    "read_numpy": "paceline.data.read",
    "read_parquet": "paceline.data.read",
    "read_parquet_bulk": "paceline.data.read",
    "read_sql": "paceline.data.sql",
    "read_text": "paceline.data.read",
    "read_tfrecords": "paceline.data.read",
    "read_webdataset": "paceline.data.read",
    "set_progress_bars": "paceline.data.context",
}
_SUBMODULES = (
    *("aggregate", "block", "context", "dataset", "dataset_iterator", "dataset_pipeline", "datasource", "extensions"),
    *(
        "grouped",
        "grouped_data",
        "grouped_dataset",
        "iterator",
        "preprocessor",
        "preprocessors",
        "random_access_dataset",
    ),
)
_ELSEWHERE = {
    "from_arrow_refs": "there are no object references: use from_arrow()",
    "from_mars": "convert with .to_pandas() and use from_pandas()",
    "from_modin": "convert with ._to_pandas() and use from_pandas()",
    "from_numpy_refs": "there are no object references: use from_numpy()",
    "from_pandas_refs": "there are no object references: use from_pandas()",
    "read_bigquery": "use the client of google-cloud-bigquery, to_arrow() of its result, and from_arrow()",
    "read_databricks_tables": "use read_sql() with databricks.sql.connect",
    "read_mongo": "use pymongoarrow and from_arrow()",
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise no_such_name(__name__, name, _ELSEWHERE)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, *_SUBMODULES})
