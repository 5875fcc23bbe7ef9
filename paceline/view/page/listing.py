"""The list that all tabs show, and what of it has changed since a cursor."""

from __future__ import annotations

import gzip
import secrets
import threading
import time
from collections import OrderedDict, deque
from typing import Any

import msgspec

from paceline.run.found_runs import RunSummary
from paceline.tune.experiment.summary import ExperimentSummary
from paceline.view.catalog import Catalog
from paceline.view.page.encoding import encode
from paceline.view.page.entries import FIELDS, Line, line_of

_MOST_REMOVED = 10_000
_MOST_AT_ONCE = 2_000
"""Changes in one event; a page that has missed more of them loads the list again."""


class Changes(msgspec.Struct):
    """What a page that knew the list at some cursor has to change."""

    entries: list[dict[str, Any]]
    removed: list[str]
    cursor: str
    reset: bool = False
    """The cursor is not known here, or too much has changed: load the list again."""


class Listing:
    """The entries of a catalog, ordered by when they changed. `look` may be called from any thread."""

    def __init__(self, catalog: Catalog, root: str) -> None:
        self._catalog = catalog
        self._root = root
        self._era = secrets.token_hex(4)
        """Cursors of another server mean nothing here."""
        self._version = 0
        self._lines: OrderedDict[str, tuple[int, Line]] = OrderedDict()
        self._removed: deque[tuple[int, str]] = deque(maxlen=_MOST_REMOVED)
        self.ids: dict[str, str] = {}
        """Of runs and trials, by their paths."""
        self._searches: dict[str, ExperimentSummary] = {}
        self._look_lock = threading.Lock()
        self._lock = threading.Lock()
        self._packed: tuple[int, bytes] = (-1, b"")
        self.looked_at = 0.0
        """When the last look ended, by the monotonic clock."""
        self.look_seconds = 0.0
        """What it took."""

    def look(self, not_since: float = 0.0) -> None:
        """See what has changed, unless somebody has done so since a moment."""
        with self._look_lock:
            if self.looked_at > not_since > 0:
                return
            began = time.monotonic()
            changes = self._catalog.refresh()
            if changes.changed or changes.removed:
                self._take(changes)
            self.looked_at = time.monotonic()
            self.look_seconds = self.looked_at - began

    def _take(self, changes: Any) -> None:
        for entry in changes.changed:
            if isinstance(entry.summary, RunSummary):
                self.ids[entry.summary.path] = entry.id
            elif isinstance(entry.summary, ExperimentSummary):
                self._searches[entry.id] = entry.summary
        if gone := set(changes.removed):
            self.ids = {path: id for path, id in self.ids.items() if id not in gone}
        lines = [line_of(entry, self._root, self.ids) for entry in changes.changed]
        with self._lock:
            self._version += 1
            for id in changes.removed:
                self._searches.pop(id, None)
                if self._lines.pop(id, None) is not None:
                    self._removed.append((self._version, id))
            for line in lines:
                self._lines[line.id] = (self._version, line)
                self._lines.move_to_end(line.id)

    @property
    def cursor(self) -> str:
        return f"{self._era}.{self._version}"

    def place(self, id: str) -> str:
        """The directory or URI of an id; KeyError if there is none. Paths never come from a client."""
        return str(self._catalog.place(id))

    def line(self, id: str) -> Line:
        """One entry; KeyError if there is none."""
        return self._lines[id][1]

    def search(self, id: str) -> ExperimentSummary | None:
        """The search of an id; None if it is something else."""
        return self._searches.get(id)

    def lines(self) -> list[Line]:
        with self._lock:
            return [line for _, line in self._lines.values()]

    def packed(self) -> bytes:
        """The whole list as JSON, compressed. Tabs that load the same list share it."""
        with self._lock:
            version, content = self._packed
            if version == self._version:
                return content
            version, lines = self._version, [line for _, line in self._lines.values()]
            cursor = self.cursor
        content = gzip.compress(encode({"cursor": cursor, "columns": FIELDS, "rows": lines}), 1)
        with self._lock:
            self._packed = (version, content)
        return content

    def since(self, cursor: str) -> Changes | None:
        """What has changed after a cursor; None if nothing has."""
        era, _, number = cursor.partition(".")
        with self._lock:
            if era != self._era or not number.isdecimal() or int(number) > self._version:
                return Changes([], [], self.cursor, reset=True)
            known = int(number)
            if known == self._version:
                return None
            is_forgotten = len(self._removed) == _MOST_REMOVED and self._removed[0][0] > known
            changed: list[Line] = []
            for version, line in reversed(self._lines.values()):
                if version <= known or len(changed) > _MOST_AT_ONCE:
                    break
                changed.append(line)
            if is_forgotten or len(changed) > _MOST_AT_ONCE:
                return Changes([], [], self.cursor, reset=True)
            removed = [id for version, id in self._removed if version > known and id not in self._lines]
            return Changes([msgspec.structs.asdict(line) for line in changed], removed, self.cursor)
