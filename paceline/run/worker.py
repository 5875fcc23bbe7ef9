"""What runs inside every worker: install the session, call the user's function, say how it ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from io import TextIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.air import faults
from paceline.air import session as session_slot
from paceline.air.errors import StopTraining
from paceline.air.temporary import temporary_directory
from paceline.run.data import open_shards
from paceline.run.messages import Finished, Printed, SessionSetup, decode_setup, encode
from paceline.run.output_files import SentText, copied_output, open_text
from paceline.run.session import Session

if TYPE_CHECKING:
    from paceline.air.checkpoint import Checkpoint
    from paceline.data.ingest.handover import Parcel
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
        faults.role.update(rank=str(setup.world_rank), attempt=str(setup.attempt))
        with contextlib.ExitStack() as resources:
            session = Session(setup, channel, _resume_checkpoint(setup, channel))
            if setup.resume_relayed:
                session.fetch_start(resources.enter_context(temporary_directory()) / "start")
            self._run(session, setup, channel)

    def _run(self, session: Session, setup: SessionSetup, channel: WorkerChannel) -> None:
        session.preprocessor = self.preprocessor
        if self.datasets is not None:
            session.shards = open_shards(self.datasets, setup)
        session_slot.install(session)
        stopped = False
        try:
            with copied_output(_open_copy(setup, channel), setup.output_files if setup.world_rank == 0 else None):
                self.train()
        except StopTraining:
            stopped = True
        except BaseException:
            session.give_up()
            raise
        # The session stays installed, so that a late report() is told what is wrong.
        session.end()
        channel.send(encode(Finished(reports=session.reports, stopped=stopped)))


def _open_copy(setup: SessionSetup, channel: WorkerChannel) -> Callable[[str], TextIOBase]:
    """How to open a file of the trial's directory, to append to it."""
    directory = Path(os.fsdecode(setup.trial_dir))
    if not directory.is_absolute():
        return lambda name: SentText(lambda text: channel.send(encode(Printed(name, text))))
    return lambda name: open_text(directory / name)


def _resume_checkpoint(setup: SessionSetup, channel: WorkerChannel) -> Checkpoint | None:
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
