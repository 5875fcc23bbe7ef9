"""From a URI to a filesystem of fsspec."""

from __future__ import annotations

from typing import Any

from paceline.air.errors import ConfigError
from paceline.air.secrets import without_credentials
from paceline.storage.patience import s3_options

_S3 = ("s3://", "s3a://")


def open_uri(uri: str, filesystem: Any, client_attempts: int = 1) -> tuple[Any, str]:
    """The filesystem of a URI, or the one that was given for it, and the path there.

    A client of S3 that is opened here sends each request `client_attempts` times at most.
    """
    import fsspec

    try:
        if filesystem is None and uri.startswith(_S3):
            opened, root = fsspec.core.url_to_fs(uri, **s3_options(client_attempts))
            opened.retries = 1  # s3fs repeats what its client has given up
        elif filesystem is None:
            opened, root = fsspec.core.url_to_fs(uri)
        else:
            opened = _as_fsspec(filesystem)
            root = opened._strip_protocol(uri)
    except ImportError as error:
        raise ConfigError(f"storage path {without_credentials(uri)} needs a package: {error}") from error
    except ValueError as error:
        raise ConfigError(f"storage path {without_credentials(uri)} cannot be used: {error}") from error
    return opened, str(root).rstrip("/")


def _as_fsspec(filesystem: Any) -> Any:
    if type(filesystem).__module__.startswith("pyarrow"):
        from fsspec.implementations.arrow import ArrowFSWrapper

        return ArrowFSWrapper(filesystem)
    return filesystem
