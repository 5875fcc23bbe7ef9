"""Sources of one's own, and what decides which files are read (`from paceline.data import datasource`)."""

from __future__ import annotations

from typing import NoReturn

from paceline.air.absent import no_such_name
from paceline.data.block import BlockMetadata as BlockMetadata
from paceline.data.datasource.datasource import ADVICE
from paceline.data.datasource.datasource import Datasink as Datasink
from paceline.data.datasource.datasource import Datasource as Datasource
from paceline.data.datasource.datasource import Reader as Reader
from paceline.data.datasource.datasource import ReadTask as ReadTask
from paceline.data.datasource.datasource import TaskContext as TaskContext
from paceline.data.datasource.file_based_datasource import BaseFileMetadataProvider as BaseFileMetadataProvider
from paceline.data.datasource.file_based_datasource import BlockWritePathProvider as BlockWritePathProvider
from paceline.data.datasource.file_based_datasource import (
    DefaultBlockWritePathProvider as DefaultBlockWritePathProvider,
)
from paceline.data.datasource.file_based_datasource import DefaultFileMetadataProvider as DefaultFileMetadataProvider
from paceline.data.datasource.file_based_datasource import (
    DefaultParquetMetadataProvider as DefaultParquetMetadataProvider,
)
from paceline.data.datasource.file_based_datasource import FastFileMetadataProvider as FastFileMetadataProvider
from paceline.data.datasource.file_based_datasource import FileBasedDatasource as FileBasedDatasource
from paceline.data.datasource.file_based_datasource import FileExtensionFilter as FileExtensionFilter
from paceline.data.datasource.file_based_datasource import FileMetadataProvider as FileMetadataProvider
from paceline.data.datasource.file_based_datasource import FilenameProvider as FilenameProvider
from paceline.data.datasource.file_based_datasource import ParquetMetadataProvider as ParquetMetadataProvider
from paceline.data.datasource.partitioning import Partitioning as Partitioning
from paceline.data.datasource.partitioning import PartitionStyle as PartitionStyle
from paceline.data.datasource.partitioning import PathPartitionFilter as PathPartitionFilter
from paceline.data.datasource.partitioning import PathPartitionParser as PathPartitionParser


def __getattr__(name: str) -> NoReturn:
    raise no_such_name(__name__, name, ADVICE)
