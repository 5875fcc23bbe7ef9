"""The manifest under the name that the storage layer knows it by: checkpoints read it too, so it is in `air`."""

from paceline.air.manifest import (
    FileEntry,
    Manifest,
    is_inside,
    is_manifest,
    manifest_name,
    new_hash,
    path_of,
    read_manifest,
    verify,
)

__all__ = [
    "FileEntry",
    "Manifest",
    "is_inside",
    "is_manifest",
    "manifest_name",
    "new_hash",
    "path_of",
    "read_manifest",
    "verify",
]
