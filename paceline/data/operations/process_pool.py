"""Processes that run a user's function beside the one that reads.

They are workers of a local engine that belongs to the pool: the engine starts them, brings rows to them and back, and
says how one ended. One thread uses the engine: it hands each process one portion of rows at a time. Results are given
out in the order of the portions. A process that ends takes its portion with it: that is an error at once, never a wait.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.air.attachment import Attachment
from paceline.air.errors import DataError, RemoteError, SerializationError, WorkerFailure
from paceline.air.resources import usable_cores
from paceline.data.operations import pool_worker
from paceline.data.operations.pool_worker import Failure, PackedRows
from paceline.engine.base import Event, Message, NodeDrains, Placement, TaskEnded, WorkerGroup, WorkerRequest
from paceline.engine.local.engine import LocalEngine
from paceline.engine.serialization import dumps, loads

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.operations.user_function import Spot
    from paceline.data.operations.user_operation import Processes
    from paceline.data.operations.work import Work

PORTIONS_PER_PROCESS = 2
"""One that is worked on and one that waits: memory is bounded by this."""
END_GRACE_S = 5.0


class ProcessPool:
    """Closed explicitly, when nobody refers to it any more, or when this process ends in whatever way."""

    def __init__(self, work: Work, processes: Processes) -> None:
        self._most = processes[1]
        self._shared = _Shared(_pickled(work), str(work.function), processes)
        self._closing = weakref.finalize(self, _Shared.stop, self._shared)

    @property
    def usable(self) -> bool:
        """False after the death of a process, after `close`, and in a fork of the process that made it."""
        return self._shared.usable and self._shared.owner == os.getpid()

    def run(self, portions: Iterator[tuple[Chunk, Spot]]) -> Iterator[Chunk]:
        """What becomes of all portions, in order. Several threads may do this at the same time."""
        under_way: deque[Future[list[PackedRows]]] = deque()
        try:
            for chunk, spot in portions:
                under_way.append(self._shared.submit(_Task(PackedRows.of(chunk), spot)))
                if len(under_way) >= PORTIONS_PER_PROCESS * self._most:
                    yield from _results(under_way.popleft())
            while under_way:
                yield from _results(under_way.popleft())
        finally:
            for answer in under_way:
                answer.cancel()

    def close(self) -> None:
        """End the processes and wait for that."""
        self._closing.detach()
        self._shared.stop()
        thread = self._shared.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


@dataclass
class _Task:
    rows: PackedRows
    spot: Spot
    answer: Future[list[PackedRows]] = field(default_factory=Future)


@dataclass
class _Process:
    number: int
    group: WorkerGroup
    task: _Task | None = None
    """What it is at work on."""
    results: list[PackedRows] = field(default_factory=list)


def _results(answer: Future[list[PackedRows]]) -> Iterator[Chunk]:
    error = answer.exception()
    if error is not None:
        raise error  # here and not in the future's code, whose lines would stand in a failure beside the user's
    for rows in answer.result():
        yield rows.chunk()


def _pickled(work: Work) -> bytes:
    try:
        return dumps(work, work.function.label)
    except SerializationError:
        advice = (
            "Make it in the constructor of a class with a __call__ method, and give the class instead of the function: "
            "each process makes an instance of its own."
        )
        dumps(work.function.function, work.function.label, "the processes of concurrency=", advice)
        raise


class _Shared:
    """What the pool and its thread share. The thread must not refer to the pool: it would never be dropped."""

    def __init__(self, pickled_work: bytes, function: str, processes: Processes) -> None:
        self.work = Attachment(pickled_work)
        self.function = function
        self.least, self.most = processes
        self.owner = os.getpid()
        self.engine = LocalEngine()
        self.thread: threading.Thread | None = None
        self.stopping = False
        self.broken: str | None = None
        """Why, if a process was lost. Not the error itself: its traceback leads to the pool, which would never go."""
        self._waiting: deque[_Task] = deque()
        self._lock = threading.RLock()  # the garbage collector may call `stop` while this thread holds it

    def submit(self, task: _Task) -> Future[list[PackedRows]]:
        with self._lock:
            if self.broken is not None:
                raise DataError(self.broken)
            if self.stopping:
                raise self.closed_in_use()
            self._waiting.append(task)
            if self.thread is None:
                self.thread = threading.Thread(target=_serve, args=(self,), name="paceline-data-pool", daemon=True)
                self.thread.start()
        self.engine.wake()
        return task.answer

    @property
    def usable(self) -> bool:
        return self.broken is None and not self.stopping

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def next_task(self) -> _Task | None:
        """The next that somebody still wants."""
        with self._lock:
            while self._waiting:
                task = self._waiting.popleft()
                if task.answer.set_running_or_notify_cancel():
                    return task
        return None

    def fail(self, error: DataError) -> None:
        """A process was lost: nothing more is accepted, and nobody waits for what was not begun."""
        with self._lock:
            self.broken = self.broken or str(error)
            self._give_up_waiting(error)

    def stop(self) -> None:
        """End the thread, and with it the processes. Those at work are working for nobody."""
        if self.owner != os.getpid():  # a fork: thread and processes are the parent's
            return
        with self._lock:
            self.stopping = True
            self._give_up_waiting(self.closed_in_use())
        if self.thread is None:
            self.engine.close()
        self.engine.wake()

    def closed_in_use(self) -> DataError:
        return DataError(f"{self.function}: its processes were closed while it was in use.")

    def _give_up_waiting(self, error: DataError) -> None:
        while (task := self.next_task()) is not None:
            task.answer.set_exception(error)


def _serve(shared: _Shared) -> None:
    """The life of the pool's thread, which alone uses the engine."""
    processes: list[_Process] = []
    try:
        _hand_out(shared, processes)
        while not shared.stopping and (shared.broken is None or any(process.task for process in processes)):
            _listen(shared, processes)
            _hand_out(shared, processes)
    except Exception as error:
        shared.fail(_with_cause(f"{shared.function}: its processes cannot be used any more: {error}", error))
    finally:
        for process in processes:
            _end(process, shared.closed_in_use())
        shared.engine.close()


