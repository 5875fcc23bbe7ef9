"""Stands in for the catalog that looks only at what has changed."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from paceline.air.errors import RestoreError
from paceline.storage.run_dir import resolve_storage
from paceline.view.catalog import Found, find


class Entry(Struct):
    id: str
    kind: str
    parent: str | None
    summary: Any


class Changes(Struct):
    changed: list[Entry]
    removed: list[str]


class Catalog:
    def __init__(self, path: str | Path, filesystem: Any = None) -> None:
        self._path, self._filesystem = path, filesystem
        self._root = str(resolve_storage(path))
        self._entries: dict[str, Entry] = {}

    def _id(self, path: str) -> str:
        relative = os.path.relpath(path, self._root)
        return base64.b32encode(hashlib.blake2b(relative.encode(), digest_size=8).digest()).decode().lower()[:12]

    def refresh(self) -> Changes:
        try:
            found = find(self._path, self._filesystem)
        except RestoreError:
            found = Found()
        now: dict[str, Entry] = {}

        def add(kind: str, path: str, summary: Any, parent: str | None = None) -> str:
            id = self._id(path)
            now[id] = Entry(id, kind, parent, summary)
            return id

        for search in found.searches:
            parent = add("search", search.path, search)
            for trial in search.trials:
                add("trial", trial.path, trial, parent)
        for run in found.runs:
            add("run", run.path, run)
        for problem in found.problems:
            add("damaged", problem.path, problem)
        changed = [entry for id, entry in now.items() if self._entries.get(id) != entry]
        removed = [id for id in self._entries if id not in now]
        self._entries = now
        return Changes(changed, removed)

    def place(self, id: str) -> str:
        summary = self._entries[id].summary
        return str(summary.path)
