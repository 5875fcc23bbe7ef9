from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from paceline.storage.filesystem import FsspecFilesystem
from tests.storage.s3_server import s3_filesystem, s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> str:
    name = f"bucket-{uuid.uuid4().hex}"
    s3_filesystem(s3_endpoint).call_s3("create_bucket", Bucket=name)
    return name


@pytest.fixture
def s3(s3_endpoint: str, s3_bucket: str) -> FsspecFilesystem:
    return FsspecFilesystem(f"s3://{s3_bucket}/results/trial", s3_filesystem(s3_endpoint))


@pytest.fixture
def memory() -> Iterator[FsspecFilesystem]:
    import fsspec

    root = f"/{uuid.uuid4().hex}"
    yield FsspecFilesystem(f"memory:/{root}")
    store = fsspec.filesystem("memory")
    if store.exists(root):
        store.rm(root, recursive=True)