def _hand_out(shared: _Shared, processes: list[_Process]) -> None:
    """Give every process that is free something to do, and start more of them as long as there is more to do."""
    for process in processes:
        if process.task is None:
            _begin(process, shared)
    while shared.usable and len(processes) < (shared.most if shared.waiting else shared.least):
        try:
            process = _start(len(processes) + 1, shared)
        except Exception as error:
            shared.fail(_with_cause(f"{shared.function}: a process for it could not be started: {error}", error))
            return
        processes.append(process)
        _begin(process, shared)


def _with_cause(message: str, cause: BaseException) -> DataError:
    error = DataError(message)
    error.__cause__ = cause
    return error


def _start(number: int, shared: _Shared) -> _Process:
    """A new process, which has the function but no rows yet."""
    request = WorkerRequest(rank=0, cwd=os.getcwd(), log_path="")
    placement = Placement(
        run_id="data",
        workers=(request,),
        preload=(pool_worker.__name__,),
        threads=max(1, usable_cores() // shared.most),
        heartbeat_timeout_s=None,  # a function may hold the interpreter as long as it likes
    )
    group = shared.engine.start_group(placement)
    group.start(dumps(pool_worker.serve, "the loop of a process"), [b""])
    group.reply(0, b"", [shared.work])
    return _Process(number, group)


def _listen(shared: _Shared, processes: list[_Process]) -> None:
    """Wait until something happens. A function of its own: a variable that holds an error holds, by its traceback, the
    pool, which would never be dropped."""
    ready = shared.engine.wait([process.group for process in processes], None)
    for process in [process for process in processes if process.group in ready]:
        for event in process.group.poll():
            _take_in(event, process, shared, processes)


def _begin(process: _Process, shared: _Shared) -> None:
    task = shared.next_task()
    if task is not None:
        process.task, process.results = task, []
        process.group.reply(0, pool_worker.task_body(task.spot, task.rows), task.rows.attachments)


def _take_in(event: Event, process: _Process, shared: _Shared, processes: list[_Process]) -> None:
    task = process.task
    if isinstance(event, Message):
        assert task is not None
        said = pool_worker.decode(event.body)
        if isinstance(said, pool_worker.Result):
            process.results.append(PackedRows(said.rows, event.attachments))
            return
        process.task = None
        if isinstance(said, Failure):
            task.answer.set_exception(_failure(said, shared))
        else:
            task.answer.set_result(process.results)
        return
    if isinstance(event, NodeDrains):  # Whoever reads the rows is on the same machine, and is told.
        return
    processes.remove(process)
    ended = WorkerFailure(0, "exit", "its loop ended") if isinstance(event, TaskEnded) else event.failure
    hint = f" {ended.hint}" if ended.hint else ""
    at_work = f"was at work on {task.spot}" if task is not None else "had nothing to do"
    error = DataError(
        f"{shared.function} {at_work} when process {process.number} of {shared.most} ended: {ended.message}.{hint}"
    )
    shared.fail(error)
    _end(process, error)


def _end(process: _Process, error: DataError) -> None:
    """One that is at work is killed; others have time to end by themselves."""
    if process.task is not None:
        process.task.answer.set_exception(error)
    process.group.shutdown(0.0 if process.task is not None else END_GRACE_S)


def _failure(told: Failure, shared: _Shared) -> DataError:
    """What a task ended with, with the user's exception as its cause."""
    prefix = "" if told.message.startswith((shared.function, "What ")) else f"{shared.function} "
    message = f"{prefix}{told.message}"
    if not told.cause_message:
        return DataError(message)
    try:
        cause = loads(told.cause or b"")
    except Exception:
        cause = None
    if not isinstance(cause, BaseException):
        cause = RemoteError(told.cause_message)
    cause.add_note(f"In process {told.pid}:\n{told.cause_traceback}")
    return _with_cause(message, cause)
