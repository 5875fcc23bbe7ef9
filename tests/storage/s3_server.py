"""An S3 server on loopback, and a filesystem that talks to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a running server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def s3_filesystem(endpoint: str) -> Any:
    """A fresh s3fs filesystem; what listings were cached elsewhere is not shared with it."""
    import s3fs

    return s3fs.S3FileSystem(
        key="test",
        secret="test",
        endpoint_url=endpoint,
        client_kwargs={"region_name": "us-east-1"},
        config_kwargs={"retries": {"max_attempts": 0}},
        skip_instance_cache=True,
    )
