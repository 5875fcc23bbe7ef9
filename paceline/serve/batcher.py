"""Requests that wait at the same time are predicted together.

One thread has the model. While it predicts, requests gather; when it is done, those at the head of the queue that
fit together are its next batch. All of this object's state belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from paceline.air.errors import DataError
from paceline.air.words import counted
from paceline.serve.limits import Limits
from paceline.serve.model import ServedModel
from paceline.serve.rows import Answer, RequestRows, split
from paceline.web.problem import RETRY, Problem
from paceline.web.traffic import SECONDS, Histogram

if TYPE_CHECKING:
    from paceline.serve.model import Model

logger = logging.getLogger("paceline.serve")


class Job:
    """One request's rows on their way through the model."""

    __slots__ = ("arrow", "future", "gone", "rows", "timer")

    def __init__(
        self, rows: RequestRows, arrow: bool, future: asyncio.Future[Answer], gone: Callable[[], bool] | None
    ) -> None:
        self.rows = rows
        self.arrow = arrow
        self.future = future
        self.gone = gone
        self.timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Nobody waits for the answer any more."""
        return self.future.done() or (self.gone is not None and self.gone())

    def expire(self, seconds: float) -> None:
        if not self.future.done():
            self.future.set_exception(Problem(504, f"There was no prediction within {seconds:g} s."))


class Counts:
    """What went through the model since the server began."""

    def __init__(self) -> None:
        self.rows = 0
        """Those that were answered with predictions."""
        self.batch_rows = Histogram([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536])
        self.batch_seconds = Histogram(SECONDS)


Work: TypeAlias = "queue.SimpleQueue[tuple[Model, list[Job]] | None]"
"""Batches for the model's thread; None ends it."""


class Batcher:
    """The queue in front of the model."""

    def __init__(self, served: ServedModel, limits: Limits) -> None:
        self.counts = Counts()
        self._served = served
        self._limits = limits
        self._waiting: deque[Job] = deque()
        self._waiting_rows = 0
        self._busy = False
        self._due = False
        """A batch will be sent off as soon as the event loop gets to it."""
        self._timer: asyncio.TimerHandle | None = None
        self._work: Work = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that the model's thread answers to; None: there is no thread."""

    @property
    def waiting(self) -> int:
        """How many requests wait for the model."""
        return len(self._waiting)

    @property
    def waiting_rows(self) -> int:
        """How many rows these requests have."""
        return self._waiting_rows

    async def predict(self, rows: RequestRows, *, arrow: bool, gone: Callable[[], bool] | None = None) -> Answer:
        """The predictions for these rows; raises the Problem that the client gets."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._start(loop)
        if len(self._waiting) >= self._limits.max_waiting:
            raise Problem(503, f"{counted(len(self._waiting), 'request')} waiting already. Try again.", headers=RETRY)
        job = Job(rows, arrow, loop.create_future(), gone)
        seconds = self._limits.request_timeout_s
        job.timer = loop.call_later(seconds, job.expire, seconds)
        self._waiting.append(job)
        self._waiting_rows += rows.count
        if not self._busy:
            self._schedule(loop)
        try:
            return await job.future
        finally:
            job.timer.cancel()

    def close(self) -> None:
        """End the model's thread after what it is doing."""
        self._work.put(None)
        self._loop = None

    # -- in the event loop ----------------------------------------------------------------

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, or begin anew: an application can be run once more, in another loop, and what waited in the one
        before has ended with it."""
        self.close()
        self._waiting.clear()
        self._waiting_rows = 0
        self._busy = self._due = False
        self._timer = None
        self._work = queue.SimpleQueue()
        self._loop = loop
        threading.Thread(target=self._run, args=(loop, self._work), name="paceline-model", daemon=True).start()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send a batch off at once, or when it is full or was waited for long enough."""
        if self._due:
            return
        if not self._limits.max_wait_ms or self._waiting_rows >= self._limits.max_batch_size:
            self._due = True
            loop.call_soon(self._dispatch)  # those that arrived in the same moment come along
        elif self._timer is None:
            self._timer = loop.call_later(self._limits.max_wait_ms / 1000, self._dispatch)

    def _dispatch(self) -> None:
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self._next_batch()
        self._busy = bool(batch)
        if batch:
            self._work.put((self._served.current, batch))

    def _next_batch(self) -> list[Job]:
        batch: list[Job] = []
        rows = 0
        while self._waiting:
            job = self._waiting[0]
            if job.over:
                self._take()
                if not job.future.done():
                    job.future.set_exception(_left())
                continue
            fits = not batch or (
                job.rows.key == batch[0].rows.key and rows + job.rows.count <= self._limits.max_batch_size
            )
            if not fits:
                break
            batch.append(self._take())
            rows += job.rows.count
        if batch:
            self.counts.batch_rows.observe(rows)
        return batch

    def _take(self) -> Job:
        job = self._waiting.popleft()
        self._waiting_rows -= job.rows.count
        return job

    def _finished(self, batch: list[Job], outcomes: Sequence[Answer | Problem]) -> None:
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.future.done():
                continue
            if isinstance(outcome, Problem):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
                self._served.remember(job.rows)
                self.counts.rows += job.rows.count
        self._dispatch()

    # -- in the model's thread ------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop, work: Work) -> None:
        while (task := work.get()) is not None:
            model, batch = task
            began = time.perf_counter()
            outcomes = self._outcomes(model, batch)
            self.counts.batch_seconds.observe(time.perf_counter() - began)
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(self._finished, batch, outcomes)

    def _outcomes(self, model: Model, batch: list[Job]) -> Sequence[Answer | Problem]:
        try:
            return split(model.predict([job.rows for job in batch]), batch)
        except BaseException as error:
            if len(batch) == 1:
                return [_problem(error)]
        # One of them is to blame: the others shall not suffer from it, nor wait until each was predicted by itself.
        half = len(batch) // 2
        return [*self._outcomes(model, batch[:half]), *self._outcomes(model, batch[half:])]


def _left() -> Problem:
    return Problem(400, "The client left.")


def _problem(error: BaseException) -> Problem:
    if isinstance(error, DataError):  # it is about the rows, and says what is wrong with them
        logger.info("Rows were rejected: %s", error, exc_info=error.__cause__)
        return Problem(422, str(error))
    identifier = secrets.token_hex(6)
    logger.error("Prediction failed (id %s)", identifier, exc_info=error)
    return Problem(
        500, f"The model failed on this request. The server's log says why, under the id {identifier}.", id=identifier
    )
