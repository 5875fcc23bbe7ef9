"""An S3 server, and a place in it for a test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.storage.s3_server import s3_filesystem, s3_server


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    s3fs = pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with s3_server() as endpoint:
        s3fs.S3FileSystem.clear_instance_cache()
        s3_filesystem(endpoint).call_s3("create_bucket", Bucket="bucket")
        yield endpoint
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of this test's own in a bucket that driver and workers reach by the environment alone."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"bucket/{uuid.uuid4().hex}"


@pytest.fixture
def listing(s3_endpoint: str, bucket: str) -> Any:
    """What is there, as names below the trial's directory."""

    def look() -> list[str]:
        found = s3_filesystem(s3_endpoint).find(bucket)
        return sorted("/".join(name.split("/")[5:]) for name in found)

    return look
