"""Dataset's methods that write files, and rows to other places."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from paceline.data.dataset_base import DatasetBase
from paceline.data.write_files import ArgsFn, WriteArguments, settings_from, write_blocks

if TYPE_CHECKING:
    from paceline.data.write_formats import FileFormat

OpenArgs = Mapping[str, Any] | None


class Writes(DatasetBase):
    """Each method for files writes one per block into a directory or below a URI, and adds to what is there.

    File names start with a new random id and sort in the order of the rows. If writing fails, no file of it stays.
    `filename_provider` and `block_path_provider` choose other names. `arrow_open_stream_args={"compression": "gzip"}`
    compresses the files. What a function `..._args_fn` returns is added to the settings of the format.
    """

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: OpenArgs = None,
        block_path_provider: Any = None,
        filename_provider: Any = None,
        arrow_parquet_args_fn: ArgsFn | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **arrow_parquet_args: Any,
    ) -> None:
        """Parquet files. `arrow_parquet_args` go to pyarrow.parquet.ParquetWriter; also row_group_size."""
        from paceline.data.write_formats import ParquetFormat

        arguments = WriteArguments.of("write_parquet", locals(), arrow_parquet_args)
        self._write(path, ParquetFormat(settings_from(arrow_parquet_args_fn, arrow_parquet_args)), arguments)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: OpenArgs = None,
        block_path_provider: Any = None,
        filename_provider: Any = None,
        arrow_csv_args_fn: ArgsFn | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **arrow_csv_args: Any,
    ) -> None:
        """CSV files with a header. `arrow_csv_args` go to pyarrow.csv.CSVWriter (write_options=...)."""
        from paceline.data.write_formats import CsvFormat

        arguments = WriteArguments.of("write_csv", locals(), arrow_csv_args)
        self._write(path, CsvFormat(settings_from(arrow_csv_args_fn, arrow_csv_args)), arguments)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: OpenArgs = None,
        block_path_provider: Any = None,
        filename_provider: Any = None,
        pandas_json_args_fn: ArgsFn | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **pandas_json_args: Any,
    ) -> None:
        """Files with one JSON object per line. With `pandas_json_args`, as pandas.DataFrame.to_json writes them."""
        from paceline.data.write_formats import JsonFormat, PandasJsonFormat

        arguments = WriteArguments.of("write_json", locals(), pandas_json_args)
        settings = settings_from(pandas_json_args_fn, pandas_json_args)
        self._write(path, PandasJsonFormat(settings) if settings else JsonFormat(), arguments)

    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str,
        filesystem: Any = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: OpenArgs = None,
        block_path_provider: Any = None,
        filename_provider: Any = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **later: Any,
    ) -> None:
        """One column as .npy files."""
        from paceline.data.write_formats import NumpyFormat

        arguments = WriteArguments.of("write_numpy", locals(), later)
        arguments.refuse(later)
        self._write(path, NumpyFormat(column), arguments)

    def write_tfrecords(
        self,
        path: str | os.PathLike[str],
        *,
        tf_schema: Any = None,
        filesystem: Any = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: OpenArgs = None,
        block_path_provider: Any = None,
        filename_provider: Any = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **later: Any,
    ) -> None:
        """TFRecord files with one tf.train.Example per row. Floats become float32: the format has no others.

        `tf_schema`, a `Schema` of tensorflow-metadata, decides which columns become BYTES, INT or FLOAT.
        """
        from paceline.data.sources.tfrecords import TfRecordsFormat

        arguments = WriteArguments.of("write_tfrecords", locals(), later)
        arguments.refuse(later)
        self._write(path, TfRecordsFormat(tf_schema), arguments)

    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: OpenArgs = None,
        filename_provider: Any = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        encoder: bool | Callable[[dict[str, Any]], Mapping[str, Any]] | None = True,
        **later: Any,
    ) -> None:
        """WebDataset tar files: a file in the archive for each value, named by "__key__" and the column.

        Columns named txt, cls, json, npy or like an image format are encoded; other values must be text or bytes.
        `encoder` may be a function from a row to a row of text and bytes.
        """
        from paceline.data.sources.webdataset import WebDatasetFormat

        arguments = WriteArguments.of("write_webdataset", locals(), later)
        arguments.refuse(later)
        self._write(path, WebDatasetFormat(encoder), arguments)

    def write_sql(
        self, sql: str, connection_factory: Callable[[], Any], ray_remote_args: Mapping[str, Any] | None = None
    ) -> None:
        """Rows into a database: all of them in one transaction, or none.

        `sql` inserts one row, with a placeholder for each column (`INSERT INTO trips VALUES (?, ?)`), in the style of
        the database's module. `connection_factory` takes no arguments and returns a DB-API connection.
        """
        from paceline.data.sql import write_rows

        write_rows(self.plan, sql, connection_factory)

    def write_datasource(
        self, datasource: Any, *, ray_remote_args: Mapping[str, Any] | None = None, **write_args: Any
    ) -> None:
        """Give each block to `datasource.write(blocks, ctx, **write_args)`, in order; see `data.datasource`."""
        from paceline.data.sources.read_tasks import write_to

        write_to(self.plan, datasource, write_args)

    def write_datasink(
        self, datasink: Any, *, ray_remote_args: Mapping[str, Any] | None = None, concurrency: int | None = None
    ) -> None:
        """Give each block to `datasink.write(blocks, ctx)`, in order: a `data.datasource.Datasink`."""
        from paceline.data.sources.read_tasks import write_to

        write_to(self.plan, datasink, {})

    def _write(self, path: str | os.PathLike[str], form: FileFormat, arguments: WriteArguments) -> None:
        write_blocks(self.plan, path, form, arguments)
