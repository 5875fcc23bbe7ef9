"""Datasets: read, transform, split and feed rows (``from paceline import data``).

Everything is loaded on first use, so that importing this package stays cheap.
"""

from __future__ import annotations

from paceline.air.lazy import lazy_imports

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

with lazy_imports(__name__, _SUBMODULES, _ELSEWHERE):
    from pyarrow import Schema as Schema

    from paceline.compat.data_context import DataContext as DataContext
    from paceline.compat.data_context import DatasetContext as DatasetContext
    from paceline.compat.data_context import ExecutionOptions as ExecutionOptions
    from paceline.compat.data_context import ExecutionResources as ExecutionResources
    from paceline.compat.data_context import NodeIdStr as NodeIdStr
    from paceline.compat.data_context import set_progress_bars as set_progress_bars
    from paceline.data.dataset import Dataset as Dataset
    from paceline.data.dataset_legacy import MaterializedDataset as MaterializedDataset
    from paceline.data.datasource.datasource import Datasource as Datasource
    from paceline.data.datasource.datasource import ReadTask as ReadTask
    from paceline.data.from_objects import from_arrow as from_arrow
    from paceline.data.from_objects import from_dask as from_dask
    from paceline.data.from_objects import from_huggingface as from_huggingface
    from paceline.data.from_objects import from_items as from_items
    from paceline.data.from_objects import from_numpy as from_numpy
    from paceline.data.from_objects import from_pandas as from_pandas
    from paceline.data.from_objects import from_polars as from_polars
    from paceline.data.from_objects import from_spark as from_spark
    from paceline.data.from_objects import from_tf as from_tf
    from paceline.data.from_objects import from_torch as from_torch
    from paceline.data.from_objects import range as range
    from paceline.data.from_objects import range_table as range_table
    from paceline.data.from_objects import range_tensor as range_tensor
    from paceline.data.grouped_data import GroupedData as GroupedData
    from paceline.data.iterator import DataIterator as DataIterator
    from paceline.data.iterator import DatasetIterator as DatasetIterator
    from paceline.data.iterator import DatasetPipeline as DatasetPipeline
    from paceline.data.operations.user_operation import ActorPoolStrategy as ActorPoolStrategy
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
    from paceline.data.sources.read_tasks import read_datasource as read_datasource
    from paceline.data.sql import read_sql as read_sql
