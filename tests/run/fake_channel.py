"""A driver's end of the line that a test plays by hand."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.air.attachment import Attachment
from paceline.run.messages import (
    CheckpointWanted,
    FromWorker,
    Report,
    SessionSetup,
    ToWorker,
    TrialResources,
    decode_from_worker,
    encode,
)
from paceline.run.rank_target import rank_target
from paceline.run.staging import CheckpointStager


class FakeChannel:
    """Keeps what the session sends; `answer` says what it hears when it waits."""

    rank = 0
    world_size = 1

    def __init__(self, answer: Callable[[FakeChannel], ToWorker] | None = None) -> None:
        self.sent: list[FromWorker] = []
        self.attachments: list[Attachment] = []
        self.inbox: deque[ToWorker] = deque()
        self.arrived = threading.Semaphore(0)
        """Counts the messages that were sent."""
        self._answer = answer

    def send(self, body: bytes, attachments: Sequence[Attachment] = ()) -> None:
        self.sent.append(decode_from_worker(body))
        self.attachments += attachments
        self.arrived.release()

    def receive(self, timeout: float | None = None) -> bytes | None:
        if self.inbox:
            return encode(self.inbox.popleft())
        if timeout == 0:
            return None
        if self._answer is None:
            raise AssertionError("the session waits although nobody would answer")
        return encode(self._answer(self))

    def take_attachments(self) -> tuple[Attachment, ...]:
        return ()

    @property
    def reports(self) -> list[Report]:
        return [message for message in self.sent if isinstance(message, Report)]


def stager(setup: SessionSetup, channel: FakeChannel | None = None) -> CheckpointStager:
    """What stages the checkpoints of such a session, for a target that asks nothing."""

    def ask(wanted: CheckpointWanted) -> Any:
        raise AssertionError("nobody would answer")

    line = channel or FakeChannel()
    return CheckpointStager(setup, line, rank_target(setup, line, ask), time.monotonic())


def session_setup(trial_dir: Path, **facts: Any) -> SessionSetup:
    """What a rank is told at its start."""
    standard: dict[str, Any] = {
        "world_rank": 0,
        "world_size": 1,
        "local_rank": 0,
        "local_world_size": 1,
        "node_rank": 0,
        "trial_name": "Trainer_4913f_00000",
        "trial_id": "4913f_00000",
        "trial_dir": os.fsencode(trial_dir),
        "experiment_name": "experiment",
        "resources": TrialResources([({"CPU": 1.0}, 1)], "PACK"),
        "metadata": {},
        "attempt": 0,
        "start_index": 0,
        "next_number": 0,
        "decides": False,
    }
    return SessionSetup(**{**standard, **facts})
