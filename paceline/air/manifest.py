"""What a committed checkpoint consists of: MANIFEST.json, the file whose presence means "committed".

It names every file with size and hash, so that a torn or damaged checkpoint is found before
anybody uses it. The manifest guards itself too: its own text must match its checksum. The hashes find
damage, not tampering: whoever can change a file can change the manifest with it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from paceline.air.constants import CHECKPOINT_MANIFEST_FILE as MANIFEST_NAME
from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError

FORMAT = 1
ALGORITHM = "xxh3_128"
CHUNK = 1 << 20
SAFE_PERMISSIONS = 0o755
"""What a manifest or an archive can set: never set-user-id and the like, and nobody else may write."""

_KEYS = frozenset(["format", "algorithm", "files", "checksum"])
_SETTLED_NS = 50_000_000
"""A file changed so recently may change again within one tick of the clock that its times are taken from."""
MOST_REMEMBERED = 100_000

Wanted = Callable[[str], bool]
"""Whether a file of this name is going to be read."""

_verified: dict[tuple[int, ...], str] = {}
"""Files whose content this process has hashed: identity (see `_identity`) -> hash."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint."""

    size: int
    hash: str
    mode: int = 0o600


@dataclass(frozen=True)
class Manifest:
    """The content of a MANIFEST.json."""

    files: dict[str, FileEntry]
    """Relative path with forward slashes -> what the file must look like."""
    empty_directories: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What the run says about the checkpoint: number, iteration, attempt, world_size, metrics, created, ..."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def check(self, where: str, name: str, size: int, digest: str) -> None:
        """Raise CheckpointCorruptError unless this is what a file's content must look like."""
        entry = self.files.get(name)
        if entry is None:
            raise _extra(where, name)
        if size != entry.size:
            raise CheckpointCorruptError(
                f"{where}: file {name!r} has {size} bytes instead of the {entry.size} that were committed"
            )
        if digest != entry.hash:
            raise CheckpointCorruptError(
                f"{where}: content of file {name!r} changed since it was committed "
                f"({ALGORITHM} {digest} instead of {entry.hash})"
            )

    def check_content(self, where: str, name: str, content: bytes | None) -> None:
        """The same for a file that was read, or that is not there (None)."""
        if content is not None:
            self.check(where, name, len(content), hash_of(content))
        elif name in self.files:
            raise _missing(where, name)

    def encode(self) -> bytes:
        """The text of the file; equal manifests give equal text."""
        body = {
            "format": FORMAT,
            "algorithm": ALGORITHM,
            "files": {
                name: {"size": entry.size, "hash": entry.hash, "mode": f"{entry.mode:04o}"}
                for name, entry in self.files.items()
            },
            "empty_directories": sorted(self.empty_directories),
            "facts": self.facts,
        }
        return _with_checksum(body)


def new_hash() -> Any:
    """A fresh hash object of ALGORITHM."""
    import xxhash

    return xxhash.xxh3_128()


def hash_of(content: bytes) -> str:
    """The hash of these bytes."""
    hasher = new_hash()
    hasher.update(content)
    return str(hasher.hexdigest())


def manifest_name(path: str) -> str:
    """A relative path as the manifest spells it: the same text for the same bytes, whatever the locale."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def path_of(name: str) -> str:
    """The inverse of `manifest_name`."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def read_manifest(checkpoint_dir: Path) -> Manifest:
    """Read and check the manifest itself, not the files it names."""
    manifest = find_manifest(checkpoint_dir)
    if manifest is None:
        raise CheckpointNotFoundError(f"{checkpoint_dir} is not a committed checkpoint: it has no {MANIFEST_NAME}")
    return manifest


