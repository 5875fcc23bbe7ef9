"""Storage that is not this machine's disk: a few operations, any URI that fsspec knows.

Names are relative to the URI, with forward slashes. Errors come out as StorageError; what
may pass by itself (a reset connection, a busy server) is tried again a few times first.
"""

from __future__ import annotations

import errno
import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from paceline.air.errors import StorageError
from paceline.air.faults import fault_point
from paceline.air.secrets import without_credentials
from paceline.storage.fsspec_opening import open_uri
from paceline.storage.outage import StoreAwayError
from paceline.storage.patience import current

FIRST_PAUSE_SECONDS = 0.2
_LARGE = 100 << 20
_COARSEST_TIMES = 1.0
"""Seconds: S3 reports times without fractions."""

T = TypeVar("T")

_BUSY = {
    errno.EBUSY,  # what s3fs makes of 503
    errno.EREMOTEIO,  # and of 500
    errno.EAGAIN,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
}
_BUSY_CLASSES = {
    "ConnectionError",
    "HTTPClientError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ResponseParserError",
    "IncompleteRead",
}
"""Base classes of what botocore and aiohttp raise when a connection breaks, by name: neither may be installed."""
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "memory"}
"""There a file appears whole or not at all, and directories need not be made (s3fs would make a bucket)."""


