"""Where runs and searches may be below a local path. Only names are looked at; reading is up to the caller.

A results directory has experiment directories, and these have the directories of runs. A search is a journal of its own
in an experiment directory, beside the directories of its trials; several searches may share one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Protocol

from paceline.air.errors import StorageError
from paceline.storage import lock
from paceline.storage.commit import is_put_aside
from paceline.storage.files import storage_error
from paceline.storage.run_dir import SEARCH_JOURNALS
from paceline.view.watched import RUN_JOURNAL, LocalRun, Version, WatchedRun, WatchedSearch, version_of

_RACY_NS = 100_000_000
"""A directory that changed this shortly before it was listed may have changed again within one tick of the clock."""


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


class Place(Protocol):
    """A local path, or a URI, that is watched."""

    root: str

    def uri_of(self, path: str) -> str:
        """What a path can be opened by."""
        ...

    def folders(self) -> Iterator[Folder]:
        """All that may hold runs, as they are now."""
        ...

    def run_at(self, path: str) -> WatchedRun: ...

    def search_at(self, folder: str, journal: str) -> WatchedSearch: ...

    def do_all(self, looks: Sequence[Callable[[], object]]) -> None:
        """Make many looks, in any order."""
        ...

    share: int
    """How many of those that are not alive are looked at each time."""


class LocalPlace:
    """A local directory. One is listed again only if it has changed."""

    share = 2000
    """About 5 ms."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._listed: dict[str, tuple[Version | None, int, Folder]] = {}

    def uri_of(self, path: str) -> str:
        return path

    def folders(self) -> Iterator[Folder]:
        top = self._list(self.root)
        if top.is_run or top.problem is not None:
            yield top
            return
        runs = []
        for name in top.below:
            path = f"{self.root}/{name}"
            if top.searches or (path not in self._listed and os.path.isfile(f"{path}/{RUN_JOURNAL}")):
                runs.append(name)
                continue
            folder = self._list(path)
            if folder.is_run:
                runs.append(name)
            else:
                yield folder
        there = {self.root, *(f"{self.root}/{name}" for name in top.below)}
        self._listed = {path: known for path, known in self._listed.items() if path in there}
        yield Folder(self.root, searches=top.searches, below=runs)

    def _list(self, path: str) -> Folder:
        version = version_of(path)
        known = self._listed.get(path)
        if known is not None and known[0] == version and version is not None and known[1] - version[2] > _RACY_NS:
            return known[2]
        now, folder = time.time_ns(), list_folder(path, self.root)
        self._listed[path] = version, now, folder
        return folder

    def run_at(self, path: str) -> LocalRun:
        return LocalRun(path)

    def search_at(self, folder: str, journal: str) -> WatchedSearch:
        path = Path(folder, journal)
        is_held = partial(lock.is_held, path.with_suffix(".lock"))
        return WatchedSearch(folder, path, LocalRun, is_held, partial(version_of, str(path)))

    def do_all(self, looks: Sequence[Callable[[], object]]) -> None:
        for look in looks:
            look()


def list_folder(path: str, root: str) -> Folder:
    """What is in a local directory."""
    folder, links = Folder(path), list[str]()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name == RUN_JOURNAL:
                    folder.is_run = True
                elif name.endswith(".jsonl") and fnmatchcase(name, SEARCH_JOURNALS):
                    folder.searches.append(name)
                elif name.startswith(".") or (".corrupt" in name and is_put_aside(name)):
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
