"""The built-in filesystems pass the contract; errors are told apart and retried where that helps."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.air.errors import ConfigError, StorageError
from paceline.storage import filesystem as module
from paceline.storage.filesystem import Filesystem, FsspecFilesystem, is_transient
from paceline.testing.filesystem_contract import FilesystemContract
from tests.storage.s3_server import s3_filesystem

HANG_GUARD_S = 60


class TestFile(FilesystemContract):
    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> Filesystem:
        return FsspecFilesystem(f"file://{tmp_path}/storage dir")


class TestMemory(FilesystemContract):
    @pytest.fixture
    def filesystem(self, memory: FsspecFilesystem) -> Filesystem:
        return memory


class TestS3(FilesystemContract):
    @pytest.fixture
    def filesystem(self, s3: FsspecFilesystem) -> Filesystem:
        return s3


class TestPyarrow(FilesystemContract):
    @pytest.fixture
    def filesystem(self, tmp_path: Path) -> Filesystem:
        import pyarrow.fs

        return FsspecFilesystem(f"{tmp_path}/storage", pyarrow.fs.LocalFileSystem())


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.0)


def flaky_memory(uri: str, errors: list[Exception]) -> FsspecFilesystem:
    """A memory filesystem whose reads raise these errors one after the other before they work."""
    from fsspec.implementations.memory import MemoryFileSystem

    class Flaky(MemoryFileSystem):
        def cat_file(self, *args: Any, **kwargs: Any) -> Any:
            if errors:
                raise errors.pop(0)
            return super().cat_file(*args, **kwargs)

    return FsspecFilesystem(uri, Flaky(skip_instance_cache=True))


@pytest.mark.usefixtures("no_pauses")
def test_what_passes_by_itself_is_tried_again(memory: FsspecFilesystem) -> None:
    memory.write_text("a", "x")
    errors: list[Exception] = [ConnectionResetError(), OSError(errno.EBUSY, "503"), TimeoutError()]
    assert flaky_memory(memory.label, errors).read_text("a") == "x"


@pytest.mark.usefixtures("no_pauses")
def test_five_times_at_most(memory: FsspecFilesystem) -> None:
    errors: list[Exception] = [OSError(errno.EBUSY, "slow down") for _ in range(9)]
    with pytest.raises(StorageError, match=r"reading a\b.*slow down.*\b5 times"):
        flaky_memory(memory.label, errors).read_text("a")
    assert len(errors) == 4


def test_what_stays_is_raised_at_once(memory: FsspecFilesystem) -> None:
    for error in (PermissionError("no"), OSError(errno.ENOSPC, "full"), ValueError("odd")):
        errors: list[Exception] = [error, error]
        with pytest.raises(StorageError):
            flaky_memory(memory.label, errors).read_text("a")
        assert len(errors) == 1


def test_connection_errors_of_the_s3_client_are_transient() -> None:
    from aiohttp import ClientPayloadError
    from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, NoCredentialsError

    assert is_transient(EndpointConnectionError(endpoint_url="x"))
    assert is_transient(ConnectionClosedError(endpoint_url="x"))
    assert is_transient(ClientPayloadError())
    assert not is_transient(NoCredentialsError())


@contextmanager
def answering(status: int, times: int) -> Iterator[tuple[str, list[str]]]:
    """A server that answers `times` puts with a status and later ones with 200, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # answers "Expect: 100-continue"

        def answer(self) -> None:
            asked.append(self.command)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status if len(asked) <= times else 200)
            self.send_header("Content-Length", "0")
            self.send_header("ETag", '"0"')
            self.end_headers()

        do_PUT = answer  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.usefixtures("no_pauses")
def test_three_times_503_from_s3_is_survived() -> None:
    with answering(503, times=3) as (endpoint, asked):
        FsspecFilesystem("s3://bucket/x", s3_filesystem(endpoint)).write_text("a", "x")
    assert asked == ["PUT"] * 4


def test_403_is_refused_at_once_with_advice() -> None:
    with (
        answering(403, times=99) as (endpoint, asked),
        pytest.raises(StorageError, match="credentials") as refused,
    ):
        FsspecFilesystem("s3://bucket/x", s3_filesystem(endpoint)).check()
    assert asked == ["PUT"]
    assert refused.value.errno == errno.EACCES
    assert refused.value.filename == "s3://bucket/x"


def test_a_missing_bucket_is_refused_at_once(s3_client: Any) -> None:
    with pytest.raises(StorageError, match=r"bucket.*no-such-bucket"):
        FsspecFilesystem("s3://no-such-bucket/x", s3_client).check()
    assert "no-such-bucket" not in s3_client.ls("", refresh=True)


def test_unfinished_uploads_below_the_place_are_aborted(s3_client: Any) -> None:
    s3_client.call_s3("create_bucket", Bucket="with-uploads")
    for key in ("results/trial/checkpoint_000000/model.bin", "results/trial-of-somebody-else/model.bin"):
        s3_client.call_s3("create_multipart_upload", Bucket="with-uploads", Key=key)
    FsspecFilesystem("s3://with-uploads/results/trial", s3_client).abort_stale_uploads()
    left = s3_client.call_s3("list_multipart_uploads", Bucket="with-uploads")["Uploads"]
    assert [upload["Key"] for upload in left] == ["results/trial-of-somebody-else/model.bin"]


def test_unknown_and_missing_protocols_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        FsspecFilesystem("nonsense://x")
    with pytest.raises(ConfigError, match=r"sftp://host/x.*package"):
        FsspecFilesystem("sftp://host/x")


def test_credentials_are_never_shown() -> None:
    error = ValueError("cannot open memory://key:canary@bucket/x with canary-2")
    with pytest.raises(StorageError, match="bucket/x") as failed:
        flaky_memory("memory://key:canary@bucket/x?token=canary-2", [error]).read_text("a")
    assert "canary" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__


def test_a_package_that_overwrites_instead_of_creating_is_refused(
    s3: FsspecFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old releases of s3fs drop the mode, old ones of botocore the header; an S3 server may ignore it."""
    s3.check()
    pipe_file = s3.given.pipe_file
    monkeypatch.setattr(s3.given, "pipe_file", lambda path, content, mode="overwrite": pipe_file(path, content))
    with pytest.raises(StorageError, match=r"s3fs>=2024\.12"):
        s3.check()
    assert s3.list() == []


def test_the_age_of_a_file_is_told_by_the_store(tmp_path: Path) -> None:
    store = FsspecFilesystem(f"file://{tmp_path}")
    store.write_text("old", "x")
    written = (tmp_path / "old").stat().st_mtime
    os.utime(tmp_path / "old", (written - 100, written - 100))
    assert 99 <= store.age("old") < 100 + HANG_GUARD_S
