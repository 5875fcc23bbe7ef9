"""Names that older programs pass as `meta_provider`. Files are listed once; there is nothing to choose."""

from __future__ import annotations


class FileMetadataProvider:
    """Accepted by the read functions, and without effect."""


class BaseFileMetadataProvider(FileMetadataProvider):
    pass


class DefaultFileMetadataProvider(BaseFileMetadataProvider):
    pass


class FastFileMetadataProvider(DefaultFileMetadataProvider):
    pass


class ParquetMetadataProvider(FileMetadataProvider):
    pass


class DefaultParquetMetadataProvider(ParquetMetadataProvider):
    pass
