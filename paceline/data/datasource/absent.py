"""What to write instead of the classes by which Ray Data reads each kind of file."""

from __future__ import annotations

_READERS = {
    "BinaryDatasource": "read_binary_files()",
    "CSVDatasource": "read_csv()",
    "ImageDatasource": "read_images()",
    "JSONDatasource": "read_json()",
    "NumpyDatasource": "read_numpy()",
    "ParquetBaseDatasource": "read_parquet()",
    "ParquetDatasource": "read_parquet()",
    "RangeDatasource": "range()",
    "SQLDatasource": "read_sql()",
    "TFRecordDatasource": "read_tfrecords()",
    "TextDatasource": "read_text()",
    "WebDatasetDatasource": "read_webdataset()",
}
ADVICE = {
    **{name: f"use paceline.data.{function}" for name, function in _READERS.items()},
    "Connection": "read_sql() takes a function that returns any DB-API connection",
    "DummyOutputDatasource": "dataset.materialize() reads all rows and writes none",
    "MongoDatasource": "use pymongoarrow and paceline.data.from_arrow()",
    "PathPartitionEncoder": 'write each part to a directory such as "country=us"; Partitioning("hive") reads them',
    "RandomIntRowDatasource": "use numpy.random and paceline.data.from_numpy()",
    "SimpleTensorFlowDatasource": "use paceline.data.from_tf(dataset)",
    "SimpleTorchDatasource": "use paceline.data.from_torch(dataset)",
    "WriteResult": "on_write_complete() gets what the calls of write() have returned",
}
