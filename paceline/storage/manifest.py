"""What a committed checkpoint consists of: MANIFEST.json, the file whose presence means "committed".

It names every file with size and hash, so that a torn or altered checkpoint is found before
anybody trains from it. The manifest guards itself too: its own text must match its checksum.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.air.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError
from paceline.storage.run_dir import MANIFEST_NAME

FORMAT = 1
ALGORITHM = "xxh3_128"
_CHUNK = 1 << 20


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
        checksum = new_hash()
        checksum.update(_render(body))
        return _render({**body, "checksum": checksum.hexdigest()}) + b"\n"


def new_hash() -> Any:
    """A fresh hash object of ALGORITHM."""
    import xxhash

    return xxhash.xxh3_128()


def manifest_name(path: str) -> str:
    """A relative path as the manifest spells it: the same text for the same bytes, whatever the locale."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def path_of(name: str) -> str:
    """The inverse of `manifest_name`."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def read_manifest(checkpoint_dir: Path) -> Manifest:
    """Read and check the manifest itself, not the files it names."""
    path = checkpoint_dir / MANIFEST_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointNotFoundError(
            f"{checkpoint_dir} is not a committed checkpoint: it has no {MANIFEST_NAME}"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    try:
        body = json.loads(text)
        if body["format"] > FORMAT:
            raise CheckpointError(f"{path} has format {body['format']}; this version of paceline reads up to {FORMAT}")
        manifest = Manifest(
            files={
                name: FileEntry(size=entry["size"], hash=entry["hash"], mode=int(entry["mode"], 8))
                for name, entry in body["files"].items()
            },
            empty_directories=tuple(body["empty_directories"]),
            facts=body["facts"],
        )
        unsafe = [name for name in (*manifest.files, *manifest.empty_directories) if not is_inside(name)]
        intact = body["algorithm"] == ALGORITHM and manifest.encode() == text
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptError(f"{path} is damaged: {error!r}") from error
    if not intact:
        raise CheckpointCorruptError(f"{path} is damaged: its content does not match its own checksum")
    if unsafe:
        raise CheckpointCorruptError(f"{path} names {unsafe[0]!r}, which is no place inside the checkpoint")
    return manifest


def is_inside(name: str) -> bool:
    """Whether a manifest's name stays below the checkpoint's directory."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def verify(checkpoint_dir: Path) -> Manifest:
    """Compare every file with the manifest; CheckpointCorruptError names the first that differs."""
    manifest = read_manifest(checkpoint_dir)
    present = _files_below(checkpoint_dir)
    for name in sorted(present - set(manifest.files)):
        raise CheckpointCorruptError(f"{checkpoint_dir}: extra file {name!r}, which the manifest does not name")
    for name, entry in manifest.files.items():
        if name not in present:
            raise CheckpointCorruptError(f"{checkpoint_dir}: file {name!r} is missing")
        path = checkpoint_dir / path_of(name)
        size = path.lstat().st_size
        if size != entry.size:
            raise CheckpointCorruptError(
                f"{checkpoint_dir}: file {name!r} has {size} bytes instead of the {entry.size} that were committed"
            )
        found = hash_file(path)
        if found != entry.hash:
            raise CheckpointCorruptError(
                f"{checkpoint_dir}: content of file {name!r} changed since it was committed "
                f"({ALGORITHM} {found} instead of {entry.hash})"
            )
    for name in manifest.empty_directories:
        if not (checkpoint_dir / path_of(name)).is_dir():
            raise CheckpointCorruptError(f"{checkpoint_dir}: directory {name!r} is missing")
    return manifest


def hash_file(path: Path) -> str:
    """The hash of a file's content, read in pieces."""
    hasher = new_hash()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    try:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                hasher.update(view[:count])
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    return str(hasher.hexdigest())


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


def _render(body: dict[str, Any]) -> bytes:
    return json.dumps(body, indent=1, sort_keys=True).encode()


def is_manifest(path: Path) -> bool:
    """Whether a file of that name was written by paceline."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and {"format", "algorithm", "files", "checksum"} <= body.keys()
