"""What the routes of one server share: the list, the curves, and threads for everything that reads files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from paceline.air.background_pool import BackgroundPool
from paceline.air.errors import PacelineError
from paceline.air.secrets import without_credentials
from paceline.storage.run_dir import resolve_storage
from paceline.view.catalog import Catalog, run_facts
from paceline.view.facts import RunFacts
from paceline.view.page.curves import CurveStore
from paceline.view.page.entries import Line
from paceline.view.page.importances import ImportanceStore
from paceline.view.page.listing import Listing
from paceline.view.page.machine import Machine
from paceline.web.problem import Problem

logger = logging.getLogger("paceline.view")

T = TypeVar("T")

_LOOK_SECONDS = 0.25
_REMOTE_LOOK_SECONDS = 5.0
_IDLE_SECONDS = 3.0
"""Nobody looks at the list for that long: it is not kept up to date until somebody does."""
_THREADS, _SLOW_THREADS, _QUICK_THREADS = 8, 8, 4
_PATIENCE_S = 5.0
"""So long a request for the list waits for a store. After that it is told what is known."""
_DEADLINE_S = 30.0
"""So long a request waits for what a run has in a store; the thread goes on waiting."""


class PageState:
    """One per server. Its coroutines belong to the server's event loop; the rest may be used from any thread."""

    def __init__(self, path: str, filesystem: Any = None, *, read_only: bool = False) -> None:
        place = resolve_storage(path)
        self.root = without_credentials(place) if isinstance(place, str) else str(place)
        self.filesystem = filesystem
        self.read_only = read_only
        self.started = time.time()
        self.hostname = socket.gethostname()
        self.listing = Listing(Catalog(path, filesystem), self.root)
        self.curves = CurveStore(filesystem)
        self.importances = ImportanceStore()
        self.machine = Machine(self.hostname)
        self.closing = asyncio.Event()
        """Set when the server ends."""
        self.streams = 0
        """How many tabs follow."""
        self.downloads = 0
        self.problem = ""
        """Why the list cannot be kept up to date."""
        self._look_seconds = _REMOTE_LOOK_SECONDS if isinstance(place, str) else _LOOK_SECONDS
        self._asked = time.monotonic()
        self._is_remote = isinstance(place, str)
        # A store may hang. Its threads are not waited for, and the page and the list have others.
        self._threads = BackgroundPool("paceline-page", _THREADS)
        self._slow_threads = BackgroundPool("paceline-page-slow", _SLOW_THREADS)
        self._quick_threads = BackgroundPool("paceline-page-quick", _QUICK_THREADS)
        self._look_thread = BackgroundPool("paceline-page-look")
        self._look_lock = threading.Lock()
        self._looking: Future[None] | None = None
        self._look_began = 0.0

    def close(self) -> None:
        """Called by the server when it ends, in its loop."""
        self.closing.set()

    def end(self) -> None:
        """Called when all requests are answered."""
        self.importances.close()
        for threads in (self._threads, self._slow_threads, self._quick_threads, self._look_thread):
            threads.cancel()
            threads.close(0)

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do what reads files where it does not hold up the event loop; TimeoutError if a store does not answer."""
        done = asyncio.wrap_future(self.begin(work, *arguments))
        return await asyncio.wait_for(done, _DEADLINE_S if self._is_remote else None)

    def begin(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """The same, for whoever waits as long as it takes."""
        return self._threads.submit(partial(work, *arguments))

    async def in_quick_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """The same for what never waits for a store, or not for long."""
        return await asyncio.wrap_future(self._quick_threads.submit(partial(work, *arguments)))

    async def in_slow_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """The same for what may take seconds or minutes: the list and the curves of others do not wait for it."""
        return await asyncio.wrap_future(self._slow_threads.submit(partial(work, *arguments)))

    def soon(self, work: Callable[[], Any]) -> None:
        """Do it in a thread, and do not wait for it; if the server is ending, at once."""
        try:
            self._slow_threads.submit(work)
        except RuntimeError:
            work()

    def place(self, id: str) -> str:
        """The directory or URI of a run or a search; a Problem if there is none."""
        try:
            return self.listing.place(id)
        except KeyError:
            raise _gone() from None

    def line(self, id: str) -> Line:
        """The entry of the list; a Problem if there is none."""
        try:
            return self.listing.line(id)
        except KeyError:
            raise _gone() from None

    def facts(self, id: str) -> RunFacts:
        """What the records of a run say."""
        return run_facts(self.place(id), self.filesystem)

    def look(self) -> None:
        """Bring the list up to date, unless that was done a moment ago."""
        self._asked = time.monotonic()
        if self.listing.looked_at > self._asked - self._look_seconds > 0:
            return
        looking, began = self._start_look()
        left = began + _PATIENCE_S - time.monotonic() if self._is_remote else None
        try:
            looking.result(None if left is None else max(left, 0.0))
        except TimeoutError:
            self.problem = f"{self.root} has not answered for {time.monotonic() - began:.0f} s."

    def _start_look(self) -> tuple[Future[None], float]:
        """The look that is under way, or a new one, and when it began."""
        with self._look_lock:
            if self._looking is None or self._looking.done():
                self._look_began = time.monotonic()
                self._looking = self._look_thread.submit(self._look)
            return self._looking, self._look_began

    async def watch(self) -> None:
        """Keep the list up to date while somebody looks at it."""
        while not self.closing.is_set():
            if self.streams or time.monotonic() - self._asked < _IDLE_SECONDS:
                self._start_look()
            pause = max(self._look_seconds, 5 * self.listing.look_seconds)  # at most a fifth of a core
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.closing.wait(), pause)

    def _look(self) -> None:
        try:
            self.listing.look()
            self.problem = ""
        except Exception as error:  # the others can still be looked at, and it may pass
            if str(error) != self.problem:
                unexpected = None if isinstance(error, PacelineError | OSError) else error
                logger.warning("The list of runs is not up to date: %s", error, exc_info=unexpected)
            self.problem = str(error)


def _gone() -> Problem:
    return Problem(404, "There is no such run. It may have been deleted.")
