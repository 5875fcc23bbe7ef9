"""What a user's checkpoint directory holds, found out before a single byte is copied."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from paceline.air.errors import CheckpointError, CheckpointNotFoundError

_PERMISSIONS = 0o777
"""Set-user-id and the like are not carried over."""


@dataclass(frozen=True)
class SourceFile:
    """A regular file of the tree."""

    name: str
    """Relative path in the tree."""
    path: str
    """Where the content is; differs from the name where a link was resolved."""
    size: int
    mode: int


@dataclass
class TreePlan:
    """The files and directories of a tree, parents before children."""

    files: list[SourceFile] = field(default_factory=list)
    directories: list[tuple[str, int]] = field(default_factory=list)
    empty_directories: list[str] = field(default_factory=list)
    has_links: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def plan_tree(root: Path) -> TreePlan:
    """Walk the tree. Links to the inside stand for what they point at; all other links are refused."""
    if not root.is_dir():
        if os.path.lexists(root):
            raise CheckpointError(f"checkpoint path {root} is not a directory. Report the directory of the files")
        raise CheckpointNotFoundError(f"checkpoint directory {root} does not exist")
    plan = TreePlan()
    real_root = os.path.realpath(root)
    _walk(plan, real_root, "", real_root, (real_root,))
    return plan


def _walk(plan: TreePlan, directory: str, relative: str, root: str, open_directories: tuple[str, ...]) -> None:
    try:
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise CheckpointError(f"cannot read the checkpoint directory {directory}: {error.strerror}") from error
    if not entries and relative:
        plan.empty_directories.append(relative)
    for entry in entries:
        name = os.path.join(relative, entry.name)
        path = entry.path
        if entry.is_symlink():
            plan.has_links = True
            path = _link_target(entry.path, root)
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError as error:
            raise CheckpointError(f"cannot read {entry.path} in the checkpoint: {error.strerror}") from error
        mode = stat.S_IMODE(status.st_mode) & _PERMISSIONS
        if stat.S_ISREG(status.st_mode):
            plan.files.append(SourceFile(name, path, status.st_size, mode))
        elif stat.S_ISDIR(status.st_mode):
            if path in open_directories:
                raise CheckpointError(f"the link {entry.path} in the checkpoint leads back to a directory above it")
            plan.directories.append((name, mode))
            _walk(plan, path, name, root, (*open_directories, path))
        else:
            raise CheckpointError(
                f"{entry.path} in the checkpoint is neither a file nor a directory (socket, pipe or device). Remove it"
            )


def _link_target(link: str, root: str) -> str:
    try:
        target = os.path.realpath(link, strict=True)
    except OSError as error:
        problem = "is part of a loop" if error.errno == errno.ELOOP else "points to nothing"
        raise CheckpointError(f"the link {link} in the checkpoint {problem}. Remove it or copy the file") from error
    if os.path.commonpath([target, root]) != root:
        raise CheckpointError(
            f"the link {link} in the checkpoint points outside of it, to {target}. Copy the file into the checkpoint"
        )
    return target
