from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.storage.filesystem import FsspecFilesystem
from tests.storage.s3_server import s3_filesystem, s3_server

BUCKET = "results"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3_client(s3_endpoint: str) -> Any:
    """One for all tests, because it takes longer to make than most tests do."""
    client = s3_filesystem(s3_endpoint)
    client.call_s3("create_bucket", Bucket=BUCKET)
    return client


@pytest.fixture
def s3(s3_client: Any) -> FsspecFilesystem:
    return FsspecFilesystem(f"s3://{BUCKET}/{uuid.uuid4().hex}/trial", s3_client)


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
