"""From staged to committed, and out again: each step is one rename, so a crash leaves the state before or after it.

Stage (stager.py) -> `commit` -> ... -> `to_trash` -> `delete_tree`. A checkpoint that fails `verify`
is put aside by `quarantine`.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paceline.air.errors import CheckpointError
from paceline.air.faults import fault_point
from paceline.air.manifest import FileEntry, Manifest, new_hash, path_of, read_manifest, verify
from paceline.storage.files import delete_tree as _delete_tree
from paceline.storage.files import storage_error, sync_directory, write_durably
from paceline.storage.run_dir import MANIFEST_NAME, METADATA_NAME
from paceline.storage.stager import Stager

__all__ = [
    "FileEntry",
    "Manifest",
    "Stager",
    "add_file",
    "commit",
    "delete_tree",
    "is_put_aside",
    "merge_manifests",
    "merge_staged",
    "quarantine",
    "read_manifest",
    "to_trash",
    "verify",
]


def commit(staging: Path, final: Path) -> None:
    """Give a finished staging directory its committed name. An existing name is never replaced."""
    if os.path.lexists(final):
        raise CheckpointError(f"{final} exists already and is not replaced. Commit under a new number")
    fault_point("before_commit_rename")
    try:
        os.rename(staging, final)
        fault_point("after_commit_rename")
        sync_directory(final.parent)
    except OSError as error:
        raise storage_error(error, final, "committing the checkpoint") from error


def quarantine(path: Path) -> Path:
    """Put a damaged checkpoint or file aside under a name that nothing loads; keep it for the user to look at."""
    aside = path.with_name(f"{path.name}.corrupt")
    if os.path.lexists(aside):
        aside = aside.with_name(f"{aside.name}-{secrets.token_hex(4)}")
    _rename(path, aside, "putting what is damaged aside")
    return aside


def is_put_aside(path: Path | str) -> bool:
    """Whether `quarantine` gave the name."""
    return re.search(r"\.corrupt(-[0-9a-f]{8})?$", os.path.basename(path)) is not None


def to_trash(checkpoint_dir: Path) -> Path:
    """The first step of a deletion: from here on the checkpoint is not listed, whatever happens next."""
    trash = checkpoint_dir.with_name(f".trash-{checkpoint_dir.name}-{secrets.token_hex(4)}")
    fault_point("before_trash")
    _rename(checkpoint_dir, trash, "removing the checkpoint")
    fault_point("after_trash")
    return trash


def delete_tree(path: Path) -> None:
    """The second step of a deletion. Never follows links; nothing there is fine."""
    _delete_tree(path)
    fault_point("after_delete")


def add_file(staging: Path, name: str, content: bytes) -> None:
    """Add a small file to a finished staging directory; one of that name is replaced."""
    manifest = read_manifest(staging)
    checksum = new_hash()
    checksum.update(content)
    entry = FileEntry(size=len(content), hash=checksum.hexdigest())
    try:
        write_durably(staging / path_of(name), content)
        (staging / path_of(name)).chmod(entry.mode)
        write_durably(staging / MANIFEST_NAME, replace(manifest, files={**manifest.files, name: entry}).encode())
        sync_directory(staging)
    except OSError as error:
        raise storage_error(error, staging, f"adding {name}") from error


def merge_staged(into: Path, others: Mapping[int, Path], *, into_rank: int = 0) -> Manifest:
    """Move what other ranks have staged into one staging directory, and write its manifest anew.

    The same file from two ranks is fine if the content is the same. The checkpoint's own
    metadata file is every rank's, with small differences: the one of `into` is kept.
    """
    manifests = {into_rank: read_manifest(into), **{rank: read_manifest(path) for rank, path in others.items()}}
    result, owner = merge_manifests(manifests, into_rank)
    moves = [(others[rank], name) for name, rank in owner.items() if rank != into_rank]
    empty_directories = {name for manifest in manifests.values() for name in manifest.empty_directories}
    try:
        _move_files(into, moves, empty_directories)
        write_durably(into / MANIFEST_NAME, result.encode())
        sync_directory(into)
    except OSError as error:
        raise storage_error(error, into, "merging the ranks' files") from error
    for path in others.values():
        _delete_tree(path)
    return result


def merge_manifests(manifests: Mapping[int, Manifest], first: int = 0) -> tuple[Manifest, dict[str, int]]:
    """The manifest of all ranks' files together, and which rank's file each of them is."""
    files: dict[str, FileEntry] = {}
    owner: dict[str, int] = {}
    for rank in (first, *sorted(manifests.keys() - {first})):
        for name, entry in manifests[rank].files.items():
            if name not in files:
                files[name], owner[name] = entry, rank
            elif name != METADATA_NAME and (files[name].size, files[name].hash) != (entry.size, entry.hash):
                raise CheckpointError(
                    f"ranks {owner[name]} and {rank} both saved {name!r}, with different content. "
                    "Put the rank into the file's name"
                )
    empty = {name for manifest in manifests.values() for name in manifest.empty_directories}
    return replace(manifests[first], files=files, empty_directories=_still_empty(empty, files)), owner


def _move_files(into: Path, moves: list[tuple[Path, str]], empty_directories: set[str]) -> None:
    changed: set[Path] = set()
    for name in empty_directories:
        (into / path_of(name)).mkdir(mode=0o700, parents=True, exist_ok=True)
        changed.add((into / path_of(name)).parent)
    for source, name in moves:
        target = into / path_of(name)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.rename(source / path_of(name), target)
        changed.update(parent for parent in target.parents if parent.is_relative_to(into))
    for directory in changed:
        sync_directory(directory)


def _still_empty(directories: set[str], files: dict[str, FileEntry]) -> tuple[str, ...]:
    """A directory that one rank left empty may have got another rank's files."""
    filled = {str(parent) for name in files for parent in Path(name).parents}
    return tuple(sorted(directories - filled))


def _rename(old: Path, new: Path, doing: str) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        raise storage_error(error, old, doing) from error
