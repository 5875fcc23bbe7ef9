"""Processes that run a user's function beside the one that reads.

Each process has a thread here that starts it, hands it one portion of rows at a time and waits for the
answer. Results are given out in the order of the portions. A process that ends takes its
portion with it: that is an error at once, never a wait.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.air.errors import DataError, RemoteError, SerializationError
from paceline.air.resources import usable_cores
from paceline.data.operations import pool_connection, pool_worker
from paceline.engine.failures import describe_exit
from paceline.engine.local import drivers, linux
from paceline.engine.local.boot import boot_command, write_boot_config
from paceline.engine.places import THREADS_VARIABLES
from paceline.engine.serialization import dumps, loads

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.data.operations.user_function import Spot
    from paceline.data.operations.user_operation import Processes
    from paceline.data.operations.work import Work

PORTIONS_PER_PROCESS = 2
"""One that is worked on and one that waits: memory is bounded by this."""
END_GRACE_S = 5.0


@dataclass(frozen=True)
class _Task:
    chunk: Chunk
    spot: Spot
    answer: Future[list[Chunk]]


class ProcessPool:
    """Closed explicitly, when nobody refers to it any more, or when this process ends in whatever way."""

    def __init__(self, work: Work, processes: Processes) -> None:
        self._least, self._most = processes
        self._shared = _Shared(_pickled(work), str(work.function), self._most)
        self._closing = weakref.finalize(self, _Shared.stop, self._shared)

    @property
    def usable(self) -> bool:
        """False after the death of a process, after `close`, and in a fork of the process that made it."""
        return self._shared.broken is None and not self._shared.stopping and self._shared.owner == os.getpid()

    def run(self, portions: Iterator[tuple[Chunk, Spot]]) -> Iterator[Chunk]:
        """What becomes of all portions, in order. Several threads may do this at the same time."""
        under_way: deque[Future[list[Chunk]]] = deque()
        try:
            for chunk, spot in portions:
                under_way.append(self._shared.submit(_Task(chunk, spot, Future()), self._least))
                if len(under_way) >= PORTIONS_PER_PROCESS * self._most:
                    yield from _result(under_way.popleft())
            while under_way:
                yield from _result(under_way.popleft())
        finally:
            for answer in under_way:
                answer.cancel()

    def close(self) -> None:
        """End the processes and wait for that."""
        self._closing.detach()
        self._shared.stop()
        for thread in self._shared.threads:
            if thread is not threading.current_thread():
                thread.join()


def _result(answer: Future[list[Chunk]]) -> list[Chunk]:
    error = answer.exception()
    if error is not None:
        raise error  # here and not in the future's code, whose lines would stand in a failure beside the user's
    return answer.result()


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
    """What the pool and its threads share. The threads must not refer to the pool: it would never be dropped."""

    def __init__(self, pickled_work: bytes, function: str, most: int) -> None:
        self.pickled_work = pickled_work
        self.function = function
        self.most = most
        self.owner = os.getpid()
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.busy: set[subprocess.Popen[bytes]] = set()
        self.unfinished = 0
        self.stopping = False
        self.broken: str | None = None
        """Why, if a process was lost. Not the error itself: its traceback leads to the pool, which would never go."""
        self._lock = threading.RLock()  # the garbage collector may call `stop` while this thread holds it

    def submit(self, task: _Task, least: int) -> Future[list[Chunk]]:
        with self._lock:
            if self.broken is not None:
                raise DataError(self.broken)
            if self.stopping:
                raise DataError(f"{self.function}: its processes were closed while it was in use.")
            self.unfinished += 1
            self.tasks.put(task)
            while len(self.threads) < least or (self.unfinished > len(self.threads) and len(self.threads) < self.most):
                self._start_thread()
        return task.answer

    def _start_thread(self) -> None:
        number = len(self.threads) + 1
        thread = threading.Thread(
            target=_serve, args=(self, number), name=f"paceline-data-process-{number}", daemon=True
        )
        self.threads.append(thread)
        thread.start()

    def finished(self) -> None:
        with self._lock:
            self.unfinished -= 1

    def work_begins(self, process: subprocess.Popen[bytes]) -> bool:
        """False if it must not begin any more."""
        with self._lock:
            if not self.stopping:
                self.busy.add(process)
            return not self.stopping

    def work_ends(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self.busy.discard(process)

    def fail(self, error: DataError) -> None:
        """A process was lost: nothing more is accepted, and nobody waits for what was not begun."""
        with self._lock:
            self.broken = self.broken or str(error)
            if not self.stopping:
                self._give_up_waiting(error)

    def stop(self) -> None:
        """End the threads, and with them the processes. Those at work are working for nobody."""
        if self.owner != os.getpid():  # a fork: threads and processes are the parent's
            return
        with self._lock:
            self.stopping = True
            for process in self.busy:
                process.kill()
            self._give_up_waiting(DataError(f"{self.function}: its processes were closed while it was in use."))
            for _ in self.threads:
                self.tasks.put(None)

    def _give_up_waiting(self, error: DataError) -> None:
        while True:
            try:
                task = self.tasks.get_nowait()
            except queue.Empty:
                return
            if task is not None and task.answer.set_running_or_notify_cancel():
                task.answer.set_exception(error)


def _serve(shared: _Shared, number: int) -> None:
    """The life of one thread and its process.

    The process is started here and not where it is first needed: the system ends it with the thread that started it.
    """
    try:
        process, connection = _start_process(shared)
    except Exception as error:
        problem = DataError(f"{shared.function}: a process for it could not be started: {error}")
        problem.__cause__ = error
        shared.fail(problem)
        return
    try:
        while (task := shared.tasks.get()) is not None:
            if task.answer.set_running_or_notify_cancel():
                _do(task, shared, process, connection, number)
            shared.finished()
            del task  # waiting for the next one must not keep its rows
            if process.returncode is not None:
                return
    finally:
        connection.close()  # the process sees that and ends
        _end(process)


def _do(
    task: _Task, shared: _Shared, process: subprocess.Popen[bytes], connection: pool_connection.Connection, number: int
) -> None:
    """Have one task done and answer it."""
    results: list[Chunk] = []
    if not shared.work_begins(process):
        process.kill()
    try:
        connection.send(pool_connection.TASK, json.dumps([*vars(task.spot).values()]).encode(), task.chunk)
        while (frame := connection.receive())[0] == pool_connection.RESULT:
            assert frame[2] is not None
            results.append(frame[2])
    except ConnectionError:
        error = _death(task, shared, process, number)
        shared.fail(error)
        task.answer.set_exception(error)
        return
    except Exception as error:  # out of memory, say: what is still on its way would be taken for something else
        process.kill()
        process.wait()
        problem = DataError(f"{shared.function}: the rows of {task.spot} could not be passed on: {error}")
        problem.__cause__ = error
        shared.fail(problem)
        task.answer.set_exception(problem)
        return
    finally:
        shared.work_ends(process)
    if frame[0] == pool_connection.DONE:
        task.answer.set_result(results)
    else:
        task.answer.set_exception(_failure(pickle.loads(frame[1]), shared, process))


def _failure(told: pool_worker.Failure, shared: _Shared, process: subprocess.Popen[bytes]) -> DataError:
    """What a task ended with, with the user's exception as its cause."""
    prefix = "" if told.message.startswith((shared.function, "What ")) else f"{shared.function} "
    error = DataError(f"{prefix}{told.message}")
    if told.cause_message:
        try:
            cause = loads(told.cause or b"")
        except Exception:
            cause = None
        if not isinstance(cause, BaseException):
            cause = RemoteError(told.cause_message)
        cause.add_note(f"In process {process.pid}:\n{told.cause_traceback}")
        error.__cause__ = cause
    return error


