"""One piece of work at a time that is done in the background, and what follows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from paceline.run.embedding import InBackground

T = TypeVar("T")


class BackgroundWork:
    """Starting and ending workers takes long. The rest of the run happens in the thread that steps it."""

    def __init__(self, in_background: InBackground) -> None:
        self._in_background = in_background
        self._future: Future[Any] | None = None
        self._afterwards: Callable[[Any], None] | None = None

    def begin(self, work: Callable[[], T], afterwards: Callable[[T], None]) -> None:
        """Do `work`; what it returns is handed to `afterwards` by `go_on`, which is called here for work that is done
        at once."""
        self._afterwards = afterwards
        self._future = self._in_background(work)
        self.go_on()

    def go_on(self) -> None:
        """Do what follows if the work is done; what it raised is raised here."""
        future, afterwards = self._future, self._afterwards
        if future is not None and afterwards is not None and future.done():
            self._future = self._afterwards = None
            afterwards(future.result())

    def wait(self, timeout: float | None = None) -> None:
        """Let the work end, and drop what it brought. Workers that come up cannot be ended before they are there."""
        future, self._future = self._future, None
        if future is not None:
            with contextlib.suppress(Exception):
                future.result(timeout)
