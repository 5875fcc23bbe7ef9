"""Where runs and searches may be below a local path. Only names are looked at; reading is up to the caller.

A results directory has experiment directories, and these have the directories of runs. A search is a journal of its own
in an experiment directory, beside the directories of its trials; several searches may share one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from paceline.air.errors import StorageError
from paceline.storage.commit import is_put_aside
from paceline.storage.files import storage_error
from paceline.storage.run_dir import SEARCH_JOURNALS, RunDir

RUN_JOURNAL = RunDir(Path()).journal.name


@dataclass
class Folder:
    """A directory that may hold runs and searches, or that is a run."""

    path: str
    is_run: bool = False
    searches: list[str] = field(default_factory=list)
    """The names of their journals."""
    below: list[str] = field(default_factory=list)
    """The names of directories in it, each of which may be a run."""
    problem: StorageError | None = None
    """Why nothing is known of it."""


def folders(root: str) -> Iterator[Folder]:
    """The directory itself, if it is or holds runs or searches; else also those one level below it."""
    top = _look_at(root, root)
    if top.problem is not None:
        raise top.problem
    if top.is_run:
        yield top
        return
    runs = []
    for name in top.below:
        path = os.path.join(root, name)
        if top.searches or os.path.isfile(os.path.join(path, RUN_JOURNAL)):
            runs.append(name)
        else:
            yield _look_at(path, root)
    yield Folder(root, searches=top.searches, below=runs)


def _look_at(path: str, root: str) -> Folder:
    folder, links = Folder(path), list[str]()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name == RUN_JOURNAL:
                    folder.is_run = True
                elif name.endswith(".jsonl") and fnmatchcase(name, SEARCH_JOURNALS):
                    folder.searches.append(name)
                elif name.startswith(".") or (".corrupt" in name and is_put_aside(Path(name))):
                    continue
                elif entry.is_symlink():
                    links.append(name)
                elif entry.is_dir():
                    folder.below.append(name)
    except OSError as error:
        folder.problem = storage_error(error, path, "listing the directory")
    if links:
        folder.below += _leading_elsewhere(path, sorted(links), root)
    return folder


def _leading_elsewhere(path: str, links: list[str], root: str) -> list[str]:
    """What a link leads to is not shown twice: it may be below the root anyway, or another link may lead there."""
    targets = {os.path.realpath(os.path.join(path, name)): name for name in reversed(links)}
    return [
        name
        for target, name in targets.items()
        if os.path.isdir(target) and os.path.commonpath([root, target]) not in (root, target)
    ]
