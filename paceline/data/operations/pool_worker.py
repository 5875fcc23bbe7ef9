"""A process of a pool: takes rows, runs the user's function on them, gives back what comes out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

import paceline.data.tensors  # noqa: F401  # its column types must be known before rows arrive
from paceline.air.attachment import Attachment
from paceline.air.errors import DataError
from paceline.data.objects import packed, read_rows, write_rows
from paceline.data.operations.user_function import Spot
from paceline.data.operations.work import Work
from paceline.engine.failures import describe_exception
from paceline.engine.serialization import dumps, loads
from paceline.engine.worker_loop import flush_output

if TYPE_CHECKING:
    from paceline.data.block import Chunk
    from paceline.engine.base import WorkerChannel

SMALL_ROWS = 64 << 10
"""So many bytes travel in the message itself; a file in memory for them would cost more than a copy."""


@dataclass(frozen=True)
class PackedRows:
    """Rows on their way to another process: in the message, or beside it."""

    content: bytes
    attachments: Sequence[Attachment] = ()

    @classmethod
    def of(cls, chunk: Chunk) -> PackedRows:
        if chunk.nbytes <= SMALL_ROWS:
            return cls(packed(chunk.schema, [chunk]).to_pybytes())
        return cls(b"", [Attachment.written("paceline-rows", lambda file: write_rows(file, chunk.schema, [chunk]))])

    def chunk(self) -> Chunk:
        """The rows, without a copy where they are in memory that both processes see."""
        source = self.attachments[0].view(private=True) if self.attachments else bytearray(self.content)
        _, (rows,) = read_rows(pa.py_buffer(source))
        return rows


class Task(msgspec.Struct, frozen=True, tag=True):
    """To the process: where rows are from, and the rows unless they come beside this."""

    spot: Spot
    rows: bytes


class Result(msgspec.Struct, frozen=True, tag=True):
    """Rows that came out of a task, unless they come beside this. There may be several."""

    rows: bytes


class Done(msgspec.Struct, frozen=True, tag=True):
    """That was the last result of the task."""


class Failure(msgspec.Struct, frozen=True, tag=True):
    """What a task ended with."""

    message: str
    pid: int
    cause: bytes | None = None
    """The user's exception, if it can be pickled."""
    cause_message: str = ""
    cause_traceback: str = ""


decode = msgspec.msgpack.Decoder(Task | Result | Done | Failure).decode
_encode = msgspec.msgpack.Encoder().encode


def task_body(spot: Spot, rows: PackedRows) -> bytes:
    return _encode(Task(spot, rows.content))


def serve(channel: WorkerChannel, _: bytes) -> None:
    """The task that the engine runs: the work first, then one portion of rows after the other, until it hangs up."""
    try:
        channel.receive()
        (pickled_work,) = channel.take_attachments()
        work: Work | None = None
        while True:
            task = decode(channel.receive() or b"")
            assert isinstance(task, Task)
            rows = PackedRows(task.rows, channel.take_attachments())
            try:
                if work is None:
                    work = _unpickled(pickled_work)
                for result in work.results(rows.chunk(), task.spot):
                    made = PackedRows.of(result)
                    channel.send(_encode(Result(made.content)), made.attachments)
            except ConnectionError:
                raise
            except SystemExit as error:
                flush_output()
                os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
            except Exception as error:
                flush_output()
                channel.send(_encode(failure_of(error)))
            else:
                flush_output()
                channel.send(_encode(Done()))
            del rows, task
    except ConnectionError:  # the pool was closed, or its process is gone
        return


def _unpickled(work: Attachment) -> Work:
    try:
        unpickled: Work = loads(bytes(work.view()))
        return unpickled
    except Exception as error:  # also of a module that cannot connect when it is imported: the pool has not hung up
        said = describe_exception(error, rank=0, time_ns=0).message
        raise DataError(f"cannot be run in another process: {said}") from error


def failure_of(error: Exception) -> Failure:
    """A DataError as it is, with its cause; anything else is a cause itself."""
    cause = error.__cause__ if isinstance(error, DataError) else error
    if cause is None:
        return Failure(str(error), os.getpid())
    said = describe_exception(cause, rank=0, time_ns=0)
    message = str(error) if isinstance(error, DataError) else f"failed: {said.message}"
    try:
        pickled = dumps(cause, "exception")
    except Exception:  # the text must do
        pickled = None
    return Failure(message, os.getpid(), pickled, said.message, said.traceback)
