"""Dataset's methods that write files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from paceline.data.dataset_base import DatasetBase

if TYPE_CHECKING:
    from paceline.data.write_files import FileFormat


class Writes(DatasetBase):
    """Each method writes one file per block into a directory or below a URI, and adds to what is there.

    File names start with a new random id and sort in the order of the rows. If writing fails, no file of it stays.
    """

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        try_create_dir: bool = True,
        **arrow_parquet_args: Any,
    ) -> None:
        """Parquet files. `arrow_parquet_args` go to pyarrow.parquet.ParquetWriter; also row_group_size."""
        from paceline.data.write_files import ParquetFormat

        self._write(path, ParquetFormat(arrow_parquet_args), filesystem, try_create_dir)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: Any = None,
        try_create_dir: bool = True,
        **arrow_csv_args: Any,
    ) -> None:
        """CSV files with a header. `arrow_csv_args` go to pyarrow.csv.CSVWriter (write_options=...)."""
        from paceline.data.write_files import CsvFormat

        self._write(path, CsvFormat(arrow_csv_args), filesystem, try_create_dir)

    def write_json(self, path: str | os.PathLike[str], *, filesystem: Any = None, try_create_dir: bool = True) -> None:
        """Files with one JSON object per line."""
        from paceline.data.write_files import JsonFormat

        self._write(path, JsonFormat(), filesystem, try_create_dir)

    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str,
        filesystem: Any = None,
        try_create_dir: bool = True,
    ) -> None:
        """One column as .npy files."""
        from paceline.data.write_files import NumpyFormat

        self._write(path, NumpyFormat(column), filesystem, try_create_dir)

    def write_tfrecords(
        self, path: str | os.PathLike[str], *, filesystem: Any = None, try_create_dir: bool = True
    ) -> None:
        """TFRecord files with one tf.train.Example per row. Floats become float32: the format has no others."""
        from paceline.data.write_tfrecords import TfRecordsFormat

        self._write(path, TfRecordsFormat(), filesystem, try_create_dir)

    def _write(self, path: str | os.PathLike[str], form: FileFormat, filesystem: Any, try_create_dir: bool) -> None:
        from paceline.data.write_files import write_blocks

        write_blocks(self.plan, path, form, filesystem=filesystem, try_create_dir=try_create_dir)
