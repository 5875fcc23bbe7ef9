"""One thread that runs an iterator ahead of its consumer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Iterates over `items`, at most `depth` of which are made before they are asked for.

    An error is raised where its item would have come. After close() the thread ends with the item it is at.
    """

    def __init__(self, items: Iterable[T], depth: int) -> None:
        self._items = items
        self._depth = depth
        self._changed = threading.Condition()
        self._made: deque[T] = deque()
        self._complete = False
        self._closed = False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        threading.Thread(target=self._work, name="paceline-data-batches", daemon=True).start()
        try:
            while True:
                with self._changed:
                    while not self._made and not self._complete:
                        self._changed.wait()
                    if not self._made:
                        break
                    item = self._made.popleft()
                    self._changed.notify_all()
                yield item
        finally:
            self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._made.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    while len(self._made) >= self._depth and not self._closed:
                        self._changed.wait()
                    if self._closed:
                        return
                    self._made.append(item)
                    self._changed.notify_all()
                del item
        except BaseException as error:  # raised again in the consumer's thread
            self._error = error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
            with self._changed:
                self._complete = True
                self._changed.notify_all()
