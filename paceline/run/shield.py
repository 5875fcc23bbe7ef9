"""Blocks that an interrupt must not cut in two. It is raised when the block has ended, a moment later."""

from __future__ import annotations

import threading


class Shield:
    """For blocks in the main thread, in which handlers of signals run. In other threads it does nothing."""

    def __init__(self) -> None:
        self._depth = 0
        self._pending: BaseException | None = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth += 1

    def __exit__(self, *raised: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            pending = self._pending
            if self._depth == 0 and pending is not None:
                self._pending = None
                raise pending

    def interrupt(self, error: BaseException) -> None:
        """Raise this, now or when the block has ended. For handlers of signals."""
        if self._depth == 0:
            raise error
        self._pending = error


shield = Shield()
"""There is one main thread, and so there is one of these."""
