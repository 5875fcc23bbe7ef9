from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

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


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and directories that were put on disk, in order."""
    found: list[Path] = []

    def noted(really: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
            really(descriptor)

        return sync

    monkeypatch.setattr(os, "fsync", noted(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noted(os.fdatasync))
    return found