def find_manifest(checkpoint_dir: Path) -> Manifest | None:
    """The same; None for a directory that is not a committed checkpoint."""
    path = checkpoint_dir / MANIFEST_NAME
    try:
        with open_regular(path) as file:
            return parse_manifest(file.read(), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. A pipe under its name would keep the reader waiting forever: it counts as damage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise CheckpointCorruptError(f"{path} is not a regular file")


def parse_manifest(text: bytes, where: str) -> Manifest | None:
    """A manifest from the text of its file; None if other software wrote the file."""
    try:
        body = json.loads(text)
        if isinstance(body, dict) and _KEYS.isdisjoint(body):
            return None
        if body["format"] > FORMAT:
            raise CheckpointError(f"{where} has format {body['format']}; this version of paceline reads up to {FORMAT}")
        manifest = Manifest(
            files={
                name: FileEntry(entry["size"], entry["hash"], int(entry["mode"], 8) & SAFE_PERMISSIONS | 0o400)
                for name, entry in body["files"].items()
            },
            empty_directories=tuple(body["empty_directories"]),
            facts=body["facts"],
        )
        unsafe = [name for name in (*manifest.files, *manifest.empty_directories) if not is_inside(name)]
        del body["checksum"]
        intact = body["algorithm"] == ALGORITHM and _with_checksum(body) == text
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointCorruptError(f"{where} is damaged: {error!r}") from error
    if not intact:
        raise CheckpointCorruptError(f"{where} is damaged: its content does not match its own checksum")
    if unsafe:
        raise CheckpointCorruptError(f"{where} names {unsafe[0]!r}, which is not a place inside the checkpoint")
    return manifest


def is_inside(name: str) -> bool:
    """Whether a manifest's name stays below the checkpoint's directory."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def verify(checkpoint_dir: Path) -> Manifest:
    """Compare every file with the manifest; CheckpointCorruptError names the first that differs."""
    manifest = read_manifest(checkpoint_dir)
    verify_files(checkpoint_dir, manifest, again=True)
    return manifest


def verify_files(checkpoint_dir: Path, manifest: Manifest, wanted: Wanted | None = None, again: bool = False) -> None:
    """Compare the files that are wanted (None: all) with the manifest.

    What this process has hashed before, and has not changed since, is hashed `again` only if that is asked for.
    """
    with _deletion_told(checkpoint_dir):
        _verify_names(checkpoint_dir, manifest, wanted)
        for name in manifest.files:
            if wanted is None or wanted(name):
                _verify_file(checkpoint_dir, manifest, name, again)


def verify_names(checkpoint_dir: Path, manifest: Manifest, wanted: Wanted | None = None) -> None:
    """Compare which files there are with the manifest, without reading them."""
    with _deletion_told(checkpoint_dir):
        _verify_names(checkpoint_dir, manifest, wanted)


def _verify_names(checkpoint_dir: Path, manifest: Manifest, wanted: Wanted | None) -> None:
    present, where = _files_below(checkpoint_dir), str(checkpoint_dir)
    for name in sorted(present ^ manifest.files.keys()):
        if wanted is None or wanted(name):
            raise _missing(where, name) if name in manifest.files else _extra(where, name)
    for name in manifest.empty_directories:
        if wanted is None and not (checkpoint_dir / path_of(name)).is_dir():
            raise CheckpointCorruptError(f"{where}: directory {name!r} is missing")


@contextmanager
def _deletion_told(checkpoint_dir: Path) -> Iterator[None]:
    """A run deletes old checkpoints, which is not damage."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        if checkpoint_dir.is_dir():
            raise
        raise CheckpointNotFoundError(f"{checkpoint_dir} was deleted while it was being read") from error


def _verify_file(checkpoint_dir: Path, manifest: Manifest, name: str, again: bool) -> None:
    path, entry = checkpoint_dir / path_of(name), manifest.files[name]
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointCorruptError(f"{checkpoint_dir}: {name!r} is not a regular file")
    if status.st_size != entry.size:  # not worth hashing
        manifest.check(str(checkpoint_dir), name, status.st_size, "")
    if again or _verified.get(_identity(status)) != entry.hash:
        manifest.check(str(checkpoint_dir), name, *hash_file(path))
        remember(status, entry.hash)


def hash_file(path: Path) -> tuple[int, str]:
    """Size and hash of a file's content, read in pieces."""
    hasher, size = new_hash(), 0
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                hasher.update(view[:count])
                size += count
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    return size, str(hasher.hexdigest())


def remember(status: os.stat_result, digest: str) -> None:
    """Note the hash of a file that had this status before it was read."""
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _SETTLED_NS:
        return
    if len(_verified) >= MOST_REMEMBERED:
        _verified.clear()
    _verified[_identity(status)] = digest


def seal(checkpoint_dir: Path) -> str | None:
    """A text that stands for the very files of a checkpoint; None unless this process has verified all of them."""
    manifest = find_manifest(checkpoint_dir)
    if manifest is None:
        return None
    statuses = _statuses(checkpoint_dir, manifest)
    for name, entry in manifest.files.items():
        if name not in statuses or _verified.get(_identity(statuses[name])) != entry.hash:
            return None
    return _sealed(manifest, statuses)


def accept_seal(checkpoint_dir: Path, sealed: str) -> None:
    """Take another process's word: what it has sealed, and nobody has touched since, is not hashed again."""
    manifest = find_manifest(checkpoint_dir)
    if manifest is None:
        return
    statuses = _statuses(checkpoint_dir, manifest)
    if _sealed(manifest, statuses) == sealed:
        _verified.update((_identity(status), manifest.files[name].hash) for name, status in statuses.items())


def _statuses(checkpoint_dir: Path, manifest: Manifest) -> dict[str, os.stat_result]:
    """Of the files that are there."""
    found = {}
    for name in manifest.files:
        try:
            found[name] = os.lstat(checkpoint_dir / path_of(name))
        except OSError:
            continue
    return found


def _sealed(manifest: Manifest, statuses: dict[str, os.stat_result]) -> str:
    # Without the device, whose number can differ between machines that share a file system.
    seen = [(name, _identity(status)[1:]) for name, status in statuses.items()]
    return hash_of(manifest.encode() + repr(seen).encode("utf-8", "surrogateescape"))


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is written or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _extra(where: str, name: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(f"{where}: extra file {name!r}, which the manifest does not name. Remove it")


def _missing(where: str, name: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(f"{where}: file {name!r} is missing")


def _files_below(root: Path) -> set[str]:
    """Names of everything that is not a directory, except the manifest."""
    names: set[str] = set()
    pending = [""]
    while pending:
        relative = pending.pop()
        with os.scandir(root / relative) as entries:
            for entry in entries:
                name = os.path.join(relative, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                else:
                    names.add(manifest_name(name))
    return names - {MANIFEST_NAME}


def _with_checksum(body: dict[str, Any]) -> bytes:
    return _render({**body, "checksum": hash_of(_render(body))}) + b"\n"


def _render(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=1, sort_keys=True).encode()


def is_manifest(path: Path) -> bool:
    """Whether a MANIFEST.json was written by paceline; CheckpointCorruptError if it is damaged."""
    return find_manifest(path.parent) is not None