def _death(task: _Task, shared: _Shared, process: subprocess.Popen[bytes], number: int) -> DataError:
    if shared.stopping:
        process.kill()
        process.wait()
        return DataError(f"{shared.function}: its processes were closed while it was in use.")
    try:
        code = process.wait(END_GRACE_S)
    except subprocess.TimeoutExpired:  # it closed its connection but lives on
        process.kill()
        code = process.wait()
    failure = describe_exit(
        number,
        -code if code < 0 else code << 8,
        0,
        memory_limit=None,
        out_of_memory_kills=0,
        crash_text="",
        log_path="",
        time_ns=0,
    )
    hint = f" {failure.hint}" if failure.hint else ""
    return DataError(
        f"{shared.function} was at work on {task.spot} when process {number} of {shared.most} ended: "
        f"{failure.message}.{hint}"
    )


def _start_process(shared: _Shared) -> tuple[subprocess.Popen[bytes], pool_connection.Connection]:
    ours, theirs = socket.socketpair()
    settings = {
        "parent": os.getpid(),
        "socket": theirs.fileno(),
        "argv": sys.argv,
        "main_file": getattr(sys.modules.get("__main__"), "__file__", None),
    }
    payload = json.dumps(settings).encode() + b"\n" + shared.pickled_work
    config = write_boot_config(pool_worker.__name__, sys.path, payload)
    # Ctrl-C reaches all processes of a terminal: blocked until the new one ignores it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process = subprocess.Popen(
            boot_command(config),
            stdin=subprocess.DEVNULL,
            env=_environment(shared.most),
            pass_fds=[config, theirs.fileno()],
        )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        os.close(config)
    return process, pool_connection.Connection(ours, linux.open_pidfd(process.pid))


def _environment(processes: int) -> dict[str, str]:
    """The cores are shared out among the processes, unless the user has settled the threads of libraries."""
    threads = str(max(1, usable_cores() // processes))
    return {**dict.fromkeys(THREADS_VARIABLES, threads), **os.environ, **drivers.inherited_mark()}


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
