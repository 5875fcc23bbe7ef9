"""A process of a pool: takes rows, runs the user's function on them, gives back what comes out."""

from __future__ import annotations

import faulthandler
import json
import pickle
import signal
import socket
import sys
from dataclasses import dataclass

import paceline.data.tensors  # noqa: F401  # its column types must be known before rows arrive
from paceline.air.errors import DataError
from paceline.data.operations.pool_connection import DONE, FAILED, RESULT, Connection
from paceline.data.operations.user_function import Spot
from paceline.data.operations.work import Work
from paceline.engine.failures import describe_exception
from paceline.engine.local.linux import die_with_parent
from paceline.engine.serialization import dumps, loads, new_main_module


@dataclass(frozen=True)
class Failure:
    """What a task ended with, on its way to the process that asked for it."""

    message: str
    cause: bytes | None
    """The user's exception, if it can be pickled."""
    cause_message: str
    cause_traceback: str


def main(payload: bytes) -> None:
    """Called by the engine's boot script in a new interpreter; the user's script is not run again."""
    head, _, pickled = payload.partition(b"\n")
    settings = json.loads(head)
    die_with_parent(settings["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of the process that uses the pool
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    faulthandler.enable()
    sys.argv[:] = settings["argv"]
    sys.modules["__main__"] = new_main_module(settings["main_file"])
    connection = Connection(socket.socket(fileno=settings["socket"]))
    try:
        serve(connection, pickled)
    except ConnectionError:  # the pool was closed, or its process is gone
        return


def serve(connection: Connection, pickled_work: bytes) -> None:
    """One task after the other, until the other side hangs up."""
    work: Work | None = None
    while True:
        _, note, rows = connection.receive()
        assert rows is not None
        try:
            if work is None:
                work = loads(pickled_work)
            for result in work.results(rows, Spot(*json.loads(note))):
                connection.send(RESULT, rows=result)
        except ConnectionError:
            raise
        except Exception as error:
            flush_output()
            connection.send(FAILED, pickle.dumps(told(error)))
        else:
            flush_output()
            connection.send(DONE)
        del rows


def told(error: Exception) -> Failure:
    """A DataError as it is, with its cause; anything else is a cause itself (the function could not be unpickled)."""
    cause = error.__cause__ if isinstance(error, DataError) else error
    if cause is None:
        return Failure(str(error), None, "", "")
    said = describe_exception(cause, rank=0, time_ns=0)
    message = str(error) if isinstance(error, DataError) else f"cannot be run in another process: {said.message}"
    try:
        pickled = dumps(cause, "exception")
    except Exception:  # the text must do
        pickled = None
    return Failure(message, pickled, said.message, said.traceback)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed, or a pipe that nobody reads
            continue
