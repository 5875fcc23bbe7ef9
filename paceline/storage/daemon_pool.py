"""Threads for work that may be given up, such as transfers.

The threads of concurrent.futures are joined when the interpreter exits: a driver that was interrupted during a long
upload would hang there until it is done. These threads are not waited for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonPool:
    """Does work in the order it was asked for, in threads that do not keep the process alive."""

    def __init__(self, threads: int, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def close(self, wait: bool = True) -> None:
        """End the threads after what was submitted; with wait=False do not wait for that."""
        for _ in self._threads:
            self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def cancel(self) -> None:
        """Drop what has not begun."""
        while True:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item[0].cancel()

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                value = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)
                del value
            del item, future, work  # a waiting thread must not keep what it did last alive
