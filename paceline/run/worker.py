"""What runs inside every worker: install the session, call the user's function, say how it ended.

RunConfig(log_to_file=...) asks for copies of what rank 0 prints, beside the logs that are always there.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from io import TextIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from paceline.air import faults
from paceline.air import session as session_slot
from paceline.air.errors import StopTraining
from paceline.air.rank_slot import is_in_thread
from paceline.air.temporary import temporary_directory
from paceline.run.backend import WorkerState
from paceline.run.data import open_shards
from paceline.run.messages import Finished, Printed, SessionSetup, Terminated, decode_setup, encode
from paceline.run.rank_debugger import RankDebugger, breakpoints_stop_ranks
from paceline.run.session import Session
from paceline.run.worker_signals import hear_signals

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.data.ingest.prepared import Parcel
    from paceline.engine.base import WorkerChannel


class TrainTask:
    """The task that a group starts on every rank; `argument` is the rank's SessionSetup."""

    KNOWN_AS: ClassVar[Mapping[str, str]] = {"train": ""}

    def __init__(self, train: Callable[[], None], datasets: Parcel | None = None, preprocessor: Any = None) -> None:
        self.train = train
        self.datasets = datasets
        self.preprocessor = preprocessor

    def __call__(self, channel: WorkerChannel, argument: bytes) -> None:
        setup = decode_setup(argument)
        hear_signals(lambda number: channel.send(encode(Terminated(number))))
        with contextlib.ExitStack() as resources:
            resources.callback(
                faults.role.update, dict(faults.role)
            )  # A rank in the driver's process is not the driver.
            faults.role["attempt"] = str(setup.attempt)
            if not is_in_thread():
                faults.role["rank"] = str(setup.world_rank)
            session = Session(setup, channel, resume_checkpoint(setup, channel))
            if setup.resume_relayed:
                session.fetch_start(resources.enter_context(temporary_directory()) / "start")
            self._run(session, setup, channel)

    def _run(self, session: Session, setup: SessionSetup, channel: WorkerChannel) -> None:
        session.preprocessor = self.preprocessor
        if self.datasets is not None:
            session.shards = open_shards(self.datasets, setup, session.clock)
        debugger = session.debugger = RankDebugger(session, in_search=setup.in_search, post_mortem=setup.post_mortem)
        session_slot.install(session)
        stopped = False
        try:
            faults.fault_point("train_begin")
            copies = setup.output_files if setup.world_rank == 0 else None
            with breakpoints_stop_ranks(), copied_output(_open_copy(setup, channel), copies):
                self.train()
        except StopTraining:
            stopped = True
        except BaseException as error:
            debugger.examine(error)
            tell_of_end(session, failed=True)
            session.give_up()
            raise
        tell_of_end(session, failed=False)
        # The session stays installed, so that a late report() is told what is wrong.
        session.end()
        channel.send(encode(Finished(reports=session.reports, stopped=stopped)))
        WorkerState.leave_all()


def tell_of_end(session: Session, *, failed: bool) -> None:
    """What goes wrong here is shown in the worker's output: the training itself is over."""
    for call in session.at_end:
        try:
            call(failed)
        except Exception:
            traceback.print_exc()


def _open_copy(setup: SessionSetup, channel: WorkerChannel) -> Callable[[str], TextIOBase]:
    """How to open a file of the trial's directory, to append to it."""
    directory = Path(os.fsdecode(setup.trial_dir))
    if not directory.is_absolute():
        return lambda name: SentText(lambda text: channel.send(encode(Printed(name, text))))
    return lambda name: open_text(directory / name)


def resume_checkpoint(setup: SessionSetup, channel: WorkerChannel) -> Checkpoint | None:
    """The checkpoint to continue from; one in memory comes with the first message."""
    from paceline.air.checkpoint import Checkpoint
    from paceline.air.manifest import accept_seal

    if setup.resume_path is not None:
        path = os.fsdecode(setup.resume_path)
        if setup.resume_seal is not None:
            accept_seal(Path(path), setup.resume_seal)
        return Checkpoint.from_directory(path)
    if setup.resume_uri is not None:
        return Checkpoint.from_uri(setup.resume_uri)
    if setup.resume_in_memory:
        channel.receive(None)
        (attachment,) = channel.take_attachments()
        return Checkpoint.from_attachment(attachment)
    return None


class _Tee:
    """Writes to a stream and, until that is closed, to a file; all else is asked of the stream.

    A handler of `logging` that was made in the block keeps hold of this object.
    """

    def __init__(self, stream: TextIO, file: io.TextIOBase) -> None:
        self._stream = stream
        self._file = file

    def write(self, text: str) -> int:
        if not self._file.closed:
            self._file.write(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class SentText(io.TextIOBase):
    """A text file that hands on what is written to it, in whole lines: for a file on another machine."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._rest = ""

    def write(self, text: str) -> int:
        lines, line_end, self._rest = (self._rest + text).rpartition("\n")
        if line_end:
            self._send(_encodable(lines + line_end))
        return len(text)

    def close(self) -> None:
        if self._rest and not self.closed:
            self._send(_encodable(self._rest))
        super().close()


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def open_text(path: Path) -> io.TextIOBase:
    """Line by line, so that the file tells how far a trial is, and so that a killed one leaves what it printed."""
    return path.open("a", encoding="utf-8", errors="replace", buffering=1)


@contextlib.contextmanager
def copied_output(open_copy: Callable[[str], io.TextIOBase], names: tuple[str, str] | None) -> Iterator[None]:
    """Copy what Python code prints in the block to two files, or to one of two equal names.

    Code outside of Python writes past it, to the log of the worker only. A retry appends.
    """
    if names is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open_copy(name)) for name in dict.fromkeys(names)}
        before = sys.stdout, sys.stderr
        stack.callback(_set_streams, *before)
        _set_streams(_Tee(before[0], files[names[0]]), _Tee(before[1], files[names[1]]))
        yield


def _set_streams(stdout: Any, stderr: Any) -> None:
    sys.stdout, sys.stderr = stdout, stderr