class Filesystem(Protocol):
    """What a run needs of its remote storage."""

    @property
    def label(self) -> str:
        """The place, as it may be shown: without credentials."""
        ...

    @property
    def uri(self) -> str:
        """The place, with credentials."""
        ...

    @property
    def given(self) -> Any:
        """The fsspec filesystem that came with the URI; None where the URI says all."""
        ...

    def check(self) -> None:
        """Write and delete a small file, so that missing rights or a missing bucket are known before work starts.

        A store or package that would silently overwrite a file instead of creating it is refused, too.
        """
        ...

    def upload(self, local: Path, name: str) -> None:
        """Store a local file; readers see the old content or the new one, never a part."""
        ...

    def copy(self, name: str, to: str) -> None:
        """Store a file once more under another name, without moving its content through this machine if possible."""
        ...

    def download(self, name: str, local: Path) -> None:
        """Fetch a file to a path whose parent exists."""
        ...

    def list(self, prefix: str = "") -> list[str]:
        """The names of all files below `prefix` (a directory), sorted; empty if there is none."""
        ...

    def entries(self, prefix: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """The names of the files and of the directories directly in `prefix`, without it; empty if there is none."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, or everything below a directory. Nothing there is fine."""
        ...

    def write_bytes(self, name: str, content: bytes) -> None:
        """Store a small file."""
        ...

    def write_text(self, name: str, text: str) -> None:
        """Store a small file."""
        ...

    def read_text(self, name: str) -> str:
        """Read a small file; FileNotFoundError if there is none."""
        ...

    def create_exclusive(self, name: str, text: str) -> bool:
        """Store a small file unless that name exists: True for exactly one of several callers."""
        ...

    def age(self, name: str) -> float:
        """For how many seconds a file has been as it is, by the store's clock; 0.0 if that is not known."""
        ...

    def age_seen(self, name: str) -> float:
        """The same without writing anything: where the store does not tell its time, by this machine's clock."""
        ...

    def abort_stale_uploads(self) -> None:
        """Drop unfinished uploads of an earlier life, where the store keeps such. Best effort."""
        ...


class FsspecFilesystem:
    """A Filesystem on any URI: s3://, gs://, file://, memory://, ..."""

    def __init__(self, uri: str, filesystem: Any = None) -> None:
        self.label = without_credentials(uri)
        self.uri = uri
        self._fs, self._root = open_uri(uri, filesystem)
        self.given = self._fs if filesystem is not None else None
        protocol = self._fs.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._has_directories = not protocols & _OBJECT_STORES
        self._is_local = bool(protocols & {"file", "local"})

    def check(self) -> None:
        name = _probe_name()
        try:
            self.create_exclusive(name, "1")
            created_again = self.create_exclusive(name, "2")
            self.delete(name)
        except StorageError as error:
            raise StorageError(error.errno, f"the storage cannot be used: {error.strerror}", self.label) from error
        if created_again:
            raise StorageError(
                errno.ENOTSUP,
                "the storage cannot be used: it overwrites a file that must only be created if it does not exist, so "
                "nothing would keep two drivers apart. For s3:// install s3fs>=2024.12 and aiobotocore>=2.15, which "
                "pip install 'paceline[s3]' does; an S3 server must support If-None-Match",
                self.label,
            )

    def upload(self, local: Path, name: str) -> None:
        fs, attempts = self._fs, current().attempts
        if self.given is None and "s3" in fs.protocol and local.stat().st_size >= _LARGE:
            # It is sent in parts: the client repeats the part that failed, we would repeat all of them.
            fs, attempts = open_uri(self.uri, None, client_attempts=attempts)[0], 1
        self._retrying(
            f"uploading {name}", lambda: self._put(name, lambda path: fs.put_file(str(local), path)), attempts
        )

    def copy(self, name: str, to: str) -> None:
        source = self._path(name)
        self._retrying(f"copying {name}", lambda: self._put(to, lambda path: self._fs.cp_file(source, path)))

    def download(self, name: str, local: Path) -> None:
        self._retrying(f"downloading {name}", lambda: self._fs.get_file(self._path(name), str(local)))

    def list(self, prefix: str = "") -> list[str]:
        def find() -> list[str]:
            self._fs.invalidate_cache()
            found = self._fs.find(self._path(prefix) if prefix else self._root)
            return sorted(path.removeprefix(self._root).lstrip("/") for path in found)

        try:
            return self._retrying("listing", find)
        except FileNotFoundError:
            return []

    def entries(self, prefix: str = "") -> tuple[Sequence[str], Sequence[str]]:
        folder = self._path(prefix) if prefix else self._root

        def look() -> tuple[Sequence[str], Sequence[str]]:
            self._fs.invalidate_cache()
            names: dict[str, Any] = {"file": [], "directory": []}
            for each in self._fs.ls(folder, detail=True):
                name = each["name"].rstrip("/").removeprefix(folder).lstrip("/")
                if name and "/" not in name:
                    names["directory" if each["type"] == "directory" else "file"].append(name)
            return sorted(names["file"]), sorted(names["directory"])

        try:
            return self._retrying("listing", look)
        except (FileNotFoundError, NotADirectoryError):
            return [], []

    def exists(self, name: str) -> bool:
        def look() -> bool:
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(self._path(name)))

        return self._retrying(f"looking for {name}", look)

    def delete(self, name: str) -> None:
        def remove() -> None:
            self._fs.invalidate_cache()
            self._fs.rm(self._path(name), recursive=True)

        try:
            self._retrying(f"deleting {name}", remove)
        except FileNotFoundError:
            return

    def write_text(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        self._retrying(f"writing {name}", lambda: self._put(name, lambda path: self._fs.pipe_file(path, content)))

    def read_text(self, name: str) -> str:
        return self._retrying(f"reading {name}", lambda: bytes(self._fs.cat_file(self._path(name))).decode())

    def create_exclusive(self, name: str, text: str) -> bool:
        def create() -> bool:
            path = self._path(name)
            if self._has_directories:
                self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            try:
                if self._is_local:
                    with open(path, "xb") as file:
                        file.write(text.encode())
                else:
                    self._fs.pipe_file(path, text.encode(), mode="create")
            except OSError as error:
                if isinstance(error, FileExistsError) or _is_failed_precondition(error):
                    return False
                raise
            return True

        return self._retrying(f"creating {name}", create)

    def age(self, name: str) -> float:
        probe = _probe_name()

        def measure() -> float:
            self._fs.invalidate_cache()
            try:
                now, written = self._fs.modified(self._path(probe)), self._fs.modified(self._path(name))
            except (NotImplementedError, FileNotFoundError):
                return 0.0
            if now is None or written is None:  # so pyarrow's filesystems say that they do not know
                return 0.0
            return max(0.0, float((now - written).total_seconds()) - _COARSEST_TIMES)

        self.write_text(probe, "")  # what was written just now has the time of the store's clock
        try:
            return self._retrying(f"asking for the age of {name}", measure)
        finally:
            self.delete(probe)

    def age_seen(self, name: str) -> float:
        def measure() -> float:
            self._fs.invalidate_cache()
            path, call_s3 = self._path(name), getattr(self._fs, "call_s3", None)
            try:
                if call_s3 is not None:
                    bucket, key, _ = self._fs.split_path(path)
                    answer = call_s3("head_object", Bucket=bucket, Key=key)
                    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
                    written = answer["LastModified"]
                else:
                    now, written = datetime.now(UTC), self._fs.modified(path)
            except (NotImplementedError, FileNotFoundError, KeyError):
                return 0.0
            if written is None:
                return 0.0
            written = written if written.tzinfo is not None else written.replace(tzinfo=UTC)
            return max(0.0, float((now - written).total_seconds()) - _COARSEST_TIMES)

        return self._retrying(f"asking for the age of {name}", measure)

    def abort_stale_uploads(self) -> None:
        call_s3 = getattr(self._fs, "call_s3", None)
        if call_s3 is None:
            return
        try:
            bucket, prefix, _ = self._fs.split_path(self._root)
            listed = call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
            for upload in listed.get("Uploads", ()):
                call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except Exception:
            return  # they cost space, nothing else; stores other than AWS may not offer the call

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _put(self, name: str, put: Callable[[str], object]) -> None:
        """Store under the name at once or, where a half-written file would be visible, by way of a rename."""
        path = self._path(name)
        if not self._has_directories:
            put(path)
            return
        self._fs.makedirs(self._fs._parent(path), exist_ok=True)
        temporary = f"{path}.tmp-{secrets.token_hex(4)}"
        put(temporary)
        self._fs.mv(temporary, path)

    def _retrying(self, doing: str, operation: Callable[[], T], attempts: int | None = None) -> T:
        """Run an operation; `FileNotFoundError` passes as a StorageError that is one, too."""
        patience = current()
        deadline = time.monotonic() + patience.total_s
        attempts = attempts or patience.attempts
        for attempt in range(1, attempts + 1):
            try:
                fault_point("store_operation")
                return operation()
            except Exception as error:
                if attempt == attempts or time.monotonic() >= deadline or not is_transient(error):
                    raise self._translated(error, doing, attempt) from (None if self._has_credentials else error)
            time.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
        raise AssertionError("the last attempt returns or raises")

    @property
    def _has_credentials(self) -> bool:
        return self.label != self.uri

    def _translated(self, error: Exception, doing: str, attempts: int) -> StorageError:
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        text = str(error.strerror or error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        if (endpoint := _unreachable_endpoint(error)) is not None:
            text = f"there is no connection to {endpoint}"
        text = text.replace(self.uri, self.label)
        for secret in _credentials(self.uri):
            text = text.replace(secret, "***")
        text = f"{doing} failed: {text}"
        if attempts > 1:
            text += f" (tried {attempts} times)"
        if isinstance(error, PermissionError):
            text += ". Check the credentials and what they may do there"
            code = errno.EACCES
        if isinstance(error, FileNotFoundError):
            return RemoteFileNotFoundError(
                errno.ENOENT, f"{text}. Check that the bucket or directory exists", self.label
            )
        return (StoreAwayError if is_transient(error) else StorageError)(code, text, self.label)


class RemoteFileNotFoundError(StorageError, FileNotFoundError):
    """A file, or the bucket that should hold it, does not exist."""


def is_transient(error: BaseException) -> bool:
    """Whether the same call may work in a moment."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _BUSY:
        return True
    return any(base.__name__ in _BUSY_CLASSES for base in type(error).__mro__)


def _probe_name() -> str:
    return f".write-check-{secrets.token_hex(8)}"


def _credentials(uri: str) -> list[str]:
    """The parts of a URI that must not be shown, longest first."""
    match = re.search(r"://([^/]*)@", uri)
    parts = re.split(r"[:]", match[1]) if match else []
    _, _, query = uri.partition("?")
    parts += [value for _, _, value in (item.partition("=") for item in query.split("&"))]
    return sorted((part for part in parts if part), key=len, reverse=True)


def _unreachable_endpoint(error: Exception) -> str | None:
    """The address at which botocore found nobody; its own text has a request with all its parameters."""
    if type(error).__name__ not in ("EndpointConnectionError", "ConnectTimeoutError"):
        return None
    parts = urlsplit(str(getattr(error, "kwargs", {}).get("endpoint_url", "")))
    return without_credentials(f"{parts.scheme}://{parts.netloc}") if parts.netloc else None


def _is_failed_precondition(error: OSError) -> bool:
    """S3's answer to a conditional put; some stores leave out the detail by which s3fs tells it apart."""
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return False
    return response.get("Error", {}).get("Code") in ("PreconditionFailed", "412", "ConditionalRequestConflict")
