from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.storage import lease as lease_module
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.lease import Lease
from tests.storage.leasing import POLL_S, Clock
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "now", lambda: clock.now)
    monkeypatch.setattr(lease_module, "pause", clock.pause)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", POLL_S)
    return clock


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> FsspecFilesystem:
    found: FsspecFilesystem = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def leases(store: FsspecFilesystem) -> Iterator[Callable[[], Lease]]:
    """Makes leases of one place; their threads end with the test."""
    made: list[Lease] = []

    def make(filesystem: Any = None) -> Lease:
        made.append(Lease(filesystem or store))
        return made[-1]

    yield make
    for lease in made:
        lease.release()
