"""A store that accepts requests and never answers them."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from paceline.view.page import curves, state
from tests.view.page.conftest import fit
from tests.view.page.paging import Page, showing

BUCKET = "memory://hanging-bucket"
TABS = 12
"""More than the server has threads of any kind."""


class Gate(MemoryFileSystem):
    """Answers as long as the gate is open."""

    cachable = False
    opened = threading.Event()
    waits = 0

    def _pass(self) -> None:
        if not Gate.opened.is_set():
            Gate.waits += 1
            Gate.opened.wait()

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        self._pass()
        return super().ls(path, detail=detail, **more)

    def cat_file(self, path: str, *rest: Any, **more: Any) -> Any:
        self._pass()
        return super().cat_file(path, *rest, **more)

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        """Readers of fsspec's own share one position in the file, and disturb each other."""
        if mode == "rb" and path in self.store:
            return io.BytesIO(self.store[path].getvalue())
        return super()._open(path, mode=mode, **more)

    def info(self, path: str, **more: Any) -> Any:
        self._pass()
        return super().info(path, **more)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setattr(curves, "_REMOTE_SECONDS", 0.0)
    monkeypatch.setattr(state, "_REMOTE_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(state, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(state, "_DEADLINE_S", 0.5)
    Gate.opened.set()
    fit(BUCKET, "good")
    try:
        with showing(BUCKET, filesystem=Gate()) as page:
            yield page
            Gate.opened.set()
    finally:
        Gate.opened.set()
        MemoryFileSystem().rm("/hanging-bucket", recursive=True)


def test_the_page_and_its_list_are_there_while_the_store_hangs(page: Page) -> None:
    (entry,) = page.entries().values()
    Gate.opened.clear()
    with ThreadPoolExecutor(TABS) as tabs:
        runs = [tabs.submit(page.refused, f"run/{entry['id']}", 504) for _ in range(TABS)]
        for answer in runs:
            assert "has not answered" in answer.result()
        lists = [tabs.submit(page.entries) for _ in range(TABS)]
        assert all([each["name"] for each in found.result().values()] == ["good"] for found in lists)
    assert page.ask("GET", "/").status == 200
    assert "has not answered" in page.get("about")["problem"]
    Gate.opened.set()
    deadline = time.monotonic() + 30
    while page.get("about")["problem"]:
        assert time.monotonic() < deadline
        page.entries()
    assert page.get(f"run/{entry['id']}")["summary"]["name"] == "good"


def test_a_stream_tells_of_the_list_while_its_curves_hang(page: Page) -> None:
    (entry,) = page.entries().values()
    Gate.opened.clear()
    cursor = page.get("list")["cursor"]
    wish = {"run": entry["id"], "metrics": ["loss"], "cursor": 0}
    with page.stream(list=cursor, series=[wish]) as events:
        events.next("ping")
        page.running._server.config.app.state.page.listing._version += 1  # type: ignore[union-attr]  # as if something had changed
        assert events.next("list")["removed"] == []
        Gate.opened.set()
        assert events.next("rows")["run"] == entry["id"]
