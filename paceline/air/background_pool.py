"""Threads for work that nobody wants to wait for here: commits, transfers, deletions, starting workers.

The threads of concurrent.futures are joined when the interpreter exits: a driver that was interrupted during a long
upload would hang there until it is done. These threads are not waited for.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _Job:
    work: Callable[[], Any]
    key: Hashable
    future: Future[Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            value = self.work()
        except BaseException as error:  # for whoever asks the future
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


class BackgroundPool:
    """Does work in threads that do not keep the process alive; they are started when they are needed.

    Work is begun in the order it was submitted. Work with the same key is done one after the other. In a forked child
    the pool is empty: what the parent submitted stays with the parent.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._most_threads = threads
        self._make_empty()

    def _make_empty(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._ready: deque[_Job] = deque()
        self._behind: dict[Hashable, deque[_Job]] = {}
        """For each key that is under way, what comes after it."""
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], T], key: Hashable = None) -> Future[T]:
        """Have the work done; with a key, after everything that was submitted under the same key."""
        if os.getpid() != self._pid:
            self._make_empty()
        future: Future[T] = Future()
        job = _Job(work, key, future)
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the pool {self._name} is closed")
            if key is not None and key in self._behind:
                self._behind[key].append(job)
                return future
            if key is not None:
                self._behind[key] = deque()
            self._ready.append(job)
            self._changed.notify()  # work that another thread was about to take may have been there before
            if self._idle < len(self._ready) and len(self._threads) < self._most_threads:
                self._start_thread_for(job)
        return future

    def cancel(self) -> None:
        """Drop what has not begun."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            dropped = [*self._ready, *(job for behind in self._behind.values() for job in behind)]
            for job in self._ready:
                self._behind.pop(job.key, None)
            for behind in self._behind.values():
                behind.clear()
            self._ready.clear()
        for job in dropped:
            job.future.cancel()

    def close(self, timeout: float | None = None) -> bool:
        """Take nothing more, and wait up to `timeout` seconds (None: without limit) until everything is done.

        Returns whether it is. What is not done by then is still done, unless the process ends first.
        """
        if os.getpid() != self._pid:
            return True
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start_thread_for(self, job: _Job) -> None:
        name = f"{self._name}-{len(self._threads)}" if self._most_threads > 1 else self._name
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system allows no more threads
            if self._threads:
                return
            self._ready.remove(job)
            self._behind.pop(job.key, None)
            raise
        self._threads.append(thread)

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            self._finish(job.key)
            del job  # a thread that waits must not keep what it did last alive

    def _next(self) -> _Job | None:
        with self._changed:
            while not self._ready:
                if self._closed and not any(self._behind.values()):
                    return None
                self._idle += 1
                try:
                    self._changed.wait()
                finally:
                    self._idle -= 1
            return self._ready.popleft()

    def _finish(self, key: Hashable) -> None:
        if key is None:
            return
        with self._changed:
            behind = self._behind.get(key)
            if behind:
                self._ready.append(behind.popleft())
            else:
                self._behind.pop(key, None)
            if self._closed:  # those that waited for work behind this key may end
                self._changed.notify_all()


def in_parallel(work: Iterable[Callable[[], Any]], name: str, threads: int) -> None:
    """Do all of it and wait until it is done. The first error passes; what has not begun by then never is."""
    pool = BackgroundPool(name, threads)
    try:
        for future in [pool.submit(piece) for piece in work]:
            future.result()
    finally:
        pool.cancel()
        pool.close()
