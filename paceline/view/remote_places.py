"""Runs and searches at a URI. A store has no times of directories, and each look is a request.

So how often something is looked at goes by the clock: what is alive every few seconds, what may be continued every
minute, what has finished every ten minutes. A driver brings its journal up to date when it commits a checkpoint and
when it ends; what a live run has reported since is not there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import filter as matching
from functools import partial
from typing import Any

from paceline.air.background_pool import in_parallel
from paceline.air.errors import RestoreError, RunNotFoundError, StorageError
from paceline.run.found_runs import summary_of
from paceline.run.run_summary import FollowedRun, RunSummary
from paceline.storage import lease
from paceline.storage.commit import is_put_aside
from paceline.storage.filesystem import FsspecFilesystem
from paceline.storage.journal_parts import RemoteJournal
from paceline.storage.run_dir import SEARCH_JOURNALS
from paceline.view.found import Problem, problem_of
from paceline.view.places import Folder
from paceline.view.watched import RUN_JOURNAL, WatchedSearch, is_alive, may_pass

LIVE_S, OPEN_S, FINISHED_S = 3.0, 60.0, 600.0
"""How long what is known of a run is good enough: while it is alive, while it may be continued, and when it is done."""
FOLDERS_S = 10.0
_PARALLEL_LOOKS = 16
_NOT_A_RUN = re.compile(r"\.|experiment-\w+\.(lease|parts)$")
"""What is hidden, and what a search has beside its journal."""


class RemotePlace:
    """A URI. Paths are shown without credentials."""

    share = 1_000_000
    """Whether one is due, it knows itself."""

    def __init__(self, uri: str, filesystem: Any = None) -> None:
        self._uri, self._filesystem = uri, filesystem
        self._store = FsspecFilesystem(uri, filesystem)
        self.root = self._store.label
        self._listed: dict[str, tuple[float, Folder]] = {}

    def uri_of(self, path: str) -> str:
        """With credentials, if the root has some."""
        return self._uri + path.removeprefix(self.root)

    def folders(self) -> Iterator[Folder]:
        top = self._list("")
        if top.is_run:
            yield top
            return
        runs = list(top.below) if top.searches else []
        if not top.searches:
            now = time.monotonic()
            due = [name for name in top.below if self._listed.get(name, (-FOLDERS_S,))[0] + FOLDERS_S <= now]
            self.do_all([partial(self._list_again, name) for name in due])
            there = set(top.below)
            self._listed = {name: known for name, known in self._listed.items() if name in there}
            for name in top.below:
                folder = self._listed[name][1]
                if folder.is_run:
                    runs.append(name)
                else:
                    yield folder
        yield Folder(self.root, searches=top.searches, below=runs)

    def _list_again(self, name: str) -> None:
        self._listed[name] = time.monotonic(), self._list(name)

    def _list(self, name: str) -> Folder:
        files, directories = self._store.entries(name)
        return Folder(
            f"{self.root}/{name}" if name else self.root,
            is_run=RUN_JOURNAL in files,
            searches=matching(files, SEARCH_JOURNALS),
            below=[each for each in directories if _NOT_A_RUN.match(each) is None and not is_put_aside(each)],
        )

    def run_at(self, path: str) -> RemoteRun:
        return RemoteRun(path, self.uri_of(path), self._filesystem)

    def search_at(self, folder: str, journal: str) -> WatchedSearch:
        store = FsspecFilesystem(self.uri_of(folder), self._filesystem)
        is_held = partial(lease.is_held, store, f"{journal.removesuffix('.jsonl')}.lease")
        beat = _Beat()
        beat.search = WatchedSearch(folder, RemoteJournal(store, journal), self.run_at, is_held, beat)
        return beat.search

    def do_all(self, looks: Sequence[Callable[[], object]]) -> None:
        in_parallel(looks, "paceline-look", _PARALLEL_LOOKS)


class _Beat:
    """Says something else each time that a search is to be looked at."""

    def __init__(self) -> None:
        self.search: WatchedSearch | None = None
        self._due, self._count = 0.0, 0

    def __call__(self) -> int:
        now = time.monotonic()
        if now >= self._due:
            self._count += 1
            is_live = self.search is not None and self.search.alive
            self._due = now + (LIVE_S if is_live else OPEN_S)
        return self._count


class RemoteRun:
    """A run at a URI."""

    def __init__(self, path: str, uri: str, filesystem: Any) -> None:
        self.path = path
        self.summary: RunSummary | Problem | None = None
        self._uri, self._filesystem = uri, filesystem
        self._followed: FollowedRun | None = None
        self._due = 0.0

    def look(self) -> bool:
        if time.monotonic() < self._due:
            return False
        before = self.summary
        try:
            self.summary = self._read()
        except RunNotFoundError:
            self.summary, self._followed = None, None
        except StorageError as error:
            if not isinstance(before, RunSummary) or not may_pass(error):
                self.summary, self._followed = problem_of(self.path, error), None
        except RestoreError as error:
            self.summary, self._followed = problem_of(self.path, error), None
        self._due = time.monotonic() + self._wait_s()
        return self.summary != before

    def _wait_s(self) -> float:
        if self.summary is None or is_alive(self):
            return LIVE_S
        finished = isinstance(self.summary, RunSummary) and self.summary.status == "finished"
        return FINISHED_S if finished else OPEN_S

    def _read(self) -> RunSummary:
        if self._followed is None:
            summary = summary_of(self._uri, self._filesystem)
            if summary.alive:
                store = FsspecFilesystem(self._uri, self._filesystem)
                self._followed = FollowedRun(RemoteJournal(store, RUN_JOURNAL))
            return summary
        journal = self._followed.journal
        assert isinstance(journal, RemoteJournal)
        alive = lease.is_held(journal.filesystem)
        self._followed.read_on()
        summary = self._followed.summary(self.path, alive)
        if not alive:
            self._followed = None
        return summary
